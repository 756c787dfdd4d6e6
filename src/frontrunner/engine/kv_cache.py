"""Keys and values of all conversations, in pages of one block of memory with a fixed size.

    store [L, 2, pages, H_kv, page_size, D]      2: keys, values

`PagePool` decides which pages are whose, and knows nothing of tensors; `KVCache` is the memory.
The lowest free page is always given out first: what is in use stays together at the front, so
attention can read it in place (see `attention`), and memory that was never needed is never touched.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frontrunner.errors import UserError


class PagePool:
    """Hands out page numbers `0..num_pages`; every page has one owner or is free."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages, self.page_size = num_pages, page_size
        self._free = list(range(num_pages))
        self._is_free = [True] * num_pages

    @property
    def num_free(self) -> int:
        return len(self._free)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-num_tokens // self.page_size)

    def allocate(self, count: int) -> list[int]:
        """The lowest `count` free pages."""
        assert count <= self.num_free, f"{count} pages wanted, {self.num_free} free"
        pages = [heapq.heappop(self._free) for _ in range(count)]
        for page in pages:
            self._is_free[page] = False
        return pages

    def release(self, pages: Iterable[int]) -> None:
        """Give pages back."""
        for page in pages:
            assert not self._is_free[page], f"page {page} is free already"
            self._is_free[page] = True
            heapq.heappush(self._free, page)


def token_bytes(config: Any, itemsize: int) -> int:
    """Bytes of keys and values per token, over all layers."""
    heads, head_dim = kv_shape(config)
    return int(config.num_hidden_layers * 2 * heads * head_dim * itemsize)


def kv_shape(config: Any) -> tuple[int, int]:
    """Key-value heads and head dimension of a Hugging Face config."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return heads, head_dim


def pages_of_budget(config: Any, itemsize: int, num_bytes: int, page_size: int) -> int:
    """How many pages a budget in bytes buys; raises `UserError` when not even one."""
    page_bytes = token_bytes(config, itemsize) * page_size
    if num_bytes < page_bytes:
        raise UserError(
            f"a KV budget of {num_bytes} bytes holds not one page of {page_size} tokens "
            f"({page_bytes} bytes for this model); raise engine.kv_mib"
        )
    return num_bytes // page_bytes


class KVCache:
    """The memory behind the pages."""

    def __init__(self, config: Any, num_pages: int, page_size: int, like: Tensor) -> None:
        heads, head_dim = self.kv_shape = kv_shape(config)
        self.page_size = page_size
        shape = (config.num_hidden_layers, 2, num_pages, heads, page_size, head_dim)
        self.store = _zeros(shape, like)
        # per layer: `[pages, H, S, D]` to read, `[2 * pages * H * S, D]` to write
        self.keys = list(self.store[:, 0].unbind(0))
        self.values = list(self.store[:, 1].unbind(0))
        self._vectors = [layer.view(-1, head_dim) for layer in self.store.unbind(0)]
        kind = torch.arange(2, device=like.device)[:, None] * num_pages * heads * page_size
        self._offsets = kind + torch.arange(heads, device=like.device) * page_size  # [2, H]

    def places(self, pages: Tensor, offsets: Tensor) -> Tensor:
        """`[N * 2 * H]` vectors of the tokens at `offsets` `[N]` of `pages` `[N]`, for `write`."""
        first = pages * (self.kv_shape[0] * self.page_size) + offsets
        return (first[:, None, None] + self._offsets).flatten()

    def write(self, layer: int, places: Tensor, kv: Tensor) -> None:
        """Put keys and values `[N, 2, H, D]` (any shape of as many numbers) at their places."""
        vectors = self._vectors[layer]
        vectors.index_copy_(0, places, kv.reshape(-1, vectors.shape[1]))

    def gather(self, layer: int, pages: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """Keys and values `[1, H, total, D]` of the first tokens in `pages`: a copy."""
        heads, head_dim = self.kv_shape
        held = self.store[layer].index_select(1, pages).transpose(1, 2)  # [2, H, pages, S, D]
        both = held.reshape(2, 1, heads, -1, head_dim)[..., :total, :]
        return both[0], both[1]

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Whole pages, in all layers."""
        index = torch.tensor([source, target], device=self.store.device)
        self.store.index_copy_(2, index[1], self.store.index_select(2, index[0]))


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros, since masked places must hold finite numbers.

    On a CPU from `calloc`: the system commits memory only when a page is first written to.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    buffer = np.zeros(int(np.prod(shape)) * like.element_size(), dtype=np.uint8)
    return torch.from_numpy(buffer).view(like.dtype).view(shape)
