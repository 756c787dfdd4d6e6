"""How two measured frontiers differ as curves, beyond Delta J at single levels.

A frontier's hull is what mixing effort levels at random attains, with (0, 0), not trying, as one
of the things that can be mixed. On the hull: the vertical gap at matched cost, the cost ratio at
matched success, the hypervolume in log cost, and a band over a whole range of costs. Everything is
paired by task and resampled by task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from frontrunner.effort.bootstrap import Floats, cluster_weights, interval
from frontrunner.effort.ladder import Ladder
from frontrunner.errors import UserError
from frontrunner.evals.frontier import concave_hull, dominated, outcomes, points
from frontrunner.evals.statistics import NUM_BOOTSTRAP, Interval, holm, sign_flip_p_value
from frontrunner.types import Rollout

GRID_SIZE = 33
"""Costs, evenly spaced in log, at which curves are compared."""

_NEVER = 1e9
"""Stands for an infinite cost ratio inside quantiles."""


@dataclass(frozen=True, slots=True)
class LevelMetrics:
    """Final against base at one effort level of the base."""

    effort: str
    p_value: float
    """Delta J = 0, by sign flips of whole tasks, two-sided."""
    p_holm: float
    """The same, adjusted for the number of levels: compare with 0.05."""
    hull_gap: Interval
    """Success gained on the hull at the base level's mean cost."""
    cost_ratio: Interval
    """Cost on the final hull over cost on the base hull at the base level's success; below 1 is
    cheaper, infinite where the final hull does not reach that success."""
    budget_auc: Interval
    """Change of the success under a budget, averaged over budgets from 0 to `max_budget`."""


@dataclass(frozen=True, slots=True)
class FrontierMetrics:
    """Two frontiers compared; costs in USD, intervals 95 %."""

    levels: tuple[LevelMetrics, ...]
    hypervolume: Interval
    """Change of the mean height of the hull over log cost, from the cheapest to the dearest base
    level: the hypervolume against (success 0, dearest cost), over the range of log cost."""
    costs: tuple[float, ...]
    """Grid of the band, USD."""
    gap: tuple[float, ...]
    band_low: tuple[float, ...]
    band_high: tuple[float, ...]
    """Sup-t band: covers the whole curve of gaps at once with 95 %."""
    dominance_p_value: float
    """Share of resamples in which the final hull is not above the base hull everywhere."""
    base_hull: tuple[tuple[float, float], ...]
    final_hull: tuple[tuple[float, float], ...]
    base_dominated: float
    final_dominated: float
    """Share of effort levels that another level of the same model dominates."""
    max_budget: float
    num_tasks: int
    num_bootstrap: int
    seed: int

    def to_json(self) -> dict[str, Any]:
        """Infinite cost ratios become None."""
        data = asdict(self)
        for level in data["levels"]:
            ratio = level["cost_ratio"]
            level["cost_ratio"] = {k: v if np.isfinite(v) else None for k, v in ratio.items()}
        return data


def hull_height(cost: Floats, success: Floats, at: Floats) -> Floats:
    """Success on the hull at costs `at` `[A]`, for points `[B, K]`: `[B, A]`."""
    c, s = _with_origin(cost), _with_origin(success)
    best = np.zeros((len(c), len(at)))
    for i in range(c.shape[1]):
        ci, si = c[:, i, None], s[:, i, None]
        best = np.where(ci <= at, np.maximum(best, si), best)
        for j in range(c.shape[1]):
            run, rise = c[:, j, None] - ci, s[:, j, None] - si
            between = (ci <= at) & (at <= ci + run) & (run > 0.0)
            mixed = si + rise * (at - ci) / np.where(run > 0.0, run, 1.0)
            best = np.where(between, np.maximum(best, mixed), best)
    return best


def hull_cost(cost: Floats, success: Floats, at: Floats) -> Floats:
    """Least cost on the hull of reaching success `at`, `[B, A]`; infinite where it does not.

    `cost`, `success`: `[B, K]`; `at`: `[A]` or `[B, A]`.
    """
    c, s = _with_origin(cost), _with_origin(success)
    best = np.full((len(c), at.shape[-1]), np.inf)
    for i in range(c.shape[1]):
        ci, si = c[:, i, None], s[:, i, None]
        best = np.where(si >= at, np.minimum(best, ci), best)
        for j in range(c.shape[1]):
            run, rise = c[:, j, None] - ci, s[:, j, None] - si
            between = (si <= at) & (at <= si + rise) & (rise > 0.0)
            mixed = ci + run * (at - si) / np.where(rise > 0.0, rise, 1.0)
            best = np.where(between, np.minimum(best, mixed), best)
    return best


def _with_origin(values: Floats) -> Floats:
    return np.concatenate([np.zeros((len(values), 1)), values], axis=1)


def sup_t_band(estimate: Floats, draws: Floats, level: float = 0.95) -> tuple[Floats, Floats]:
    """Ends of a band `[A]` that covers the whole curve at once; `draws`: `[B, A]`.

    One multiple of the pointwise standard error, such that the largest standardised deviation over
    the curve stays below it in `level` of the resamples (Montiel Olea and Plagborg-Moller, 2019).
    """
    error = draws.std(axis=0)
    deviation = np.abs(draws - estimate) / np.where(error > 0.0, error, np.inf)
    half = np.quantile(deviation.max(axis=1), level) * error
    return estimate - half, estimate + half


