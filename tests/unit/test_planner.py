import numpy as np
import pytest

from frontrunner.evals.planner import Noise, noise_of, plan, power


@pytest.mark.parametrize(
    ("delta", "tasks", "runs", "seeds", "expected"),
    [
        (0.02, 500, 4, 1, 0.30),
        (0.02, 2000, 4, 1, 0.88),
        (0.03, 500, 4, 1, 0.58),
        (0.03, 1000, 4, 1, 0.85),
        (0.03, 2000, 4, 1, 0.99),
        (0.05, 100, 3, 1, 0.32),
        (0.05, 100, 5, 1, 0.46),
        (0.03, 1000, 2, 3, 0.28),
        (0.03, 1000, 2, 5, 0.72),
        (0.03, 2000, 4, 5, 0.86),
        (0.03, 1000, 2, 8, 0.96),
        (0.02, 1000, 2, 8, 0.64),
    ],
)
def test_default_noise_gives_the_known_powers(
    delta: float, tasks: int, runs: int, seeds: int, expected: float
) -> None:
    assert power(delta, tasks, runs, seeds) == pytest.approx(expected, abs=0.07)


def test_power_agrees_with_simulation() -> None:
    rng, noise, num = np.random.default_rng(0), Noise(), 4000
    spread = np.sqrt(noise.seed**2 + noise.variance(500, 4))
    draws = 0.04 + spread * rng.standard_normal((num, 5))
    t = draws.mean(1) / draws.std(1, ddof=1) * np.sqrt(5)
    assert power(0.04, 500, 4, 5) == pytest.approx(np.mean(np.abs(t) > 2.776), abs=0.025)


def test_plans_reach_their_power_and_not_with_a_task_less() -> None:
    for seeds in (1, 8, 10):
        found = plan(0.03, seeds, num_levels=3)
        assert found is not None and found.power >= 0.8
        assert power(0.03, found.num_tasks - 1, found.num_runs, seeds, alpha=0.05 / 3) < 0.8
    assert plan(0.03, 5, num_levels=3) is None
    assert plan(0.02, 3) is None  # the spread of seeds alone is too large


def test_noise_is_recovered_from_measurements() -> None:
    rng = np.random.default_rng(1)
    effects = 0.03 + np.sqrt(0.03) * rng.standard_normal(4000)
    before = {f"t{i}": list(0.3 * rng.standard_normal(4)) for i in range(4000)}
    after = {f"t{i}": list(e + 0.4 * rng.standard_normal(4)) for i, e in enumerate(effects)}
    found = noise_of(before, after)
    assert found.run == pytest.approx(0.25, rel=0.05)
    assert found.task == pytest.approx(0.03, rel=0.25)
    with pytest.raises(ValueError, match="2 tasks"):
        noise_of({"a": [1.0]}, {"a": [1.0]})
