import importlib.util
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from frontrunner.envs.evidence import MIX_1, MIX_2, Evidence, Kind, kinds

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location(
    "reward_loss", ROOT / "experiments/reward_loss/run.py"
)
assert spec is not None and spec.loader is not None
reward_loss = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reward_loss)

PRICES = np.geomspace(1e-4, 0.5, 65)[:, None, None]


@pytest.fixture(scope="module")
def mixes() -> tuple[Evidence, Evidence]:
    return Evidence(MIX_1), Evidence(MIX_2)


def brute_force(q: float, horizon: int, price: float) -> float:
    """Value of the best policy by recursion over (ones, zeros), without symmetry or tables."""

    def value(ones: int, zeros: int) -> float:
        up, down = q**ones * (1 - q) ** zeros, q**zeros * (1 - q) ** ones
        heads = up / (up + down)
        stop = max(heads, 1 - heads) - price * (ones + zeros)
        if ones + zeros == horizon:
            return stop
        see = heads * q + (1 - heads) * (1 - q)
        return max(stop, see * value(ones + 1, zeros) + (1 - see) * value(ones, zeros + 1))

    return value(0, 0)


@pytest.mark.parametrize("price", [0.001, 0.01, 0.05])
def test_the_optimum_is_that_of_brute_force(price: float) -> None:
    env = Evidence([Kind((0.65,))], max_looks=9)
    cost, success = env.linear(price)
    assert success[0] - price * cost[0] == pytest.approx(brute_force(0.65, 9, price), abs=1e-12)


def test_fixed_looks_are_a_binomial() -> None:
    env = Evidence([Kind((0.7,), unit_cost=2.0)], max_looks=6)
    cost, success = env.evaluate(env.fixed(3))
    assert cost[0] == pytest.approx(6.0)
    assert success[0] == pytest.approx(0.7**3 + 3 * 0.7**2 * 0.3)


def test_hidden_accuracies_cost_success_and_known_ones_are_their_mixture() -> None:
    hidden, known = Evidence([Kind((0.6, 0.9))]), Evidence(kinds((0.6, 0.9)))
    cost, success = hidden.linear(0.01)
    best = known.frontier.height(cost[0])
    assert success[0] < best
    stop = hidden.optimum(hidden.stop_values(lambda c, s: s - 0.01 * c))
    apart = [Evidence([Kind((q,))]).evaluate(stop) for q in (0.6, 0.9)]
    assert np.mean([c[0] for c, _ in apart]) == pytest.approx(cost[0])
    assert np.mean([s[0] for _, s in apart]) == pytest.approx(success[0])


def test_the_frontier_is_concave_and_linear_rewards_lose_nothing(
    mixes: tuple[Evidence, Evidence],
) -> None:
    for env in mixes:
        f = env.frontier
        slopes = np.diff(f.success) / np.diff(f.cost)
        assert f.cost[0] == 0.0 and f.success[0] == pytest.approx(0.5)
        assert all(a >= b - 1e-9 for a, b in pairwise(slopes))
        loss = env.loss(lambda c, s: s - PRICES * c)
        assert np.all(np.abs(loss) < 1e-6)


def test_slopes_at_the_optimum_bracket_the_price(mixes: tuple[Evidence, Evidence]) -> None:
    env = mixes[0]
    for price in (0.03, 0.009, 0.003):
        cost = env.mean(env.linear(price)[0])
        assert env.frontier.slope(cost + 1e-6) <= price + 1e-9
        assert env.frontier.slope(cost - 1e-6) >= price - 1e-9


@pytest.mark.parametrize(
    ("mix", "name", "largest"),
    [
        (0, "composer k=.2 q=.5", 0.2),
        (0, "composer k=.5 q=.9", 1.5),
        (0, "mean-cost normalised", 2.0),
        (0, "pass-rate", 3.9),
        (0, "std", 3.9),
        (0, "hard budget", 3.1),
        (0, "fixed looks", 4.8),
        (1, "composer k=.2 q=.5", 0.2),
        (1, "composer k=.5 q=.9", 1.1),
        (1, "mean-cost normalised", 1.2),
        (1, "pass-rate", 34.5),
        (1, "hard budget", 3.5),
        (1, "fixed looks", 5.0),
    ],
)
def test_losses_of_other_rewards_in_points(
    mixes: tuple[Evidence, Evidence], mix: int, name: str, largest: float
) -> None:
    """The grid of multipliers moves the maximum by 0.2 points."""
    loss = reward_loss.losses(mixes[mix])[name]
    assert loss.min() > -1e-4
    assert loss.max() == pytest.approx(largest, abs=0.25)


def test_senseless_environments_are_refused() -> None:
    with pytest.raises(ValueError, match="Accuracies"):
        Evidence([Kind((0.4,))])
    with pytest.raises(ValueError, match="at least one kind"):
        Evidence([])
