"""Attention along a prefix tree, for every model that uses transformers' attention interface.

A pack is one row of T tokens in which place k attends to place j when `j <= k < ends[j]` (see
`algo.packing`). No `[T, T]` mask is built. A tree falls into two kinds of rectangles:

- chains: consecutive places from one leaf to the next, causal within themselves;
- spans: keys of a chain that stretches of later chains descend from, attended to in full.

On a CPU each rectangle is one call of torch's flash kernel. Several rectangles meet in one query
through their log-normalisers: with l = log sum exp of the scores of each part,

    out = sum_i exp(l_i - l) out_i,    l = log sum_i exp(l_i)

and as the kernel's backward pass needs nothing but `out` and `l`, giving it those of the whole
makes the gradient of every part exact. Heads that share keys become a batch with stride 0, so keys
are never repeated in memory. On CUDA the same pattern is a block mask of FlexAttention. What
neither computes (tiny heads on CUDA, keys and values of unequal width) takes the plain masked path.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

NAME = "prefix_tree"
"""Value of `attn_implementation`."""

BLOCK = 128
"""Side of FlexAttention's blocks."""

_UNKNOWN = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Arguments of attention variants that are not computed here."""


class PrefixTree:
    """The attention pattern of one pack of T places."""

    def __init__(self, ends: npt.NDArray[np.int64], device: torch.device | str = "cpu") -> None:
        self.ends = torch.from_numpy(ends).to(device)
        places = np.arange(1, len(ends) + 1)
        stops = places[ends == places]  # nothing descends from the last place of a chain
        starts = np.concatenate([[0], stops[:-1]])
        self.chains: list[tuple[int, int]] = list(zip(starts.tolist(), stops.tolist(), strict=True))
        """(start, stop) of every chain."""
        # Runs of equal `ends` are the pieces of a chain that the same places descend from.
        cuts = np.union1d(np.flatnonzero(np.diff(ends)) + 1, np.concatenate([starts, stops]))
        self.spans: list[tuple[int, int, int, int]] = []
        """(key start, key stop, query start, query stop)."""
        for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            leaf = int(stops[np.searchsorted(stops, stop)])
            if ends[start] > leaf:
                self.spans.append((start, stop, leaf, int(ends[start])))

    def dense(self) -> Tensor:
        """The pattern as a mask `[T, T]`, true where a row (query) attends to a column (key)."""
        place = torch.arange(len(self.ends), device=self.ends.device)
        return (place <= place[:, None]) & (place[:, None] < self.ends)

    @functools.cached_property
    def blocks(self) -> BlockMask:
        """The pattern for FlexAttention, from the largest and smallest end of every block."""
        size = len(self.ends)
        number = -(-size // BLOCK)
        ends = torch.nn.functional.pad(self.ends, (0, number * BLOCK - size))
        first, last = ends.view(number, BLOCK).amax(1), ends.view(number, BLOCK).amin(1)
        start = torch.arange(number, device=ends.device)[:, None] * BLOCK  # of the queries' block
        stop = (start + BLOCK).clamp(max=size)
        earlier = start > start.T
        full = earlier & (last >= stop)
        part = (earlier & (first > start) & ~full) | (start == start.T)

        def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < ends[key])

        return BlockMask.from_kv_blocks(
            *_ordered(part), *_ordered(full), BLOCK, attends, seq_lengths=(size, size)
        )


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Number `[1, 1, n]` and indices `[1, 1, n, n]` of the true blocks in every row of `[n, n]`."""
    count = blocks.sum(-1, dtype=torch.int32)
    indices = blocks.int().argsort(dim=-1, descending=True, stable=True).int()
    return count[None, None], indices[None, None]


