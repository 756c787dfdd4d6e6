"""Sampling that depends on (seed, position) and the distribution only, never on the batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from a counter-based generator (SplitMix64 finaliser)."""
    x = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((x ^ (x >> 31)) >> 11) / (1 << 53)


def sample(
    logits: Tensor, temperatures: Sequence[float], draws: Sequence[float]
) -> tuple[list[int], list[float]]:
    """One token per row of `[B, V]` by inverse CDF, with its log-probability.

    The log-probability is that of the distribution sampled from, so after temperature; the trainer
    computes it the same way.
    """
    scale = torch.tensor(temperatures, dtype=torch.float32, device=logits.device)[:, None]
    logprobs = torch.log_softmax(logits.float() / scale, dim=-1)
    cdf = logprobs.double().exp().cumsum(-1)
    target = torch.tensor(draws, dtype=torch.float64, device=logits.device)[:, None] * cdf[:, -1:]
    tokens = torch.searchsorted(cdf, target, right=True).clamp_max(logits.shape[-1] - 1)
    picked = logprobs.gather(-1, tokens)[:, 0]
    ids: list[int] = tokens[:, 0].tolist()
    values: list[float] = picked.tolist()
    return ids, values
