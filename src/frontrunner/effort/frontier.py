"""Fits lambda_e, the price of cost, to the base model's frontier.

The frontier is one (mean cost, mean success) point per effort level. At level e the tangent slope
m_e = dS/dC says what one more USD buys; lambda_e = m_e makes the base model's own trade-off the
exchange rate of training. Steps: means over tasks -> concave fit in log cost -> tangents ->
task-clustered bootstrap -> the middle of the lower half of each interval -> projection to positive
values that fall by a ratio from level to level.

Regressing success on cost across rollouts would be wrong: failures are longer, so the sign is
usually reversed. Only the intervention, the effort level, identifies the slope.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from frontrunner.effort.bootstrap import Floats, cluster_weights, interval
from frontrunner.effort.ladder import MIN_RATIO
from frontrunner.effort.tangent import secant_slopes, tangent_slopes
from frontrunner.errors import UserError

MIN_TASKS = 10
"""Below this no clustered interval can be trusted."""

MIN_COST_RATIO = 1.1
"""Neighbouring levels whose costs differ by less have no slope between them."""

MIN_LOG_SLOPE = 0.01
"""Floor of lambda * cost: one point of success for 2.7 times the cost."""

LOWER_HALF = 0.25
"""Quantile of the bootstrap slopes that becomes lambda. Too high a lambda merges and inverts
levels; too low a one only slows learning."""

SET_BY_HAND = "or set lambda for every level in the configuration"


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """What the fit needs of one graded rollout: `RolloutOutcome("toolz-3f", "low", 1.0, 0.002)`."""

    task_id: str
    effort: str
    success: float
    cost: float


@dataclass(frozen=True, slots=True)
class LevelFit:
    """The fit at one effort level. Slopes and lambda in 1/USD, costs in USD."""

    effort: str
    success: float
    cost: float
    slope: float
    """Tangent slope of the concave fit at the point estimate."""
    slope_low: float
    slope_high: float
    secant: float | None
    """The same slope from neighbouring secants; None where they are not positive."""
    target: float
    """Middle of the lower half of the bootstrap slopes."""
    lambda_: float
    """What training uses: the target after projection."""


@dataclass(frozen=True, slots=True)
class FrontierFit:
    """lambda for every level, with everything needed to defend it."""

    levels: tuple[LevelFit, ...]
    explanations: tuple[str, ...]
    """What was done and why, one sentence each."""
    num_tasks: int
    num_rollouts: int
    num_bootstrap: int
    seed: int
    ratio: float

    @property
    def lambdas(self) -> dict[str, float]:
        """lambda by level name, lowest effort first."""
        return {level.effort: level.lambda_ for level in self.levels}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FrontierFit:
        levels = tuple(LevelFit(**level) for level in data["levels"])
        return cls(**{**data, "levels": levels, "explanations": tuple(data["explanations"])})


def fit(
    points: Sequence[RolloutOutcome],
    ladder: Sequence[str],
    *,
    num_bootstrap: int = 2000,
    seed: int = 0,
    ratio: float = MIN_RATIO,
    min_tasks: int = MIN_TASKS,
) -> FrontierFit:
    """Estimates lambda for every level of `ladder` (names, lowest effort first).

    Every task counts the same, whatever its number of rollouts; only tasks measured at every level
    are used, so that levels are compared on the same tasks. Raises `UserError` when the data
    cannot support a slope, and says what to do.
    """
    if len(ladder) < 2:
        raise UserError(
            "A ladder of one effort level has no slope to fit; set its lambda in the configuration."
        )
    if ratio < MIN_RATIO:
        raise UserError(f"ratio is {ratio:g}; it must be at least {MIN_RATIO:g}.")
    success, cost, num_dropped = _task_means(points, ladder)
    num_tasks = len(success)
    _check(success.mean(axis=0), cost.mean(axis=0), num_tasks, num_dropped, ladder, min_tasks)

    s, c = success.mean(axis=0), cost.mean(axis=0)
    slopes = tangent_slopes(c[None], s[None])[0]
    weights = cluster_weights(num_tasks, num_bootstrap, seed)
    draws = tangent_slopes(weights @ cost, weights @ success)
    low, high = interval(draws, num_tasks)
    targets = np.quantile(draws, LOWER_HALF, axis=0)
    lambdas = project(targets, MIN_LOG_SLOPE / c, ratio)
    secants = secant_slopes(c[None], s[None])[0]
    levels = tuple(
        LevelFit(
            effort=name,
            success=float(s[k]),
            cost=float(c[k]),
            slope=float(slopes[k]),
            slope_low=float(low[k]),
            slope_high=float(high[k]),
            secant=float(secants[k]) if np.isfinite(secants[k]) else None,
            target=float(targets[k]),
            lambda_=float(lambdas[k]),
        )
        for k, name in enumerate(ladder)
    )
    head = (
        f"Measured on {num_tasks} tasks ({len(points)} rollouts); intervals are 95 %, "
        f"by resampling tasks {num_bootstrap} times (seed {seed})."
    )
    dropped = f"Left out for want of a level: {num_dropped} of {num_tasks + num_dropped} tasks."
    sentences = [head] + ([dropped] if num_dropped else [])
    sentences += _explain_shape(levels) + [_explain_level(levels, k, ratio) for k in range(len(s))]
    return FrontierFit(levels, tuple(sentences), num_tasks, len(points), num_bootstrap, seed, ratio)


def project(targets: Floats, floors: Floats, ratio: float) -> Floats:
    """Positive lambdas, `[K]`, that fall by `ratio` or more from level to level.

    First up to the floor, then down to the ratio: of two levels that are too close the higher
    effort moves, as erring low is the safe side.
    """
    values = np.maximum(targets, floors)
    for k in range(1, len(values)):
        values[k] = min(values[k], values[k - 1] / ratio)
    return values


def _task_means(
    points: Sequence[RolloutOutcome], ladder: Sequence[str]
) -> tuple[Floats, Floats, int]:
    """Mean success and cost per task and level, `[N, K]` each, and how many tasks were dropped."""
    cells: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for p in points:
        if p.effort not in ladder:
            raise UserError(
                f"A rollout has effort {p.effort!r}, which is not in the ladder "
                f"({', '.join(ladder)}); measure with the ladder that is trained."
            )
        cells[p.task_id][p.effort].append((p.success, p.cost))
    for name in ladder:
        if not any(name in levels for levels in cells.values()):
            raise UserError(
                f"The measurement has no rollout at effort level {name!r}; "
                f"measure every level of the ladder, {SET_BY_HAND}."
            )
    complete = [cells[t] for t in sorted(cells) if len(cells[t]) == len(ladder)]
    means = np.array(
        [[np.mean(levels[name], axis=0) for name in ladder] for levels in complete]
    ).reshape(len(complete), len(ladder), 2)
    return means[:, :, 0], means[:, :, 1], len(cells) - len(complete)


def _check(
    s: Floats, c: Floats, num_tasks: int, num_dropped: int, ladder: Sequence[str], min_tasks: int
) -> None:
    if num_tasks < min_tasks:
        dropped = f" ({num_dropped} more lack a level)" if num_dropped else ""
        raise UserError(
            f"Only {num_tasks} tasks were measured at every effort level{dropped}; a slope needs "
            f"at least {min_tasks}. Measure more tasks, {SET_BY_HAND}."
        )
    if not np.all(c > 0.0):
        name = ladder[int(np.argmin(c))]
        raise UserError(f"Rollouts at {name!r} cost nothing; check the price table.")
    if s.max() <= 0.0:
        raise UserError(
            "The base model solved no task at any effort level, so cost buys nothing that can be "
            f"measured; use easier tasks or a stronger base model, {SET_BY_HAND}."
        )
    for (lower, a), (higher, b) in pairwise(zip(ladder, c, strict=True)):
        if b < MIN_COST_RATIO * a:
            raise UserError(
                f"Effort levels {lower!r} and {higher!r} cost about the same or in the wrong order "
                f"(${a:.4g} and ${b:.4g} per rollout); the base model does not follow the wording. "
                f"Make the prompts differ more or fine-tune on them first, {SET_BY_HAND}."
            )
    if s.max() <= s[0]:
        raise UserError(
            f"Success does not rise with cost: {ladder[0]!r} solves {s[0]:.1%} at ${c[0]:.4g}, and "
            f"no higher level solves more. Use tasks where effort helps, measure more of them, "
            f"{SET_BY_HAND}."
        )


def _explain_shape(levels: Sequence[LevelFit]) -> list[str]:
    """One sentence per neighbouring pair that is not rising and concave."""
    sentences = []
    for a, b in pairwise(levels):
        if b.success <= a.success:
            sentences.append(
                f"Success does not rise from {a.effort} ({a.success:.1%} at ${a.cost:.4g}) to "
                f"{b.effort} ({b.success:.1%} at ${b.cost:.4g}): {b.effort} is dominated."
            )
    points = [(np.log(e.cost), e.success, e.effort) for e in levels]
    for (xa, sa, _), (xb, sb, name), (xc, sc, _) in zip(
        points, points[1:], points[2:], strict=False
    ):
        if (sc - sb) * (xb - xa) > (sb - sa) * (xc - xb):
            sentences.append(
                f"{name} lies below the line between its neighbours (in log cost); "
                "their slopes were pooled to keep the fit concave."
            )
    return sentences


def _explain_level(levels: Sequence[LevelFit], k: int, ratio: float) -> str:
    level = levels[k]
    secant = "not positive" if level.secant is None else f"{level.secant:.3g}"
    text = (
        f"{level.effort}: {level.success:.1%} success at ${level.cost:.4g}; the frontier's slope "
        f"is {level.slope:.3g} per USD (95 % interval {level.slope_low:.3g} to "
        f"{level.slope_high:.3g}; from secants {secant})."
    )
    if level.slope_low <= 0.0:
        text += " The interval reaches 0: more tasks would pin it down."
    floor = MIN_LOG_SLOPE / level.cost
    start = max(level.target, floor)
    if level.target < floor:
        text += f" The slope is too flat to use, so it was raised to the floor, {floor:.3g}."
    else:
        text += f" The middle of the interval's lower half, to err low, is {level.target:.3g}."
    if level.lambda_ < start:
        text += (
            f" That is within {ratio:g} times of {levels[k - 1].effort}, so it was lowered to keep "
            "the levels apart."
        )
    return text + f" lambda = {level.lambda_:.3g}."