def frontier_metrics(
    base: Sequence[Rollout],
    final: Sequence[Rollout],
    ladder: Ladder,
    *,
    max_budget: float | None = None,
    num_bootstrap: int = NUM_BOOTSTRAP,
    seed: int = 0,
) -> FrontierMetrics:
    """Everything at once, over the tasks that both measured at every level.

    `max_budget` defaults to twice the mean cost of the base's dearest level. Raises `UserError`
    for fewer than two such tasks.
    """
    if max_budget is None:
        max_budget = 2.0 * max(p.cost for p in points(base, ladder, num_bootstrap=100))
    before, after = (_cells(r, ladder.names, max_budget) for r in (base, final))
    tasks = sorted(before.keys() & after.keys())
    if len(tasks) < 2:
        raise UserError(
            f"The two measurements share {len(tasks)} tasks with rollouts at every effort level; "
            "measure both on the same tasks."
        )
    s0, c0, u0 = np.moveaxis(np.array([before[t] for t in tasks]), 2, 0)
    s1, c1, u1 = np.moveaxis(np.array([after[t] for t in tasks]), 2, 0)
    # The sample itself rides along as row 0, so that estimates and draws share one path.
    sample = np.full((1, len(tasks)), 1.0 / len(tasks))
    weights = np.concatenate([sample, cluster_weights(len(tasks), num_bootstrap, seed)])
    old, new = (weights @ c0, weights @ s0), (weights @ c1, weights @ s1)
    level_costs = c0.mean(axis=0)
    lambdas = np.array([ladder.lambdas[name] for name in ladder.names])
    delta_j = (s1 - s0) - lambdas * (c1 - c0)
    grid = np.geomspace(level_costs.min(), level_costs.max(), GRID_SIZE)
    gaps = hull_height(*new, grid) - hull_height(*old, grid)
    area = np.atleast_2d(np.trapezoid(gaps, dx=1.0 / (GRID_SIZE - 1), axis=1)).T
    low, high = sup_t_band(gaps[0], gaps[1:])
    base_points, final_points = (points(r, ladder, num_bootstrap=100) for r in (base, final))
    return FrontierMetrics(
        levels=_levels(ladder.names, delta_j, old, new, weights @ (u1 - u0), seed),
        hypervolume=_intervals(area, len(tasks))[0],
        costs=tuple(grid.tolist()),
        gap=tuple(gaps[0].tolist()),
        band_low=tuple(low.tolist()),
        band_high=tuple(high.tolist()),
        dominance_p_value=float((1 + np.sum(gaps[1:].min(axis=1) <= 0.0)) / (num_bootstrap + 1)),
        base_hull=tuple(concave_hull(base_points)),
        final_hull=tuple(concave_hull(final_points)),
        base_dominated=float(np.mean(dominated(base_points))),
        final_dominated=float(np.mean(dominated(final_points))),
        max_budget=max_budget,
        num_tasks=len(tasks),
        num_bootstrap=num_bootstrap,
        seed=seed,
    )


def _levels(
    names: Sequence[str],
    delta_j: Floats,
    old: tuple[Floats, Floats],
    new: tuple[Floats, Floats],
    budget: Floats,
    seed: int,
) -> tuple[LevelMetrics, ...]:
    """`delta_j` per task `[N, K]`; `old`, `new` (cost, success) and `budget` `[1 + B, K]`."""
    num_tasks, (cost, success) = len(delta_j), (old[0][0], old[1][0])
    vertical = _intervals(hull_height(*new, cost) - hull_height(*old, cost), num_tasks)
    ratios = _intervals(_ratio(hull_cost(*new, success), hull_cost(*old, success)), num_tasks)
    budgets = _intervals(budget, num_tasks)
    raw = {n: sign_flip_p_value(delta_j[:, k].tolist(), seed=seed) for k, n in enumerate(names)}
    adjusted = holm(raw)
    return tuple(
        LevelMetrics(n, raw[n], adjusted[n], vertical[k], _unbounded(ratios[k]), budgets[k])
        for k, n in enumerate(names)
    )


def _intervals(values: Floats, num_tasks: int) -> list[Interval]:
    """One per column of `[1 + B, K]`: the estimate in row 0, then the resamples."""
    low, high = interval(values[1:], num_tasks)
    ends = zip(values[0], low, high, strict=True)
    return [Interval(float(m), float(a), float(b)) for m, a, b in ends]


def _ratio(new: Floats, old: Floats) -> Floats:
    """1 where neither hull reaches the success, or both have it for nothing."""
    same = (new == old) | (np.isinf(new) & np.isinf(old))
    ratio = np.divide(new, old, out=np.ones_like(new), where=~same & (old > 0.0))
    return np.clip(np.where(~same & (old == 0.0), _NEVER, ratio), 0.0, _NEVER)


def _unbounded(ratio: Interval) -> Interval:
    return Interval(
        *(x if x < _NEVER else float("inf") for x in (ratio.mean, ratio.low, ratio.high))
    )


def _cells(
    rollouts: Sequence[Rollout], names: Sequence[str], max_budget: float
) -> dict[str, Floats]:
    """Per task with every level: mean success, cost and success under a budget, `[K, 3]`.

    Averaged over budgets from 0 to the maximum, a solved rollout counts 1 - C / maximum: it is
    inside the budget from C on. The mean over rollouts is the area under the budget curve.
    """
    cells: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for o in outcomes(rollouts):
        within = o.success * max(0.0, 1.0 - o.cost / max_budget)
        cells.setdefault(o.task_id, {}).setdefault(o.effort, []).append((o.success, o.cost, within))
    return {
        task: np.array([np.mean(levels[name], axis=0) for name in names])
        for task, levels in cells.items()
        if all(name in levels for name in names)
    }
