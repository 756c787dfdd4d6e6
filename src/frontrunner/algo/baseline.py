"""Reward baselines of one group of n rollouts, from rewards R `[n]` and lengths L `[n]`.

    length_weighted      b   = sum_j L_j R_j / sum_j L_j
    length_weighted_loo  b_i = the same over j != i
    mean                 b   = sum_j R_j / n
    rloo                 b_i = sum_(j != i) R_j / (n - 1)

The best constant baseline weighs rewards by E[||z||^2], the squared norm of a rollout's score
(Greensmith et al. 2004). For a loss summed over tokens that norm grows with the number of trainable
tokens, hence length weights. They fit losses that add tokens up (or divide by a constant) only:
a per-sequence mean would want the *inverse* length. Leave-one-out baselines keep the gradient
unbiased; `mean` equals `rloo` up to the factor (n - 1) / n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Baseline = Literal["length_weighted", "length_weighted_loo", "mean", "rloo"]
BASELINES: tuple[Baseline, ...] = ("length_weighted", "length_weighted_loo", "mean", "rloo")


def baseline(kind: Baseline, rewards: Sequence[float], lengths: Sequence[float]) -> Floats:
    """The baseline of every rollout, `[n]`.

    A group of one has nothing to compare with: its baseline is its own reward. Where the weights
    of a mean are all 0 (no tokens), the plain mean stands in. Raises `ValueError` for an unknown
    kind, unequal lengths of the inputs, an empty group or a negative length.
    """
    r, weights = _arrays(rewards, lengths)
    if len(r) == 1:
        return r.copy()
    if kind == "length_weighted":
        return np.full(len(r), _weighted_mean(r, weights))
    if kind == "length_weighted_loo":
        return _leave_one_out(r, weights)
    if kind == "mean":
        return np.full(len(r), r.mean())
    if kind == "rloo":
        return _leave_one_out(r, np.ones(len(r)))
    raise ValueError(f"Unknown baseline {kind!r}; one of {', '.join(BASELINES)}.")


def _arrays(rewards: Sequence[float], lengths: Sequence[float]) -> tuple[Floats, Floats]:
    r = np.asarray(rewards, dtype=np.float64)
    weights = np.asarray(lengths, dtype=np.float64)
    if r.ndim != 1 or r.shape != weights.shape or len(r) == 0:
        raise ValueError(f"Need one length per reward, got {r.shape} and {weights.shape}.")
    if np.any(weights < 0.0) or not np.all(np.isfinite(weights)) or not np.all(np.isfinite(r)):
        raise ValueError("Rewards must be finite and lengths 0 or more.")
    return r, weights


def _weighted_mean(r: Floats, weights: Floats) -> float:
    total = weights.sum()
    return float(weights @ r / total) if total > 0.0 else float(r.mean())


def _leave_one_out(r: Floats, weights: Floats) -> Floats:
    # Summing the others, not subtracting one from the total: groups are small, and a long rollout
    # would cancel the digits of the short ones.
    keep = ~np.eye(len(r), dtype=bool)
    return np.array([_weighted_mean(r[keep[i]], weights[keep[i]]) for i in range(len(r))])
