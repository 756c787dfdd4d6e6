import json

import numpy as np
import pytest

from frontrunner.effort.frontier import FrontierFit, RolloutOutcome, fit, project
from frontrunner.effort.tangent import concave_secants, tangent_slopes
from frontrunner.errors import UserError

LADDER = ("low", "medium", "high")
COSTS = np.array([0.01, 0.02, 0.04])


def quadratic(c: np.ndarray) -> np.ndarray:
    """A concave frontier in log cost: .42, .53, .58 at 1, 2 and 4 cents."""
    x = np.log(c / 0.01)
    return 0.42 + 0.2 * x - 0.06 * x**2


TRUE_SLOPES = (0.2 - 0.12 * np.log(COSTS / 0.01)) / COSTS


def simulate(
    num_tasks: int, num_runs: int, seed: int, success: np.ndarray | None = None
) -> list[RolloutOutcome]:
    """Rollouts whose tasks differ in difficulty and length; failures are longer."""
    rng = np.random.default_rng(seed)
    rates = quadratic(COSTS) if success is None else success
    points = []
    for task in range(num_tasks):
        difficulty, length = rng.uniform(-0.3, 0.3), rng.lognormal(-0.08, 0.4)
        for name, rate, cost in zip(LADDER, rates, COSTS, strict=True):
            for _ in range(num_runs):
                solved = float(rng.random() < rate + difficulty)
                spent = cost * length * rng.lognormal(-0.02, 0.2)
                points.append(RolloutOutcome(f"t{task}", name, solved, spent))
    return points


def coverage(num_draws: int, num_tasks: int, num_runs: int) -> np.ndarray:
    hits = np.zeros(3)
    for seed in range(num_draws):
        points = simulate(num_tasks, num_runs, seed)
        result = fit(points, LADDER, num_bootstrap=400, seed=seed)
        for k, level in enumerate(result.levels):
            hits[k] += level.slope_low <= TRUE_SLOPES[k] <= level.slope_high
    return hits / num_draws


def test_tangents_of_a_quadratic_frontier_are_exact() -> None:
    slopes = tangent_slopes(COSTS[None], quadratic(COSTS)[None])
    np.testing.assert_allclose(slopes[0], TRUE_SLOPES, rtol=1e-12)


def test_secants_are_concave_and_match_the_least_concave_majorant() -> None:
    x = np.array([[0.0, 1.0, 2.0, 3.0]])
    secants = concave_secants(x, np.array([[0.1, 0.2, 0.6, 0.5]]))
    np.testing.assert_allclose(secants, [[0.25, 0.25, 0.0]])


def test_slopes_of_a_simulated_frontier_are_near_the_truth() -> None:
    result = fit(simulate(400, 4, seed=5), LADDER, seed=1)
    for level, true in zip(result.levels, TRUE_SLOPES, strict=True):
        assert level.slope_low < true < level.slope_high
        assert level.slope_low <= level.target <= level.slope_high
    values = list(result.lambdas.values())
    assert values[0] >= 1.5 * values[1] >= 1.5**2 * values[2] > 0.0
    assert len(result.explanations) >= 4 and "err low" in " ".join(result.explanations)


def test_coverage_quick() -> None:
    assert np.all(coverage(40, 150, 3) >= 0.85)


@pytest.mark.slow
def test_intervals_cover_the_true_slope() -> None:
    assert np.all(coverage(500, 500, 4) >= 0.93)


def test_a_dominated_high_level_still_gets_a_positive_separate_lambda() -> None:
    points = simulate(300, 4, 0, np.array([0.42, 0.60, 0.48]))
    result = fit(points, LADDER)
    values = list(result.lambdas.values())
    assert values[1] / values[2] >= 1.5 and values[2] > 0.0
    text = " ".join(result.explanations)
    assert "dominated" in text and "floor" in text


def test_projection_moves_the_higher_effort_down() -> None:
    moved = project(np.array([10.0, 9.0, 0.0]), np.array([1.0, 0.5, 0.25]), 1.5)
    np.testing.assert_allclose(moved, [10.0, 10.0 / 1.5, 0.25])


def test_json_round_trip_and_reproducibility() -> None:
    points = simulate(30, 2, 3)
    result = fit(points, LADDER, num_bootstrap=200)
    assert FrontierFit.from_json(json.loads(json.dumps(result.to_json()))) == result
    assert fit(points, LADDER, num_bootstrap=200) == result


def test_tasks_without_every_level_are_left_out_and_counted() -> None:
    points = [p for p in simulate(30, 2, 3) if (p.task_id, p.effort) != ("t0", "high")]
    result = fit(points, LADDER, num_bootstrap=200)
    assert result.num_tasks == 29
    assert any("1 of 30 tasks" in s for s in result.explanations)


def replaced(**changes: float) -> list[RolloutOutcome]:
    """Every level on 20 tasks; `low_cost=...` and the like change one number."""
    points = []
    for name, success, cost in zip(LADDER, (0.4, 0.5, 0.6), COSTS, strict=True):
        s, c = changes.get(f"{name}_success", success), changes.get(f"{name}_cost", cost)
        points += [RolloutOutcome(f"t{i}", name, s, c) for i in range(20)]
    return points


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (simulate(5, 2, 0), "Only 5 tasks.*Measure more"),
        ([p for p in replaced() if p.effort != "high"], "no rollout at effort level 'high'"),
        (replaced(medium_cost=0.0105), "'low' and 'medium' cost about the same.*prompts"),
        (replaced(high_cost=0.001), "'medium' and 'high'.*wrong order"),
        (replaced(low_success=0.0, medium_success=0.0, high_success=0.0), "solved no task"),
        (replaced(low_success=0.7), "does not rise with cost"),
        (replaced(low_cost=0.0), "cost nothing"),
        ([*replaced(), RolloutOutcome("t0", "max", 1.0, 1.0)], "'max', which is not in the ladder"),
    ],
)
def test_data_that_supports_no_slope_is_refused_with_advice(
    points: list[RolloutOutcome], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        fit(points, LADDER)


def test_one_level_needs_an_explicit_lambda() -> None:
    with pytest.raises(UserError, match="set its lambda"):
        fit(simulate(20, 1, 0), ("low",))


def test_two_levels_use_their_secant() -> None:
    result = fit([p for p in replaced() if p.effort != "high"], LADDER[:2], num_bootstrap=100)
    expected = 0.1 / np.log(2.0) / COSTS[:2]
    np.testing.assert_allclose([e.slope for e in result.levels], expected)
