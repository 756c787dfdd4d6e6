"""Log-probabilities of chosen tokens without the logits of the whole vocabulary in memory.

The output projection is applied to a few hundred positions at a time, and again in the backward
pass: at most two `[chunk, V]` arrays exist at once, whatever the number of positions, for one
matrix product more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_LOGITS = 2**24
"""Logits computed at a time: 64 MiB of float32."""
MIN_POSITIONS = 256
"""Fewer positions at a time would read the projection's weights too often."""


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """log pi of the targets `[N]` and the entropy of each distribution `[N]`, from `[N, V]`.

    `temperature` is the sampler's: both sides speak of the same distribution.
    """
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    entropy = -(logprobs.detach().exp() * logprobs.detach()).sum(-1)
    return logprobs.gather(-1, targets[:, None])[:, 0], entropy


def projected_logprobs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """What `token_logprobs` gives for logits `hidden @ weight.T + bias`; float32, `[N]` each.

    Shapes: hidden `[N, D]`, weight `[V, D]`, bias `[V]`, targets `[N]`. Entropy has no gradient.
    """
    result: tuple[Tensor, Tensor] = _Projected.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, temperature
    )
    return result


def chunk_positions(vocabulary: int) -> int:
    """Positions whose logits are computed at a time."""
    return max(MIN_POSITIONS, CHUNK_LOGITS // vocabulary)


def _chunks(positions: int, vocabulary: int) -> list[slice]:
    size = chunk_positions(vocabulary)
    return [slice(start, start + size) for start in range(0, positions, size)]


def _scaled_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float
) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias)
    return logits.float().div_(temperature)


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(len(targets), dtype=torch.float32)
        entropy, normaliser = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for part in _chunks(len(targets), len(weight)):
            logs = _scaled_logits(hidden[part], weight, bias, temperature)
            normaliser[part] = logs.logsumexp(-1)
            logs -= normaliser[part, None]
            logprobs[part] = logs.gather(-1, targets[part, None])[:, 0]
            entropy[part] = -logs.exp().mul_(logs).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normaliser = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden)
        # Summed in float32: the parts of many chunks would lose small terms in bfloat16.
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for part in _chunks(len(targets), len(weight)):
            logs = _scaled_logits(hidden[part], weight, bias, ctx.temperature)
            delta = logs.sub_(normaliser[part, None]).exp_()  # the distribution itself
            scale = grad[part, None] / ctx.temperature
            delta.mul_(-scale).scatter_add_(-1, targets[part, None], scale)
            if of_bias is not None:
                of_bias += delta.sum(0)
            delta = delta.to(weight.dtype)
            of_hidden[part] = delta @ weight
            if weight.dtype == torch.float32:
                of_weight.addmm_(delta.T, hidden[part])
            else:
                of_weight += delta.T @ hidden[part]
        of_bias = None if of_bias is None else of_bias.to(bias.dtype)
        return of_hidden, of_weight.to(weight.dtype), of_bias, None, None
