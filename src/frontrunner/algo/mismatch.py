"""How far the trainer's policy pi is from the sampler's mu on the tokens that mu drew.

Inputs are log-probabilities of the same sampled tokens, `[T]` each: `sampler` under mu, `trainer`
under pi. With r = pi / mu on a token, the estimators of KL(mu || pi) are those of Schulman's
"Approximating KL Divergence" (2020): k1 = -log r, unbiased, and k3 = r - 1 - log r, unbiased, never
negative and of lower variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_MAX_LOG_RATIO = 20.0
"""exp(20) is already absurd for one token; beyond it only overflow is at stake."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Summary over tokens; all zero when both sides agree."""

    k1: float
    k3: float
    max_abs: float
    """Largest absolute difference of log-probabilities."""
    mean_abs: float
    truncated: float
    """Share of tokens whose importance weight exceeds the cap."""
    num_tokens: int

    def metrics(self, prefix: str = "mismatch/") -> dict[str, float]:
        """For a metrics row."""
        return {prefix + key: float(value) for key, value in asdict(self).items()}


def _log_ratio(sampler: Sequence[float] | Floats, trainer: Sequence[float] | Floats) -> Floats:
    mu = np.asarray(sampler, dtype=np.float64)
    pi = np.asarray(trainer, dtype=np.float64)
    if mu.shape != pi.shape or mu.ndim != 1:
        raise ValueError(f"Need two lists of equal length, got {mu.shape} and {pi.shape}.")
    return pi - mu


def importance_weights(
    sampler: Sequence[float] | Floats, trainer: Sequence[float] | Floats, cap: float | None = None
) -> Floats:
    """pi / mu per token, `[T]`, at most `cap` (truncated importance sampling).

    Truncation bounds the variance and accepts a bias towards the sampler. None does not truncate.
    """
    if cap is not None and not cap > 0.0:
        raise ValueError(f"cap is {cap}; it must be positive.")
    weights = np.exp(np.minimum(_log_ratio(sampler, trainer), _MAX_LOG_RATIO))
    return weights if cap is None else np.minimum(weights, cap)


def kl_k1(sampler: Sequence[float] | Floats, trainer: Sequence[float] | Floats) -> float:
    """Mean of -log(pi / mu) in nats per token; may be negative on a finite sample."""
    log_ratio = _log_ratio(sampler, trainer)
    return float(-log_ratio.mean()) if len(log_ratio) else 0.0


def kl_k3(sampler: Sequence[float] | Floats, trainer: Sequence[float] | Floats) -> float:
    """Mean of r - 1 - log r in nats per token; never negative."""
    log_ratio = np.minimum(_log_ratio(sampler, trainer), _MAX_LOG_RATIO)
    # expm1 keeps the digits that exp(x) - 1 - x loses near 0, where engines should be.
    return float((np.expm1(log_ratio) - log_ratio).mean()) if len(log_ratio) else 0.0


def mismatch(
    sampler: Sequence[float] | Floats, trainer: Sequence[float] | Floats, cap: float = 2.0
) -> Mismatch:
    """All of it at once. Raises `ValueError` for inputs of unequal length."""
    log_ratio = _log_ratio(sampler, trainer)
    if len(log_ratio) == 0:
        return Mismatch(0.0, 0.0, 0.0, 0.0, 0.0, 0)
    gap = np.abs(log_ratio)
    return Mismatch(
        k1=kl_k1(sampler, trainer),
        k3=kl_k3(sampler, trainer),
        max_abs=float(gap.max()),
        mean_abs=float(gap.mean()),
        truncated=float(np.mean(log_ratio > np.log(cap))),
        num_tokens=len(log_ratio),
    )
