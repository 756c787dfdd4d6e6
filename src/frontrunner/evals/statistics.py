"""Intervals and tests for scores that come in clusters.

Rollouts of one task share its difficulty, so the task is the unit that is resampled, whole, with
all its rollouts. Two models are compared on the same tasks, pair by pair. Several training seeds
are a level above: resample seeds, then tasks within each. See Miller, "Adding Error Bars to Evals"
(2024), and Hesterberg (2015) for the expanded percentile interval that repairs short intervals at
few clusters.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri  # type: ignore[import-untyped]

from frontrunner.effort.bootstrap import cluster_weights, interval

NUM_BOOTSTRAP = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its two-sided interval, 95 % unless told otherwise."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0.0 or self.high < 0.0

    def to_json(self) -> dict[str, float]:
        return {"mean": self.mean, "low": self.low, "high": self.high}


def cluster_means(values: Sequence[float], clusters: Sequence[Hashable]) -> dict[Hashable, float]:
    """Mean per cluster, in order of first appearance."""
    sums: dict[Hashable, list[float]] = {}
    for value, cluster in zip(values, clusters, strict=True):
        entry = sums.setdefault(cluster, [0.0, 0.0])
        entry[0] += value
        entry[1] += 1.0
    return {cluster: total / count for cluster, (total, count) in sums.items()}


def cluster_interval(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    num_bootstrap: int = NUM_BOOTSTRAP,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Mean over clusters of the mean within, with a clustered bootstrap interval.

    Duplicating every rollout changes nothing. Raises `ValueError` for fewer than two clusters:
    one cluster says nothing about the next.
    """
    return means_interval(
        cluster_means(values, clusters), num_bootstrap=num_bootstrap, seed=seed, level=level
    )


def paired_interval(
    before: Mapping[Hashable, float],
    after: Mapping[Hashable, float],
    *,
    num_bootstrap: int = NUM_BOOTSTRAP,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Mean of after - before over the clusters in both (means from `cluster_means`)."""
    shared = [cluster for cluster in before if cluster in after]
    differences = {cluster: after[cluster] - before[cluster] for cluster in shared}
    return means_interval(differences, num_bootstrap=num_bootstrap, seed=seed, level=level)


def means_interval(
    means: Mapping[Hashable, float],
    *,
    num_bootstrap: int = NUM_BOOTSTRAP,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Interval of the mean over clusters, given one mean each."""
    if len(means) < 2:
        raise ValueError(f"An interval needs at least 2 clusters (tasks), got {len(means)}.")
    values = np.array(list(means.values()), dtype=np.float64)
    draws = cluster_weights(len(values), num_bootstrap, seed) @ values
    low, high = interval(draws, len(values), level)
    return Interval(float(values.mean()), float(low), float(high))


def seeds_interval(
    runs: Sequence[Mapping[Hashable, float]],
    *,
    num_bootstrap: int = NUM_BOOTSTRAP,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Hierarchical bootstrap over training seeds, then tasks within each drawn seed.

    `runs[i]` maps tasks to means (or paired differences) for one training seed. The number of
    seeds sets the width at the ends. Raises `ValueError` for fewer than two seeds or an empty one.
    """
    if len(runs) < 2 or not all(runs):
        raise ValueError(f"Need at least 2 training seeds with tasks each, got {len(runs)}.")
    rng = np.random.default_rng(seed)
    arrays = [np.array(list(run.values()), dtype=np.float64) for run in runs]
    seed_counts = cluster_weights(len(runs), num_bootstrap, int(rng.integers(2**31))) * len(runs)
    totals = np.zeros(num_bootstrap)
    for i, values in enumerate(arrays):
        # A seed drawn twice is given two independent draws of its tasks.
        for times in range(1, int(seed_counts[:, i].max()) + 1):
            inner = cluster_weights(len(values), num_bootstrap, int(rng.integers(2**31))) @ values
            totals += np.where(seed_counts[:, i] >= times, inner, 0.0)
    low, high = interval(totals / len(runs), len(runs), level)
    mean = float(np.mean([values.mean() for values in arrays]))
    return Interval(mean, float(low), float(high))


def wilson(num_successes: float, num_trials: int, level: float = 0.95) -> Interval:
    """Wilson score interval of a proportion of independent trials (Wilson 1927)."""
    if num_trials < 1 or not 0.0 <= num_successes <= num_trials:
        raise ValueError(f"{num_successes} of {num_trials} is not a proportion.")
    z = float(ndtri(0.5 + level / 2.0))
    p = num_successes / num_trials
    shrink = 1.0 + z * z / num_trials
    middle = (p + z * z / (2.0 * num_trials)) / shrink
    half = z / shrink * math.sqrt(p * (1.0 - p) / num_trials + (z / (2.0 * num_trials)) ** 2)
    return Interval(p, max(0.0, middle - half), min(1.0, middle + half))


def sign_flip_p_value(
    differences: Sequence[float], *, num_draws: int = 9999, seed: int = 0
) -> float:
    """Two-sided p-value of a mean paired difference of 0, by flipping signs of whole clusters.

    Exact up to Monte Carlo error if differences are symmetric under the null. The observed sample
    counts as one draw, so the smallest value is 1 / (num_draws + 1).
    """
    d = np.asarray(differences, dtype=np.float64)
    if len(d) < 2:
        raise ValueError(f"A paired test needs at least 2 clusters (tasks), got {len(d)}.")
    observed = abs(float(d.sum()))
    rng = np.random.default_rng(seed)
    # In slices: [num_draws, N] doubles at once could be gigabytes.
    count = 1
    for start in range(0, num_draws, 500):
        size = min(500, num_draws - start)
        signs = rng.choice(np.array([-1.0, 1.0]), (size, len(d)))
        count += int(np.sum(np.abs(signs @ d) >= observed * (1.0 - 1e-12)))
    return count / (num_draws + 1)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjustment: compare the results with one significance level for all."""
    ordered = sorted(p_values, key=lambda name: p_values[name])
    adjusted: dict[str, float] = {}
    running = 0.0
    for rank, name in enumerate(ordered):
        running = max(running, min(1.0, (len(ordered) - rank) * p_values[name]))
        adjusted[name] = running
    return {name: adjusted[name] for name in p_values}
