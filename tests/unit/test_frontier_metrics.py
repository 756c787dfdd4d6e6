import json

import numpy as np
import pytest
from report_run import BASE, FINAL, measure

from frontrunner.effort.ladder import default_ladder
from frontrunner.errors import UserError
from frontrunner.evals.frontier import compare
from frontrunner.evals.frontier_metrics import (
    frontier_metrics,
    hull_cost,
    hull_height,
    sup_t_band,
)

LADDER = default_ladder().with_lambdas({"low": 12.0, "medium": 3.0, "high": 0.5})
COST, SUCCESS = np.array([[1.0, 2.0, 4.0]]), np.array([[0.4, 0.45, 0.7]])


def test_the_hull_by_hand() -> None:
    at = np.array([0.5, 1.0, 2.5, 4.0, 9.0])
    np.testing.assert_allclose(hull_height(COST, SUCCESS, at)[0], [0.2, 0.4, 0.55, 0.7, 0.7])
    back = hull_cost(COST, SUCCESS, np.array([0.2, 0.4, 0.55, 0.7, 0.71]))
    np.testing.assert_allclose(back[0], [0.5, 1.0, 2.5, 4.0, np.inf])


def test_a_dominated_point_is_off_the_hull() -> None:
    cost, success = np.array([[1.0, 3.0]]), np.array([[0.5, 0.4]])
    assert hull_height(cost, success, np.array([3.0]))[0, 0] == 0.5
    assert hull_cost(cost, success, np.array([0.4]))[0, 0] == pytest.approx(0.8)


def test_a_model_against_itself_shows_nothing() -> None:
    base = measure(BASE, 40, 1)
    found = frontier_metrics(base, base, LADDER, num_bootstrap=200)
    assert found.hypervolume.mean == found.hypervolume.high == 0.0
    assert found.dominance_p_value == 1.0
    for level in found.levels:
        assert level.p_value == 1.0 and level.hull_gap.mean == 0.0
        assert level.cost_ratio.low == level.cost_ratio.high == 1.0


def test_a_better_model_is_above_everywhere() -> None:
    base, final = measure(BASE, 80, 1), measure(FINAL, 80, 2)
    found = frontier_metrics(base, final, LADDER, num_bootstrap=400)
    assert found.num_tasks == 80 and len(found.costs) == len(found.band_low)
    assert found.hypervolume.low > 0.0
    for level in found.levels:
        assert level.p_holm >= level.p_value
        assert level.hull_gap.low <= level.hull_gap.mean <= level.hull_gap.high
    back = frontier_metrics(final, base, LADDER, num_bootstrap=400)
    assert back.hypervolume.mean < 0.0 < found.hypervolume.mean
    assert back.dominance_p_value > 0.9
    data = json.loads(json.dumps(back.to_json(), allow_nan=False))
    assert len(data["levels"]) == 3
    signs = [c.delta_j.excludes_zero for c in compare(base, final, LADDER)]
    assert all(level.p_value < 0.1 for level, sure in zip(found.levels, signs, strict=True) if sure)


def test_the_simultaneous_band_covers_whole_curves() -> None:
    """Random walks: pointwise intervals would miss somewhere far more often."""
    rng = np.random.default_rng(0)
    walks = rng.standard_normal((4000, 20)).cumsum(axis=1)
    low, high = sup_t_band(np.zeros(20), walks[:2000])
    inside = np.all((walks[2000:] >= low) & (walks[2000:] <= high), axis=1)
    assert 0.93 <= inside.mean() <= 0.97
    pointwise = np.quantile(walks[:2000], [0.025, 0.975], axis=0)
    both = (walks[2000:] >= pointwise[0]) & (walks[2000:] <= pointwise[1])
    assert np.all(both, axis=1).mean() < 0.9


def test_unshared_tasks_are_refused() -> None:
    base = measure(BASE, 10, 1)
    with pytest.raises(UserError, match="share 0 tasks"):
        frontier_metrics(base, [r for r in base if r.effort != "high"], LADDER)
