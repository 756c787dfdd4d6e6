"""The policy-gradient loss: REINFORCE with truncated importance weights, summed over tokens.

    loss = - sum_t  min(pi/mu, cap) * A * log pi(t)  +  kl_coef * KL(pi || ref)

divided by one constant for the whole step. pi is the trainer's policy, mu the sampler's; the
weight carries no gradient. With mu = pi it is 1 and the gradient is the plain policy gradient.
There is no clipping of the ratio and no division by a standard deviation.
"""

from __future__ import annotations

from torch import Tensor


def policy_loss(
    logprobs: Tensor, sampler: Tensor, advantages: Tensor, weights: Tensor, cap: float
) -> Tensor:
    """Summed loss (scalar) over tokens; all inputs `[N]`. Divide by the step's constant."""
    ratio = (logprobs.detach() - sampler).exp().clamp(max=cap)
    return -(weights * ratio * advantages * logprobs).sum()


def kl_loss(
    logprobs: Tensor, sampler: Tensor, reference: Tensor, weights: Tensor, cap: float
) -> Tensor:
    """Summed loss whose gradient is that of KL(pi || reference); all inputs `[N]`.

    Differentiating an estimate of KL on samples of pi is not the gradient of KL. The squared
    log-ratio (k2 of Schulman 2020) is the one whose derivative is right in expectation.
    """
    ratio = (logprobs.detach() - sampler).exp().clamp(max=cap)
    return (weights * ratio * 0.5 * (logprobs - reference) ** 2).sum()


def kl_estimate(logprobs: Tensor, reference: Tensor) -> Tensor:
    """k3 estimate of KL(pi || reference) per token `[N]`: never negative, for the metrics."""
    log_ratio = (reference - logprobs).clamp(max=20.0)
    return log_ratio.exp() - log_ratio - 1.0
