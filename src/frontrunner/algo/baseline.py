"""Reward baselines of one group of n rollouts, from rewards R `[n]` and weights w `[n]`.

    length_weighted      b   = sum_j w_j R_j / sum_j w_j      w = trainable tokens
    length_weighted_loo  b_i = the same over j != i
    mean                 b   = sum_j R_j / n
    rloo                 b_i = sum_(j != i) R_j / (n - 1)     (Kool et al. 2019)
    shrunk               b_i = a leave-one-out baseline drawn towards what history says

The best constant baseline has weights E[||c z||^2], the squared norm of a rollout's score z times
the scale c of its loss (Greensmith et al. 2004). For a loss summed over tokens that norm grows with
the number of trainable tokens, hence length weights. A loss scaled by L^-k wants L^(1 - 2k):
nothing at k = 1/2, the *inverse* length for a per-sequence mean. Better estimates of the norm than
the length are in `score_norm`. Leave-one-out baselines keep the gradient unbiased; `mean` equals
`rloo` up to the factor (n - 1) / n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Baseline = Literal["length_weighted", "length_weighted_loo", "mean", "rloo"]
BASELINES: tuple[Baseline, ...] = ("length_weighted", "length_weighted_loo", "mean", "rloo")


def baseline(kind: Baseline, rewards: Sequence[float], lengths: Sequence[float]) -> Floats:
    """The baseline of every rollout, `[n]`, of the kinds that a recipe can name.

    Raises `ValueError` for an unknown kind, and as `weighted` does.
    """
    if kind not in BASELINES:
        raise ValueError(f"Unknown baseline {kind!r}; one of {', '.join(BASELINES)}.")
    weights = lengths if kind.startswith("length_weighted") else np.ones(len(lengths)).tolist()
    return weighted(rewards, weights, leave_one_out=kind in ("length_weighted_loo", "rloo"))


def weighted(
    rewards: Sequence[float] | Floats,
    weights: Sequence[float] | Floats,
    *,
    leave_one_out: bool = False,
) -> Floats:
    """The weighted mean of a group's rewards, `[n]`: one number, or one per rollout of the others.

    A group of one has nothing to compare with: its baseline is its own reward. Where the weights
    of a mean are all 0 (no tokens), the plain mean stands in. Raises `ValueError` for unequal
    lengths of the inputs, an empty group or a negative weight.
    """
    r, w = _arrays(rewards, weights)
    if len(r) == 1:
        return r.copy()
    if not leave_one_out:
        return np.full(len(r), _weighted_mean(r, w))
    # Summing the others, not subtracting one from the total: groups are small, and a long rollout
    # would cancel the digits of the short ones.
    keep = ~np.eye(len(r), dtype=bool)
    return np.array([_weighted_mean(r[keep[i]], w[keep[i]]) for i in range(len(r))])


def aggregated(norms: Sequence[float] | Floats, scales: Sequence[float] | Floats) -> Floats:
    """Weights `[n]` for a loss that multiplies rollout i by `scales[i]`: scale^2 times norm."""
    return np.asarray(scales, dtype=np.float64) ** 2 * np.asarray(norms, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class History:
    """What groups of earlier policies say about the baseline of a group like them."""

    mean: float
    within: float
    """Variance of rewards within a group."""
    between: float
    """Variance of the groups' true baselines around the mean."""

    @classmethod
    def of(cls, groups: Sequence[tuple[Sequence[float], Sequence[float]]]) -> History:
        """Analysis of variance over (rewards, weights) of past groups.

        Raises `ValueError` for fewer than two groups or one with fewer than two rollouts.
        """
        if len(groups) < 2 or min(len(r) for r, _ in groups) < 2:
            raise ValueError("A history needs 2 groups or more of 2 rollouts or more.")
        arrays = [_arrays(r, w) for r, w in groups]
        means = np.array([_weighted_mean(r, w) for r, w in arrays])
        within = float(np.mean([r.var(ddof=1) for r, _ in arrays]))
        noise = float(np.mean([within / effective_size(w) for _, w in arrays]))
        return cls(float(means.mean()), within, max(0.0, float(means.var(ddof=1)) - noise))


def shrunk(
    rewards: Sequence[float] | Floats, weights: Sequence[float] | Floats, history: History
) -> Floats:
    """b_i = (1 - kappa_i) * leave-one-out + kappa_i * history, `[n]` (empirical Bayes).

    kappa = v / (v + between) with v = within / effective size of the others. Neither depends on
    rollout i's reward or weight, so the gradient stays unbiased. A group of one gets the history.
    """
    r, w = _arrays(rewards, weights)
    if len(r) == 1:
        return np.array([history.mean])
    keep = ~np.eye(len(r), dtype=bool)
    noise = np.array([history.within / effective_size(w[keep[i]]) for i in range(len(r))])
    total = noise + history.between
    kappa = np.divide(noise, total, out=np.ones(len(r)), where=total > 0.0)
    return np.asarray((1.0 - kappa) * weighted(r, w, leave_one_out=True) + kappa * history.mean)


def effective_size(weights: Floats) -> float:
    """(sum w)^2 / sum w^2: how many equal rollouts give a mean as sharp as these."""
    square = float((weights**2).sum())
    return float(weights.sum()) ** 2 / square if square > 0.0 else float(len(weights))


def _arrays(
    rewards: Sequence[float] | Floats, weights: Sequence[float] | Floats
) -> tuple[Floats, Floats]:
    r = np.asarray(rewards, dtype=np.float64)
    w = np.asarray(weights, dtype=np.float64)
    if r.ndim != 1 or r.shape != w.shape or len(r) == 0:
        raise ValueError(f"Need one length per reward, got {r.shape} and {w.shape}.")
    if np.any(w < 0.0) or not np.all(np.isfinite(w)) or not np.all(np.isfinite(r)):
        raise ValueError("Rewards must be finite and lengths 0 or more.")
    return r, w


def _weighted_mean(r: Floats, weights: Floats) -> float:
    total = weights.sum()
    return float(weights @ r / total) if total > 0.0 else float(r.mean())
