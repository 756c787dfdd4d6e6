"""Known ways in which effort-conditioned RL goes wrong, read off the history of metrics rows.

A row is one step: `{"step": 12, "effort/low/cost": 0.0021, ...}` with the keys of
`evals.history.effort_metrics`. Missing keys switch the alarms that need them off. Early and late
are means over the first and last `window` rows that have the metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from frontrunner.effort.ladder import MIN_RATIO
from frontrunner.evals.history import key

MERGE_COST_RATIO = 1.25
MERGE_AUC = 0.65
COLLAPSE_DROP = 0.40
IGNORED_BITS = 0.05
GIVE_UP_RISE = 0.10
INVALID_SHARE = 0.05
NOISE = 3.0
"""Standard errors that a rise must exceed; more than 2, as rollouts of one task go together."""

Row = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Alarm:
    """One sentence with numbers, about one level (or pair), at the last step looked at."""

    kind: str
    """merging, prices crossing, length collapse, effort ignored, give-up, or infrastructure."""
    effort: str
    step: int
    message: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def alarms(history: Sequence[Row], ladder: Sequence[str], *, window: int = 5) -> list[Alarm]:
    """All alarms that hold at the end of `history`. `ladder`: names, lowest effort first."""
    if not history:
        return []
    step = int(history[-1].get("step") or 0)
    found: list[tuple[str, str, str]] = []
    for lower, higher in pairwise(ladder):
        found += _merging(history, lower, higher, window)
        found += _crossing(history, lower, higher)
    for name in ladder:
        found += _collapse(history, name, window)
        found += _give_up(history, name, window)
        found += _infrastructure(history, name, window)
    found += _ignored(history, ladder, window)
    return [Alarm(kind, effort, step, message) for kind, effort, message in found]


def _series(history: Sequence[Row], name: str) -> list[float]:
    values = (row.get(name) for row in history)
    return [v for v in values if v is not None and np.isfinite(v)]


def _early_late(history: Sequence[Row], name: str, window: int) -> tuple[float, float] | None:
    """Means at both ends; None until the ends do not overlap."""
    values = _series(history, name)
    if len(values) < 2 * window:
        return None
    return float(np.mean(values[:window])), float(np.mean(values[-window:]))


def _late(history: Sequence[Row], name: str, window: int) -> float | None:
    values = _series(history, name)
    return float(np.mean(values[-window:])) if values else None


def _merging(
    history: Sequence[Row], lower: str, higher: str, window: int
) -> Iterator[tuple[str, str, str]]:
    a = _late(history, key(lower, "cost"), window)
    b = _late(history, key(higher, "cost"), window)
    separation = _late(history, key(higher, "cost_auc"), window)
    pair = f"{lower}/{higher}"
    if a is not None and b is not None and a > 0.0 and b < MERGE_COST_RATIO * a:
        verb = "have inverted" if b < a else "are merging"
        yield (
            "merging",
            pair,
            f"Levels {lower} and {higher} {verb}: {higher} costs {b / a:.2f} times what {lower} "
            f"does (${b:.3g} against ${a:.3g}; alarm under {MERGE_COST_RATIO:g}). "
            "Check that their lambdas differ by 1.5 or more.",
        )
    elif separation is not None and separation < MERGE_AUC:
        yield (
            "merging",
            pair,
            f"Cost hardly tells {higher} from {lower}: a rollout at {higher} costs more in "
            f"{separation:.0%} of pairs (AUC {separation:.2f}; alarm under {MERGE_AUC:g}).",
        )


def _crossing(history: Sequence[Row], lower: str, higher: str) -> Iterator[tuple[str, str, str]]:
    """Only runs whose lambda moves log it."""
    a, b = (_late(history, key(name, "lambda"), 1) for name in (lower, higher))
    if a is not None and b is not None and a < MIN_RATIO * b * (1.0 - 1e-9):
        verb = "have crossed" if a <= b else "are too close"
        yield (
            "prices crossing",
            f"{lower}/{higher}",
            f"The lambdas of {lower} and {higher} {verb}: {a:.3g} and {b:.3g} per USD (ratio "
            f"{a / b:.2f}; alarm under {MIN_RATIO:g}). The levels then have the same objective.",
        )


def _collapse(history: Sequence[Row], name: str, window: int) -> Iterator[tuple[str, str, str]]:
    cost = _early_late(history, key(name, "cost"), window)
    success = _early_late(history, key(name, "success"), window)
    if cost is None or success is None or cost[0] <= 0.0:
        return
    drop = 1.0 - cost[1] / cost[0]
    if drop > COLLAPSE_DROP and success[1] < success[0]:
        yield (
            "length collapse",
            name,
            f"Level {name} is collapsing: its cost fell by {drop:.0%} (${cost[0]:.3g} to "
            f"${cost[1]:.3g}) while success fell from {success[0]:.1%} to {success[1]:.1%}. "
            "Its lambda is probably too high.",
        )


def _give_up(history: Sequence[Row], name: str, window: int) -> Iterator[tuple[str, str, str]]:
    share = _early_late(history, key(name, "give_up"), window)
    if share is None or share[1] - share[0] <= GIVE_UP_RISE:
        return
    counts = _early_late(history, key(name, "num_rollouts"), window)
    if counts is not None and share[1] - share[0] <= NOISE * _share_error(share, counts, window):
        return
    yield (
        "give-up",
        name,
        f"Level {name} gives up more: quick unsolved endings rose from {share[0]:.1%} to "
        f"{share[1]:.1%} of rollouts. R = -lambda * C rewards failing early on hard tasks.",
    )


def _share_error(share: tuple[float, float], counts: tuple[float, float], window: int) -> float:
    """Standard error of the difference of two shares, as if rollouts were independent."""
    n0, n1 = counts[0] * window, counts[1] * window
    pooled = (share[0] * n0 + share[1] * n1) / (n0 + n1)
    return float(np.sqrt(pooled * (1.0 - pooled) * (1.0 / n0 + 1.0 / n1)))


def _infrastructure(
    history: Sequence[Row], name: str, window: int
) -> Iterator[tuple[str, str, str]]:
    share = _late(history, key(name, "invalid"), window)
    if share is not None and share > INVALID_SHARE:
        yield (
            "infrastructure",
            name,
            f"{share:.1%} of rollouts at level {name} could not be graded; "
            "if crashes go with length, the rest is a biased sample.",
        )


def _ignored(
    history: Sequence[Row], ladder: Sequence[str], window: int
) -> Iterator[tuple[str, str, str]]:
    bits = _late(history, "effort/mutual_information", window)
    if bits is not None and bits < IGNORED_BITS:
        yield (
            "effort ignored",
            "/".join(ladder),
            f"The policy ignores the effort level: level and cost share {bits:.2f} bits "
            f"(alarm under {IGNORED_BITS:g}; {np.log2(len(ladder)):.2f} would be perfect).",
        )
