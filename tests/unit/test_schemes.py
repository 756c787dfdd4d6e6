from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_run import BASE, make_rollout, measure

from frontrunner.config import AlgoSection, Config
from frontrunner.effort.reward import reward
from frontrunner.effort.schemes import (
    RETANGENT_STEPS,
    REWARD_KINDS,
    BaseLevel,
    Outcomes,
    Scheme,
    base_levels,
)
from frontrunner.errors import UserError
from frontrunner.evals.alarms import alarms
from frontrunner.types import Verdict

LAMBDAS = {"low": 90.0, "medium": 30.0, "high": 10.0}
LEVEL = {name: BaseLevel(0.002 * 2**k, 0.4, 40.0) for k, name in enumerate(LAMBDAS)}
GROUP = Outcomes(
    np.array([1.0, 0.0, 1.0, 1.0]),
    np.array([0.001, 0.004, 0.002, 0.008]),
    np.array([20.0, 90.0, 40.0, 150.0]),
)
SOLVED = replace(GROUP, success=np.ones(4))
settings.register_profile("quick", max_examples=60, deadline=None)
settings.load_profile("quick")


def scheme(kind: str, **more: object) -> Scheme:
    return Scheme(kind, dict(LAMBDAS), LEVEL, 20, **more)  # type: ignore[arg-type]


def step_of(rng: np.random.Generator, scale: float = 1.0) -> list:
    """Six priced groups of four, two per level."""
    rollouts = []
    for number, effort in enumerate([*LAMBDAS] * 2):
        for _ in range(4):
            made = make_rollout(rng, number, effort, float(rng.random() < 0.5), 4.0)
            rollouts.append(replace(made, cost=scale * 0.001 * 2 ** list(LAMBDAS).index(effort)))
    return rollouts


def test_the_config_offers_every_kind() -> None:
    assert all(AlgoSection(reward=kind).reward == kind for kind in REWARD_KINDS)


def test_affine_is_the_reward_of_the_recipe_to_the_bit() -> None:
    rollouts = step_of(np.random.default_rng(0))
    for r in scheme("affine").rewarded(rollouts, 4):
        assert r.reward == reward(r.success, r.cost, LAMBDAS[r.effort])


def test_hand_worked_rewards() -> None:
    s, c = GROUP.success, GROUP.cost
    mean = np.mean(list(LAMBDAS.values()))
    expected = {
        "affine": s - 90.0 * c,
        "single_lambda": s - mean * c,
        "hard_budget": np.array([1.0, -1.0, 1.0, -1.0]),
        "pass_rate_scaled": s - 90.0 * c * 0.75 / 0.4,
        "correct_only": s * np.maximum(0.0, 1.0 - 90.0 * c / 0.4),
        "toggle": s,
    }
    for kind, values in expected.items():
        np.testing.assert_allclose(scheme(kind).rewards("low", GROUP), values, err_msg=kind)


def test_the_budget_shrinks_and_toggle_changes_phase() -> None:
    late = scheme("hard_budget", step=10)
    np.testing.assert_array_equal(late.rewards("low", GROUP), [1.0, -1.0, 1.0, -1.0])
    tight = scheme("hard_budget", step=10, budget=0.9)
    np.testing.assert_array_equal(tight.rewards("low", GROUP), [1.0, -1.0, -1.0, -1.0])
    np.testing.assert_array_equal(scheme("toggle", step=5).rewards("low", GROUP), [1, 0, 1, 0])
    hard = replace(GROUP, success=np.array([0.0, 0.0, 0.0, 1.0]))
    np.testing.assert_array_equal(scheme("toggle", step=5).rewards("low", hard), hard.success)


@given(st.floats(0.0, 0.999), st.floats(0.0, 0.05), st.floats(1e-5, 0.05))
def test_concave_is_concave_and_falling_for_every_legal_value(q: float, c: float, d: float) -> None:
    o = Outcomes(np.ones(3), np.array([c, c + d, c + 2.0 * d]), np.ones(3))
    a, b, e = scheme("concave", concavity=q).rewards("low", o)
    assert a > b > e
    assert (a - b) >= (b - e) - 1e-9


def test_concave_has_the_slope_lambda_at_the_base() -> None:
    o = Outcomes(np.ones(2), 0.002 * np.array([1.0 - 1e-6, 1.0 + 1e-6]), np.ones(2))
    r = scheme("concave", concavity=0.9).rewards("low", o)
    assert (r[0] - r[1]) / (o.cost[1] - o.cost[0]) == pytest.approx(90.0, rel=1e-4)
    straight = scheme("concave", concavity=0.0).rewards("low", GROUP)
    np.testing.assert_allclose(straight, scheme("affine").rewards("low", GROUP))


@pytest.mark.parametrize("value", [1.0, 1.5, -0.1])
def test_other_concavities_are_refused(value: float) -> None:
    with pytest.raises(UserError, match="concavity"):
        scheme("concave", concavity=value)
    with pytest.raises(ValueError, match="concavity"):
        AlgoSection(concavity=value)


