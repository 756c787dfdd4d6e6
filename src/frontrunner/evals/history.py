"""Metrics of one training step's rollouts, per effort level: the rows that alarms and curves read.

Keys are `effort/<level>/<metric>`; cost in USD, length in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontrunner.effort.ladder import Ladder
from frontrunner.types import Rollout

QUICK_TURNS = 3
"""A rollout that ends of its own will within so many turns, unsolved, gave up."""


def key(effort: str, metric: str) -> str:
    """`key("low", "cost")` is `effort/low/cost`."""
    return f"effort/{effort}/{metric}"


def effort_metrics(rollouts: Sequence[Rollout], ladder: Ladder) -> dict[str, float]:
    """Means per level over graded rollouts, and how well cost tells the levels apart.

    Per level: success, cost, reward, length, turns, give_up (share of quick, unsolved endings),
    invalid (share of rollouts not graded), num_rollouts; from the second level on `cost_auc`, the
    probability that a rollout costs more than one of the level below. Over all levels
    `effort/mutual_information`, in bits. A level without rollouts has no keys.
    """
    row: dict[str, float] = {}
    costs: list[list[float]] = []
    for level in ladder:
        mine = [r for r in rollouts if r.effort == level.name]
        graded = [r for r in mine if r.valid]
        costs.append([r.cost for r in graded if r.cost is not None])
        if mine:
            row[key(level.name, "num_rollouts")] = float(len(mine))
            row[key(level.name, "invalid")] = 1.0 - len(graded) / len(mine)
        if graded:
            rewards = [r.reward for r in graded if r.reward is not None]
            means = {
                "success": [r.success for r in graded],
                "cost": costs[-1],
                "reward": rewards,
                "length": [float(r.num_tokens) for r in graded],
                "turns": [float(len(r.turns)) for r in graded],
                "give_up": [float(gave_up(r)) for r in graded],
            }
            row |= {key(level.name, k): float(np.mean(v)) for k, v in means.items() if v}
    for k in range(1, len(costs)):
        if costs[k - 1] and costs[k]:
            row[key(ladder.names[k], "cost_auc")] = auc(costs[k - 1], costs[k])
    if sum(bool(c) for c in costs) >= 2:
        row["effort/mutual_information"] = mutual_information(costs)
    return row


def gave_up(rollout: Rollout) -> bool:
    """Ended by the policy itself, early and unsolved."""
    ended = rollout.status == "submitted"
    return ended and rollout.success < 0.5 and len(rollout.turns) <= QUICK_TURNS


def auc(lower: Sequence[float], higher: Sequence[float]) -> float:
    """P(a value of `higher` exceeds one of `lower`), ties counting half; 0.5 is chance."""
    a = np.asarray(lower, dtype=np.float64)[:, None]
    b = np.asarray(higher, dtype=np.float64)[None, :]
    return float(np.mean((b > a) + 0.5 * (b == a)))


def mutual_information(costs: Sequence[Sequence[float]], num_bins: int = 8) -> float:
    """Mutual information of effort level and cost in bits, cost cut at its quantiles.

    Corrected for the bias of small samples (Miller-Madow), so that levels that do not differ
    give about 0. At most log2 of the number of levels.
    """
    values = np.concatenate([np.asarray(c, dtype=np.float64) for c in costs])
    labels = np.concatenate([np.full(len(c), k) for k, c in enumerate(costs)])
    edges = np.unique(np.quantile(values, np.linspace(0.0, 1.0, num_bins + 1)[1:-1]))
    bins = np.searchsorted(edges, values, side="left")
    table = np.zeros((len(costs), len(edges) + 1))
    np.add.at(table, (labels, bins), 1.0)
    n = len(values)
    joint = table[table > 0.0] / n
    rows, cols = table.sum(axis=1), table.sum(axis=0)
    rows, cols = rows[rows > 0.0] / n, cols[cols > 0.0] / n
    plain = -np.sum(rows * np.log2(rows)) - np.sum(cols * np.log2(cols))
    plain += np.sum(joint * np.log2(joint))
    correction = (len(rows) + len(cols) - len(joint) - 1) / (2.0 * n * np.log(2.0))
    return float(max(0.0, plain + correction))
