"""Task-clustered bootstrap: resample whole tasks, with all their rollouts and efforts, so that
whatever a task's rollouts share (its difficulty) is counted once, and pairing survives."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtrit  # type: ignore[import-untyped]

Floats = npt.NDArray[np.float64]


def cluster_weights(num_clusters: int, num_bootstrap: int, seed: int) -> Floats:
    """How often each cluster is drawn, over the number of clusters: `[B, N]`, rows sum to 1."""
    assert num_clusters >= 1 and num_bootstrap >= 1
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(num_clusters, np.full(num_clusters, 1.0 / num_clusters), num_bootstrap)
    return np.asarray(counts / num_clusters, dtype=np.float64)


def expanded_tail(num_clusters: int, level: float = 0.95) -> float:
    """Tail probability to read off the bootstrap distribution for a two-sided interval.

    The plain percentile interval is too short for few clusters: it lacks both the factor
    sqrt(n / (n - 1)) and Student's heavier tail. Reading it at
    Phi(-sqrt(n / (n - 1)) * t_(n-1)) instead repairs both to first order (the expanded percentile
    interval of Hesterberg, "What Teachers Should Know about the Bootstrap", 2015).
    """
    assert num_clusters >= 2 and 0.0 < level < 1.0
    t = float(stdtrit(num_clusters - 1, 0.5 + level / 2.0))
    return float(ndtr(-math.sqrt(num_clusters / (num_clusters - 1)) * t))


def interval(draws: Floats, num_clusters: int, level: float = 0.95) -> tuple[Floats, Floats]:
    """Lower and upper ends over axis 0 of bootstrap draws `[B, ...]`."""
    tail = expanded_tail(num_clusters, level)
    low, high = np.quantile(draws, [tail, 1.0 - tail], axis=0)
    return np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
