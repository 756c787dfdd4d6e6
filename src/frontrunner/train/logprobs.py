"""Log-probabilities of chosen tokens without the logits of the whole vocabulary in memory.

The output projection is applied to a few hundred positions at a time, and again in the backward
pass: at most two `[chunk, V]` arrays exist at once, whatever the number of positions, for one
matrix product more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from frontrunner.train.replay import Kept, restrict

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
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    kept: Kept = (),
) -> tuple[Tensor, Tensor]:
    """What `token_logprobs` gives for logits `hidden @ weight.T + bias` cut to `kept`.

    Shapes: hidden `[N, D]`, weight `[V, D]`, bias `[V]`, targets `[N]`; float32 `[N]` out.
    Entropy has no gradient.
    """
    result: tuple[Tensor, Tensor] = _Projected.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, temperature, kept
    )
    return result


def chunk_positions(vocabulary: int) -> int:
    """Positions whose logits are computed at a time."""
    return max(MIN_POSITIONS, CHUNK_LOGITS // vocabulary)


def _chunks(positions: int, vocabulary: int) -> list[slice]:
    size = chunk_positions(vocabulary)
    return [slice(start, start + size) for start in range(0, positions, size)]


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, kept: Kept
) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias).float()
    return restrict(logits if temperature == 1.0 else logits.div_(temperature), kept)


class _Projected(torch.autograd.Function):
    """A pass over `[chunk, V]` costs as much as some of the arithmetic: there are few of them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        kept: Kept,
    ) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(len(targets), dtype=torch.float32)
        entropy = torch.empty_like(logprobs)
        for part in _chunks(len(targets), len(weight)):
            logits = _logits(hidden[part], weight, bias, temperature, kept[part])
            logs = torch.log_softmax(logits, -1)
            logprobs[part] = logs.gather(-1, targets[part, None])[:, 0]
            chances = torch.exp(logs, out=logits)
            entropy[part] = -torch.bmm(chances[:, None], logs[:, :, None])[:, 0, 0]
        ctx.save_for_backward(hidden, weight, bias, targets)
        ctx.temperature, ctx.kept = temperature, kept
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden)
        # Summed in float32: the parts of many chunks would lose small terms in bfloat16.
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        scale = -grad[:, None] / ctx.temperature
        for part in _chunks(len(targets), len(weight)):
            logits = _logits(hidden[part], weight, bias, ctx.temperature, ctx.kept[part])
            delta = torch.softmax(logits, -1)
            delta.scatter_add_(-1, targets[part, None], -torch.ones_like(scale[part]))
            if of_bias is not None:
                of_bias += delta.T @ scale[part, 0]
            # Each row's own factor is applied to the narrow side of the products.
            delta, scaled = delta.to(weight.dtype), (hidden[part] * scale[part]).to(weight.dtype)
            of_hidden[part] = ((delta @ weight) * scale[part]).to(hidden.dtype)
            if weight.dtype == torch.float32:
                of_weight.addmm_(delta.T, scaled)
            else:
                of_weight += delta.T @ scaled
        of_bias = None if of_bias is None else of_bias.to(bias.dtype)
        return of_hidden, of_weight.to(weight.dtype), of_bias, None, None, None
