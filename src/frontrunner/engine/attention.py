"""Attention of one pass over the paged cache: decoding rows together, prompts one by one.

The tokens of a pass lie side by side, `[N, ...]`: first one token of each single row, then the
chunks. Nothing is padded to a longest row, and keys and values are read where they lie.

**Single rows.** Every page is attended to on its own, by the query of the row that owns it; the
pages of a row are then merged by their log-sum-exp, as in flash decoding (Dao et al. 2023):

    o_p, lse_p = attention(q[owner(p)], K_p, V_p)          all pages p in one call
    o = sum_p softmax_p(lse_p) * o_p                        over the pages of a row

Pages of others that lie between are attended to in vain, which is cheaper than copying, as long as
at least half of the pages read are of use; otherwise the useful ones are gathered first.

**Chunks.** A chunk attends to its row's pages, gathered, and causally to itself.

Grouped queries are folded into query rows, so keys and values are never repeated.

Legend: N tokens, B single rows, P pages read, M most pages of a row, S page size, Hq query heads,
H key-value heads, G = Hq / H, D head dimension, T tokens attended to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from frontrunner.engine.kv_cache import KVCache
from frontrunner.engine.scheduler import Plan

MASK_ROWS = 256
"""Queries of a later chunk that are masked together: bounds the mask at 256 times the context."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start..stop` of the pass, which follow `num_before` tokens of their row."""

    start: int
    stop: int
    num_before: int
    pages: Tensor | None
    """`[pages]` of the row up to the chunk's end; None for a first chunk, which needs no others."""
    mask: Tensor | None
    """`[stop - start, T]` additive."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tokens of one pass read and write."""

    places: Tensor
    """`[N * 2 * H]` where keys and values are written (see `KVCache.places`)."""
    num_singles: int
    num_pages: int
    """P, where pages 0..P are read in place; 0 where they are gathered."""
    gather: Tensor | None
    """`[P]` pages to gather."""
    owner: Tensor
    """`[P]` single row whose query each page answers."""
    mask: Tensor
    """`[P, 1, 1, S]` additive, minus infinity beyond a row's last token."""
    table: Tensor
    """`[B * M]` places in `0..P` of each row's pages."""
    absent: Tensor | None
    """`[B, M, 1, 1]` additive, minus infinity where a row has fewer pages than M."""
    chunks: tuple[Chunk, ...]