class _FlashTree(torch.autograd.Function):
    """Tree attention on a CPU. Shapes: G heads share each of H key heads, T places, width D."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, tree: PrefixTree, scale: float
    ) -> Tensor:
        """`[G, H, T, D]` from queries of that shape and keys and values `[1, H, T, D]`."""
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        keys, values = key.expand_as(query), value.expand_as(query)
        # Parts are joined in float32, whatever the model computes in.
        out = torch.empty_like(query, dtype=torch.promote_types(query.dtype, torch.float32))
        total = out.new_empty(query.shape[:-1])
        for a, b in tree.chains:
            mine = slice(a, b)
            out[:, :, mine], total[:, :, mine] = flash(
                query[:, :, mine], keys[:, :, mine], values[:, :, mine], 0.0, True, scale=scale
            )
        for a, b, c, d in tree.spans:
            theirs, mine = slice(a, b), slice(c, d)
            part, log = flash(
                query[:, :, mine], keys[:, :, theirs], values[:, :, theirs], 0.0, False, scale=scale
            )
            share = torch.sigmoid(log - total[:, :, mine])[..., None]
            out[:, :, mine] = torch.lerp(out[:, :, mine], part.to(out.dtype), share)
            total[:, :, mine] = torch.logaddexp(total[:, :, mine], log)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.tree, ctx.scale = tree, scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        query, key, value, out, total = ctx.saved_tensors
        keys, values = key.expand_as(query), value.expand_as(query)
        wide = torch.promote_types(query.dtype, torch.float32)
        grads = [torch.zeros_like(x, dtype=wide) for x in (query, key, value)]
        parts = [(a, b, a, b, True) for a, b in ctx.tree.chains]
        parts += [(*span, False) for span in ctx.tree.spans]
        for a, b, c, d, causal in parts:
            theirs, mine = slice(a, b), slice(c, d)
            of_query, of_key, of_value = flash(
                grad[:, :, mine], query[:, :, mine], keys[:, :, theirs], values[:, :, theirs],
                out[:, :, mine], total[:, :, mine], 0.0, causal, scale=ctx.scale,
            )  # fmt: skip
            grads[0][:, :, mine] += of_query
            grads[1][:, :, theirs] += of_key.sum(0, keepdim=True)
            grads[2][:, :, theirs] += of_value.sum(0, keepdim=True)
        return *(g.to(query.dtype) for g in grads), None, None


def _cpu(query: Tensor, key: Tensor, value: Tensor, tree: PrefixTree, scale: float) -> Tensor:
    heads = key.shape[1]
    grouped = query[0].view(heads, -1, *query.shape[2:]).transpose(0, 1)
    out: Tensor = _FlashTree.apply(grouped, key, value, tree, scale)  # type: ignore[no-untyped-call]
    return out.transpose(0, 1).flatten(0, 1)[None]


@functools.cache
def _compiled() -> Any:
    return torch.compile(flex_attention)


def _cuda(query: Tensor, key: Tensor, value: Tensor, tree: PrefixTree, scale: float) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    out: Tensor = _compiled()(
        query, key, value, block_mask=tree.blocks, scale=scale, enable_gqa=grouped
    )
    return out


def _masked(query: Tensor, key: Tensor, value: Tensor, tree: PrefixTree, scale: float) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, tree.dense(), scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )


def tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    prefix_tree: PrefixTree | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`[1, T, H, D]` from queries `[1, H, T, D]` and keys and values `[1, H_kv, T, D]`.

    Without a tree it is transformers' `sdpa`, so a prepared model serves everything else as before.
    Raises `NotImplementedError` for variants that it does not compute.
    """
    if prefix_tree is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return plain
    odd = [name for name in _UNKNOWN if kwargs.get(name) is not None]
    if odd:
        raise NotImplementedError(f"attention with {odd[0]}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    even = query.shape[-1] == value.shape[-1]
    if query.device.type == "cpu" and even:
        out = _cpu(query, key, value, prefix_tree, scale)
    elif query.device.type == "cuda" and even and query.shape[-1] >= 16:
        out = _cuda(query, key, value, prefix_tree, scale)
    else:
        out = _masked(query, key, value, prefix_tree, scale)
    return out.transpose(1, 2).contiguous(), None


def install(model: Any) -> None:
    """Make a model use `tree_attention`. Masks of other calls are built as for `sdpa`."""
    AttentionInterface.register(NAME, tree_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
