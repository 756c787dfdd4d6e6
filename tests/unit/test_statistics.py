import numpy as np
import pytest
from report_run import BASE, FINAL, measure

from frontrunner.effort.ladder import default_ladder
from frontrunner.errors import UserError
from frontrunner.evals.frontier import compare, concave_hull, dominated, frontier_json, points
from frontrunner.evals.statistics import (
    cluster_interval,
    cluster_means,
    holm,
    means_interval,
    paired_interval,
    seeds_interval,
    sign_flip_p_value,
    wilson,
)
from frontrunner.types import FrontierPoint

LADDER = default_ladder().with_lambdas({"low": 12.0, "medium": 3.0, "high": 0.5})


def clustered(rng: np.random.Generator, num_tasks: int, num_runs: int) -> tuple[list, list]:
    rates = rng.beta(2, 2, num_tasks)
    tasks = np.repeat(np.arange(num_tasks), num_runs)
    return list((rng.random(len(tasks)) < rates[tasks]).astype(float)), list(tasks)


@pytest.mark.parametrize("num_tasks", [12, 60])
def test_clustered_intervals_cover_the_truth(num_tasks: int) -> None:
    rng, hits = np.random.default_rng(0), 0
    for seed in range(400):
        values, tasks = clustered(rng, num_tasks, 3)
        found = cluster_interval(values, tasks, num_bootstrap=400, seed=seed)
        hits += found.low <= 0.5 <= found.high
    assert 0.92 <= hits / 400 <= 0.985


def test_duplicating_every_rollout_changes_nothing() -> None:
    values, tasks = clustered(np.random.default_rng(1), 40, 2)
    assert cluster_interval(values * 2, tasks * 2) == cluster_interval(values, tasks)


def test_pairing_removes_the_difficulty_of_tasks() -> None:
    rng = np.random.default_rng(2)
    before = {i: float(x) for i, x in enumerate(rng.random(50))}
    after = {i: x + 0.05 + 0.01 * float(rng.standard_normal()) for i, x in before.items()}
    paired = paired_interval(before, after)
    assert paired.excludes_zero and paired.high - paired.low < 0.02
    assert paired.mean == pytest.approx(0.05, abs=0.01)
    alone = means_interval(before)
    assert alone.high - alone.low > 5 * (paired.high - paired.low)


def test_one_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        cluster_interval([1.0, 0.0, 1.0], ["t", "t", "t"])
    with pytest.raises(ValueError, match="at least 2"):
        paired_interval({"a": 1.0}, {"b": 1.0})


def test_training_seeds_widen_the_interval() -> None:
    rng = np.random.default_rng(3)
    effects = rng.normal(0.05, 0.05, 6)
    runs = [{t: float(e + 0.1 * rng.standard_normal()) for t in range(100)} for e in effects]
    over_seeds = seeds_interval(runs, num_bootstrap=1000)
    one = means_interval(runs[0])
    assert over_seeds.low < 0.05 < over_seeds.high
    assert over_seeds.high - over_seeds.low > 1.5 * (one.high - one.low)
    with pytest.raises(ValueError, match="2 training seeds"):
        seeds_interval(runs[:1])


def test_wilson_against_published_values() -> None:
    """Newcombe 1998, table I, method 3: 81/263 and 0/20."""
    found = wilson(81, 263)
    assert (round(found.low, 4), round(found.high, 4)) == (0.2553, 0.3662)
    none = wilson(0, 20)
    assert (none.low, round(none.high, 4)) == (0.0, 0.1611)
    with pytest.raises(ValueError, match="proportion"):
        wilson(3, 2)


def test_sign_flips_hold_their_level_and_find_effects() -> None:
    rng = np.random.default_rng(4)
    null = [sign_flip_p_value(rng.standard_normal(30), num_draws=199, seed=i) for i in range(300)]
    assert 0.02 <= np.mean(np.array(null) <= 0.05) <= 0.085
    assert sign_flip_p_value(rng.standard_normal(30) + 2.0, num_draws=999) == 0.001


def test_holm_by_hand() -> None:
    adjusted = holm({"low": 0.01, "medium": 0.04, "high": 0.03})
    assert adjusted == pytest.approx({"low": 0.03, "medium": 0.06, "high": 0.06})


def test_compare_is_a_mean_of_paired_differences() -> None:
    base, final = measure(BASE, 40, 1), measure(FINAL, 40, 2)
    for level in compare(base, final, LADDER, num_bootstrap=200):
        expected = level.delta_success.mean - level.lambda_ * level.delta_cost_usd.mean
        assert level.delta_j.mean == pytest.approx(expected)
        assert level.delta_success.mean == pytest.approx(level.final.success - level.base.success)
        assert level.delta_j.low < level.delta_j.mean < level.delta_j.high
    same = compare(base, base, LADDER, num_bootstrap=200)
    assert all(c.delta_j.mean == c.delta_j.low == c.delta_j.high == 0.0 for c in same)


def test_swapping_the_models_negates_the_differences() -> None:
    base, final = measure(BASE, 20, 1), measure(FINAL, 20, 2)
    there = compare(base, final, LADDER, num_bootstrap=200)[0].delta_j
    back = compare(final, base, LADDER, num_bootstrap=200)[0].delta_j
    assert (back.low, back.mean, back.high) == pytest.approx((-there.high, -there.mean, -there.low))


def test_points_follow_the_ladder_and_missing_levels_are_refused() -> None:
    rollouts = measure(BASE, 20, 1)
    found = points(rollouts, LADDER, num_bootstrap=200)
    assert [p.effort for p in found] == ["low", "medium", "high"]
    assert all(p.num_tasks == 20 and p.num_rollouts == 40 for p in found)
    assert all(p.cost_low < p.cost < p.cost_high for p in found)
    with pytest.raises(UserError, match="'high'"):
        points([r for r in rollouts if r.effort != "high"], LADDER)


def point(cost: float, success: float) -> FrontierPoint:
    return FrontierPoint("e", success, success, success, cost, cost, cost, 10, 10)


def test_domination_and_hull() -> None:
    frontier = [point(1.0, 0.4), point(2.0, 0.45), point(3.0, 0.6), point(9.0, 0.59)]
    assert dominated(frontier) == [False, False, False, True]
    assert concave_hull(frontier) == [(1.0, 0.4), (3.0, 0.6)]


def test_means_keep_the_order_of_tasks() -> None:
    assert cluster_means([1.0, 0.0, 0.5], ["b", "a", "b"]) == {"b": 0.75, "a": 0.0}


def test_a_run_without_a_final_measurement_has_nulls() -> None:
    data = frontier_json(LADDER, measure(BASE, 10, 1), None, num_bootstrap=100)
    assert data["points"]["final"] is None
    assert all(e["final"] is None and e["delta_j"] is None for e in data["levels"])
