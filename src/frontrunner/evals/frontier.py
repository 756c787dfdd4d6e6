"""The cost-performance frontier: where every effort level stands, and what training moved.

The primary number is Delta J_e = Delta S - lambda_e * Delta C at the fixed lambda_e: how far the
point moved across the base frontier's tangent. It is a mean of per-rollout scalars, so it pairs by
task and is the most powerful summary.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from frontrunner.effort.frontier import FrontierFit, RolloutOutcome
from frontrunner.effort.ladder import Ladder
from frontrunner.errors import UserError
from frontrunner.evals.statistics import (
    NUM_BOOTSTRAP,
    Interval,
    cluster_means,
    means_interval,
    paired_interval,
)
from frontrunner.types import FrontierPoint, Rollout


@dataclass(frozen=True, slots=True)
class LevelComparison:
    """What training moved at one effort level; intervals are paired by task."""

    effort: str
    lambda_: float
    base: FrontierPoint
    final: FrontierPoint
    delta_success: Interval
    delta_cost_usd: Interval
    delta_j: Interval

    def to_json(self) -> dict[str, Any]:
        """One entry of `levels` in frontier.json."""
        return {
            "name": self.effort,
            "lambda": self.lambda_,
            "base": _point_summary(self.base),
            "final": _point_summary(self.final),
            "delta_success": self.delta_success.to_json(),
            "delta_cost_usd": self.delta_cost_usd.to_json(),
            "delta_j": self.delta_j.to_json(),
        }


def outcomes(rollouts: Sequence[Rollout]) -> list[RolloutOutcome]:
    """Graded and priced rollouts as the slope fit takes them; the rest is left out."""
    return [
        RolloutOutcome(r.task_id, r.effort, r.success, r.cost)
        for r in rollouts
        if r.valid and r.cost is not None
    ]


def points(
    rollouts: Sequence[Rollout],
    ladder: Ladder,
    *,
    num_bootstrap: int = NUM_BOOTSTRAP,
    seed: int = 0,
) -> list[FrontierPoint]:
    """One point per level of the ladder, lowest effort first.

    Raises `UserError` for a level with fewer than two tasks, as it has no interval.
    """
    result = []
    for name in ladder.names:
        success, cost, num_rollouts = _level_means(rollouts, name)
        s = means_interval(success, num_bootstrap=num_bootstrap, seed=seed)
        c = means_interval(cost, num_bootstrap=num_bootstrap, seed=seed)
        result.append(
            FrontierPoint(
                effort=name,
                success=s.mean,
                success_low=s.low,
                success_high=s.high,
                cost=c.mean,
                cost_low=c.low,
                cost_high=c.high,
                num_tasks=len(success),
                num_rollouts=num_rollouts,
            )
        )
    return result


def compare(
    base: Sequence[Rollout],
    final: Sequence[Rollout],
    ladder: Ladder,
    *,
    num_bootstrap: int = NUM_BOOTSTRAP,
    seed: int = 0,
) -> list[LevelComparison]:
    """Differences final - base per level, over the tasks that both measured."""
    lambdas = ladder.lambdas
    base_points = points(base, ladder, num_bootstrap=num_bootstrap, seed=seed)
    final_points = points(final, ladder, num_bootstrap=num_bootstrap, seed=seed)
    result = []
    for level, before, after in zip(ladder, base_points, final_points, strict=True):
        s0, c0, _ = _level_means(base, level.name)
        s1, c1, _ = _level_means(final, level.name)
        if len(s0.keys() & s1.keys()) < 2:
            raise UserError(
                f"The two measurements share {len(s0.keys() & s1.keys())} tasks at effort level "
                f"{level.name!r}; measure both on the same tasks."
            )
        lam = lambdas[level.name]
        j0 = {task: s0[task] - lam * c0[task] for task in s0}
        j1 = {task: s1[task] - lam * c1[task] for task in s1}
        success, cost, j = (
            paired_interval(x, y, num_bootstrap=num_bootstrap, seed=seed)
            for x, y in ((s0, s1), (c0, c1), (j0, j1))
        )
        result.append(LevelComparison(level.name, lam, before, after, success, cost, j))
    return result


def _level_means(
    rollouts: Sequence[Rollout], effort: str
) -> tuple[dict[Hashable, float], dict[Hashable, float], int]:
    """Mean success and cost per task at one level, and the number of rollouts."""
    chosen = [o for o in outcomes(rollouts) if o.effort == effort]
    tasks = [o.task_id for o in chosen]
    success = cluster_means([o.success for o in chosen], tasks)
    if len(success) < 2:
        raise UserError(
            f"Effort level {effort!r} has graded and priced rollouts on {len(success)} tasks; "
            "a frontier point with an interval needs at least 2."
        )
    return success, cluster_means([o.cost for o in chosen], tasks), len(chosen)


def dominated(frontier: Sequence[FrontierPoint]) -> list[bool]:
    """Per point: another one costs no more and solves no less, and is better in one of the two."""
    return [
        any(
            q.cost <= p.cost
            and q.success >= p.success
            and (q.cost, q.success) != (p.cost, p.success)
            for q in frontier
        )
        for p in frontier
    ]


def concave_hull(frontier: Sequence[FrontierPoint]) -> list[tuple[float, float]]:
    """Vertices (cost, success) of the upper concave hull up to its highest point, cheapest first.

    What mixing effort levels at random could attain.
    """
    hull: list[tuple[float, float]] = []
    for c, s in sorted({(p.cost, p.success) for p in frontier}, key=lambda p: (p[0], -p[1])):
        if hull and s <= hull[-1][1]:
            continue
        while len(hull) >= 2 and _turns_left(hull[-2], hull[-1], (c, s)):
            hull.pop()
        hull.append((c, s))
    return hull


def _turns_left(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (c[1] - b[1]) * (b[0] - a[0]) >= (b[1] - a[1]) * (c[0] - b[0])


def frontier_json(
    ladder: Ladder,
    base: Sequence[Rollout],
    final: Sequence[Rollout] | None,
    *,
    fit: FrontierFit | None = None,
    alarms: Sequence[Mapping[str, Any]] = (),
    wall_seconds: float = 0.0,
    seed: int = 0,
    config_hash: str = "",
    num_bootstrap: int = NUM_BOOTSTRAP,
) -> dict[str, Any]:
    """The content of frontier.json; `final` None while the run has not been measured again.

    `levels` is what `report --json` prints; `points` has the intervals of the figure.
    """
    before = points(base, ladder, num_bootstrap=num_bootstrap, seed=seed)
    after: list[FrontierPoint] | None = None
    if final is None:
        levels = [
            {
                "name": level.name,
                "lambda": level.lambda_,
                "base": _point_summary(point),
                "final": None,
                "delta_success": None,
                "delta_cost_usd": None,
                "delta_j": None,
            }
            for level, point in zip(ladder, before, strict=True)
        ]
    else:
        compared = compare(base, final, ladder, num_bootstrap=num_bootstrap, seed=seed)
        levels = [c.to_json() for c in compared]
        after = [c.final for c in compared]
    return {
        "levels": levels,
        "points": {
            "base": _points_json(before),
            "final": None if after is None else _points_json(after),
        },
        "fit": None if fit is None else fit.to_json(),
        "alarms": [dict(a) for a in alarms],
        "wall_seconds": wall_seconds,
        "seed": seed,
        "config_hash": config_hash,
    }


def _points_json(frontier: Sequence[FrontierPoint]) -> list[dict[str, Any]]:
    flags = dominated(frontier)
    return [{**asdict(p), "dominated": flag} for p, flag in zip(frontier, flags, strict=True)]


def _point_summary(point: FrontierPoint) -> dict[str, float | int]:
    return {
        "success": point.success,
        "cost_usd": point.cost,
        "num_tasks": point.num_tasks,
        "num_rollouts": point.num_rollouts,
    }