@pytest.mark.parametrize("kind", REWARD_KINDS)
def test_no_reward_prefers_failure_or_more_cost(kind: str) -> None:
    for step in range(20):
        one = scheme(kind, step=step)
        better = one.rewards("low", replace(GROUP, success=np.array([1.0, 1.0, 1.0, 1.0])))
        assert better[0] >= better[2] >= better[3]


def test_lambda_cancels_under_std_normalisation_only() -> None:
    def centred(kind: str, factor: float) -> np.ndarray:
        one = Scheme(kind, {k: factor * v for k, v in LAMBDAS.items()}, LEVEL, 20)  # type: ignore[arg-type]
        r = one.rewards("low", SOLVED)
        return r - r.mean()

    np.testing.assert_allclose(centred("std_normalised", 10.0), centred("std_normalised", 1.0),
                               rtol=0.01)  # fmt: skip
    np.testing.assert_allclose(centred("affine", 10.0), 10.0 * centred("affine", 1.0))


def test_std_normalised_steps_have_the_size_of_affine_ones() -> None:
    rollouts = step_of(np.random.default_rng(1))
    spreads = {}
    for kind in ("affine", "std_normalised"):
        r = np.array([x.reward for x in scheme(kind).rewarded(rollouts, 4)]).reshape(-1, 4)
        spreads[kind] = np.sqrt(np.mean(r.var(axis=1)[r.var(axis=1) > 1e-6]))
    assert spreads["std_normalised"] == pytest.approx(spreads["affine"], rel=0.35)


def test_dual_raises_lambda_of_what_costs_too_much_and_leaves_invalid_rollouts_out() -> None:
    one, other = scheme("dual"), scheme("dual")
    rollouts = step_of(np.random.default_rng(0), scale=3.0)
    one.observe(rollouts, 4)
    assert all(one.lambdas[name] > LAMBDAS[name] for name in LAMBDAS)
    broken = replace(rollouts[1], verdict=Verdict("invalid", 0.0, "box"), cost=5.0)
    other.observe([rollouts[0], broken, *rollouts[2:]], 4)
    assert other.lambdas == pytest.approx(one.lambdas)
    assert scheme("dual").rewarded([broken] * 4, 4) == [broken] * 4
    assert scheme("affine").metrics() == {} and one.metrics()["effort/low/lambda"] > 90.0


def test_crossing_lambdas_are_an_alarm() -> None:
    row = {"step": 1, "effort/low/lambda": 10.0, "effort/high/lambda": 20.0}
    (alarm,) = alarms([row], ("low", "high"))
    assert alarm.kind == "prices crossing" and "crossed" in alarm.message
    assert not alarms([{**row, "effort/high/lambda": 5.0}], ("low", "high"))


def test_retangent_takes_the_slope_of_the_latest_steps() -> None:
    one = scheme("retangent")
    rng = np.random.default_rng(2)
    for _ in range(RETANGENT_STEPS - 1):
        one.observe(step_of(rng), 4)
    assert one.lambdas == LAMBDAS
    one.observe(step_of(rng), 4)
    assert one.lambdas != LAMBDAS and one.window == []
    values = list(one.lambdas.values())
    assert all(a >= 1.5 * b * (1 - 1e-9) for a, b in pairwise(values))


@pytest.mark.parametrize("kind", ["dual", "retangent", "std_normalised", "hard_budget", "toggle"])
def test_a_restored_scheme_goes_on_as_if_nothing_had_happened(kind: str) -> None:
    import json

    steps = [step_of(np.random.default_rng(k), 1.0 + 0.1 * k) for k in range(14)]
    through, before, after = scheme(kind), scheme(kind), scheme(kind)
    for rollouts in steps[:7]:
        through.observe(rollouts, 4)
        before.observe(rollouts, 4)
    after.restore(json.loads(json.dumps(before.state())))
    for rollouts in steps[7:]:
        assert through.rewarded(rollouts, 4) == after.rewarded(rollouts, 4)
        through.observe(rollouts, 4)
        after.observe(rollouts, 4)
    assert through.state() == after.state()
    through.restore({})
    assert through.step == 14


def test_what_cannot_work_is_refused_with_a_sentence() -> None:
    hopeless = {**LEVEL, "low": BaseLevel(0.002, 0.0, 40.0)}
    for kind in ("pass_rate_scaled", "correct_only"):
        with pytest.raises(UserError, match="solves nothing"):
            Scheme(kind, dict(LAMBDAS), hopeless, 20)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="high"):
        base_levels([], ["high"])
    with pytest.raises(ValueError, match="two effort levels"):
        Config.model_validate({"effort": {"levels": ("low",)}, "algo": {"reward": "retangent"}})


def test_base_levels_are_means_of_graded_rollouts() -> None:
    rollouts = measure(BASE, 5, 0)
    found = base_levels(rollouts, ("low", "medium", "high"))
    low = [r for r in rollouts if r.effort == "low"]
    assert found["low"].cost == pytest.approx(np.mean([r.cost for r in low]))