def layout_of(plan: Plan, cache: KVCache) -> Layout:
    """The layout of a pass."""
    rows, size, device = plan.singles, cache.page_size, cache.store.device
    pages = [row.pages[row.num_computed // size] for row in rows]
    offsets = [row.num_computed % size for row in rows]
    start, chunks = len(rows), []
    for row, count in plan.chunks:
        at = np.arange(row.num_computed, row.num_computed + count)
        pages += np.array(row.pages)[at // size].tolist()
        offsets += (at % size).tolist()
        step = count if row.num_computed == 0 else MASK_ROWS
        for first in range(0, count, step):
            last = min(count, first + step)
            before = row.num_computed + first
            chunks.append(_chunk(start + first, start + last, before, row.pages, cache))
        start += count
    singles = _singles(
        [row.pages[: row.num_computed // size + 1] for row in rows],
        [row.num_computed + 1 for row in rows],
        size,
        device,
    )
    places = cache.places(torch.tensor(pages, device=device), torch.tensor(offsets, device=device))
    return Layout(places, len(rows), *singles, tuple(chunks))


def _chunk(start: int, stop: int, before: int, pages: list[int], cache: KVCache) -> Chunk:
    if before == 0:
        return Chunk(start, stop, 0, None, None)
    total, device = before + stop - start, cache.store.device
    used = torch.tensor(pages[: -(-total // cache.page_size)], device=device)
    at = torch.arange(before, total, device=device)[:, None]
    hidden = torch.arange(total, device=device)[None] > at
    mask = cache.store.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
    return Chunk(start, stop, before, used, mask)


def _singles(
    pages: list[list[int]], lengths: list[int], page_size: int, device: torch.device
) -> tuple[int, Tensor | None, Tensor, Tensor, Tensor, Tensor | None]:
    """`num_pages` to `absent` of a `Layout`, for rows with these pages and numbers of tokens."""
    counts = np.array([len(p) for p in pages], dtype=np.int64)
    flat = np.array([page for own in pages for page in own], dtype=np.int64)
    owners = np.repeat(np.arange(len(pages)), counts)
    ends = counts.cumsum()
    valid = np.full(len(flat), page_size)
    if len(flat):
        valid[ends - 1] = np.array(lengths) - (counts - 1) * page_size
    span = int(flat.max(initial=-1)) + 1
    in_place = 2 * len(flat) >= span
    if in_place:
        owner, visible = np.zeros(span, dtype=np.int64), np.full(span, page_size)
        owner[flat], visible[flat], place = owners, valid, flat
    else:
        owner, visible, place = owners, valid, np.arange(len(flat))
    most = int(counts.max(initial=0))
    column = np.arange(most)[None]
    present = column < counts[:, None]
    table = np.zeros((len(pages), most), dtype=np.int64)
    table[present] = place
    mask = np.where(np.arange(page_size)[None] < visible[:, None], 0.0, -np.inf)
    absent = np.where(present, 0.0, -np.inf)[:, :, None, None]
    return (
        span if in_place else 0,
        None if in_place else torch.from_numpy(flat).to(device),
        torch.from_numpy(owner).to(device),
        torch.from_numpy(mask[:, None, None].astype(np.float32)).to(device),
        torch.from_numpy(table.reshape(-1)).to(device),
        None if present.all() else torch.from_numpy(absent.astype(np.float32)).to(device),
    )


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: KVCache,
    layer: int,
    layout: Layout,
    scale: float,
) -> Tensor:
    """Attention output `[N, Hq, D]` for `query` `[N, Hq, D]`, `key` and `value` `[N, H, D]`.

    The keys and values must be in the cache already; those given serve first chunks.
    """
    singles = layout.num_singles
    parts = []
    if singles:
        parts.append(_attend_singles(query[:singles], cache, layer, layout, scale))
    for chunk in layout.chunks:
        own = slice(chunk.start, chunk.stop)
        q = query[own].transpose(0, 1)[None]
        if chunk.pages is None:
            k, v = key[own].transpose(0, 1)[None], value[own].transpose(0, 1)[None]
        else:
            total = chunk.num_before + chunk.stop - chunk.start
            k, v = cache.gather(layer, chunk.pages, total)
        mask = chunk.mask
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
        )
        parts.append(out[0].transpose(0, 1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_singles(
    query: Tensor, cache: KVCache, layer: int, layout: Layout, scale: float
) -> Tensor:
    """`[B, Hq, D]` from `query` `[B, Hq, D]` and the layer's pages."""
    rows, _, dim = query.shape
    heads = cache.kv_shape[0]
    if layout.gather is None:
        k, v = cache.keys[layer][: layout.num_pages], cache.values[layer][: layout.num_pages]
    else:
        k = cache.keys[layer].index_select(0, layout.gather)
        v = cache.values[layer].index_select(0, layout.gather)
    q = query.reshape(rows, heads, -1, dim).index_select(0, layout.owner)
    out, lse = page_attention(q, k, v, layout.mask, scale)
    out = out.index_select(0, layout.table)
    if len(layout.table) == rows:  # one page each: nothing to merge
        return out.reshape(rows, -1, dim)
    most = len(layout.table) // rows
    weight = lse.index_select(0, layout.table).view(rows, most, heads, -1)
    if layout.absent is not None:
        weight = weight + layout.absent
    weight = torch.softmax(weight, dim=1)[..., None]
    merged = (out.view(rows, most, heads, -1, dim) * weight).sum(1)  # float32 where out is lower
    return merged.to(query.dtype).view(rows, -1, dim)


def page_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Output `[P, H, G, D]` and log-sum-exp `[P, H, G]` (float32) of every page on its own.

    `query` `[P, H, G, D]`, `key` and `value` `[P, H, S, D]`, `mask` `[P, 1, 1, S]`.
    """
    if query.device.type == "cpu" and query.dtype == torch.float32:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=mask, scale=scale
        )
        return out, lse
    return plain_page_attention(query, key, value, mask, scale)


def plain_page_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The same by batched matrix products, for every device and type.

    Also on a CPU in bfloat16: the kernel above calls one small product per page and head, and
    those have a high fixed price in lower precision.
    """
    scores = (query @ key.transpose(-1, -2)).float() * scale + mask
    lse = torch.logsumexp(scores, dim=-1)
    return (scores - lse[..., None]).exp().to(value.dtype) @ value, lse
