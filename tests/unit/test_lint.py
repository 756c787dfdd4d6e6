import numpy as np
import pytest

from frontrunner.effort.frontier import RolloutOutcome
from frontrunner.effort.lint import lint, parse_reward, stored_loss
from frontrunner.errors import UserError

COSTS = np.linspace(0.0, 20.0, 21).tolist()
TASKS = ((0.3, 8.0), (0.9, 2.0))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("S - lam * sqrt(1 + C)", "not constant"),
        ("where(C <= 9, S, -1)", "not constant"),
        ("where(C <= 2 * m, S, -1)", "not constant"),
        ("S * (1 - lam * C)", "when solved"),
        ("S - lam * p * C", "by task"),
        ("S - lam * C / m", "by task"),
        ("(S - lam * C) / sqrt(p * (1 - p))", "by task"),
    ],
)
def test_rewards_that_do_not_price_effort_are_flagged(text: str, rule: str) -> None:
    found = lint(parse_reward(text), COSTS, TASKS)
    assert found is not None and rule in found.rule
    for mean in ("cost", "success"):
        first, second = (
            sum(getattr(o, mean) for o in pair) for pair in (found.first, found.second)
        )
        assert first == pytest.approx(second)
    assert found.first_reward != pytest.approx(found.second_reward, abs=1e-9)
    assert found.rule in found.explain()


@pytest.mark.parametrize("text", ["S - lam * C", "S - 3 * C", "2 * S - lam * (C + 1)", "p + S - C"])
def test_affine_rewards_pass(text: str) -> None:
    assert lint(parse_reward(text), COSTS, TASKS) is None


@pytest.mark.parametrize("text", ["S -", "S - x", "S.real", "__import__('os')", "S if C else 0"])
def test_only_arithmetic_is_evaluated(text: str) -> None:
    with pytest.raises(UserError, match="The reward"):
        parse_reward(text)


def test_a_reward_outside_its_domain_is_refused() -> None:
    with pytest.raises(UserError, match="not finite"):
        lint(parse_reward("S - log(C)"), COSTS)


def test_the_loss_on_stored_rollouts_is_nothing_for_the_linear_reward_only() -> None:
    """Half of the tasks are hopeless: effort there is money wasted."""
    rollouts = []
    for task in range(40):
        for effort, cost in (("low", 1.0), ("high", 8.0)):
            rate = 0 if task % 2 else (1 if effort == "high" else task % 4 // 2)
            outcome = RolloutOutcome(f"t{task}", effort, float(rate), cost)
            rollouts += [outcome] * 4
    prices = np.geomspace(0.001, 1.0, 25).tolist()
    assert stored_loss(parse_reward("S - lam * C"), rollouts, prices).largest == 0.0
    wasteful = parse_reward("S + where(p < 0.1, C, -lam * C)")
    found = stored_loss(wasteful, rollouts, prices)
    assert found.largest == pytest.approx(0.25) and found.num_tasks == 40
    with pytest.raises(UserError, match="two rollouts"):
        stored_loss(parse_reward("S"), rollouts[:4], prices)


@pytest.mark.parametrize("text", ["S ** 9 ** 9 ** 9", "S - 1 / 0 * C"])
def test_a_reward_without_a_value_is_refused_at_once(text: str) -> None:
    with pytest.raises(UserError, match="has no value"):
        lint(parse_reward(text), COSTS, TASKS)


@pytest.mark.parametrize("text", ["S - 'a'", "S - True", "S - 1e999", "S - " + "9" * 400])
def test_only_numbers_are_constants(text: str) -> None:
    with pytest.raises(UserError, match="may use numbers"):
        parse_reward(text)
