"""Estimates of ||grad log pi(y)||^2 of a rollout, as weights for its baseline; one forward pass.

For one token with probabilities p `[V]` over the vocabulary and sampled token y, the gradient of
log p_y with respect to the logits is e_y - p. Its squared norm is 1 - 2 p_y + sum_v p_v^2. Adding
it up over tokens takes the tokens' gradients as orthogonal; times ||h||^2, h the input of the last
linear layer, it is the exact squared norm of that layer's weights' gradient for a single token.
Lengths count all tokens alike; these count surprising ones more (OTB, arXiv 2602.07078).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def effective_length(kept: Sequence[int]) -> int:
    """Tokens that were a choice: those whose kept set of top-p sampling had more than one member.

    With the kept set replayed in training, a token without alternative has no gradient.
    """
    return sum(size > 1 for size in kept)


def logit_norms(logprobs: Floats, tokens: npt.NDArray[np.int64]) -> Floats:
    """||e_y - p||^2 per token, `[T]`, from full log-probabilities `[T, V]` and tokens `[T]`."""
    p = np.exp(logprobs)
    chosen = p[np.arange(len(tokens)), tokens]
    return np.asarray(1.0 - 2.0 * chosen + (p**2).sum(-1))


def entropies(logprobs: Floats) -> Floats:
    """Entropy per token in nats, `[T]`, from `[T, V]`; -inf marks tokens that were cut off."""
    p = np.exp(logprobs)
    return np.asarray(-(p * np.where(p > 0.0, logprobs, 0.0)).sum(-1))


def last_layer_norm(logprobs: Floats, tokens: npt.NDArray[np.int64], hidden: Floats) -> float:
    """Exact ||d log pi(y) / d W||^2 of a last layer logits = W h without bias, for one rollout.

    The gradient is sum_t (e_y - p)_t h_t^T, so its squared norm is the sum over pairs of tokens of
    (g_s . g_t)(h_s . h_t): O(T^2) without a `[V, H]` matrix per rollout. `hidden`: `[T, H]`.
    """
    g = -np.exp(logprobs)
    g[np.arange(len(tokens)), tokens] += 1.0
    return float(((g @ g.T) * (hidden @ hidden.T)).sum())
