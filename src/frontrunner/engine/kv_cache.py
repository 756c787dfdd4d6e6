"""Keys and values of every running conversation, in one block of memory.

One slot per conversation: `[slot, H_kv, T, D]` per layer. A finished request leaves its tokens in
the slot, so the next turn of the same conversation finds its prefix there and only the new tokens
are computed. While most slots are busy the decode step reads `0..n` in place; when few are left it
gathers those few, since a copy is then cheaper than attending for idle rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class SlotCache:
    """A Hugging Face `Cache` over fixed slots.

    `bind` says which slots and positions the next forward pass reads and writes; `update` is
    called by each attention layer. Nothing is valid beyond `length(slot)`.
    """

    is_compileable = False

    def __init__(self, config: Any, num_slots: int, max_context: int, like: Tensor) -> None:
        head_dim = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        # one spare position: rows of idle slots write their dummy token past the last valid one
        shape = (num_slots, heads, max_context + 1, head_dim)
        self.keys = [like.new_zeros(shape) for _ in range(config.num_hidden_layers)]
        self.values = [like.new_zeros(shape) for _ in range(config.num_hidden_layers)]
        self.tokens: list[list[int]] = [[] for _ in range(num_slots)]
        self.last_used = [0] * num_slots
        self.num_slots, self.max_context = num_slots, max_context
        self._rows: slice | Tensor = slice(0, 0)
        self._width = 0
        self._positions: Tensor | None = None

    def length(self, slot: int) -> int:
        """Valid tokens in the slot."""
        return len(self.tokens[slot])

    def choose(self, token_ids: tuple[int, ...], free: list[int]) -> tuple[int, int]:
        """The free slot to use for a context, and how many of its leading tokens it already holds.

        A slot whose whole content is a prefix of the context is this conversation's earlier turn.
        Otherwise the slot unused for longest is taken: others may still be waiting on a tool.
        """
        for slot in sorted(free, key=self.length, reverse=True):
            held = self.tokens[slot]
            if held and len(held) < len(token_ids) and tuple(held) == token_ids[: len(held)]:
                return slot, len(held)
        slot = min(free, key=lambda s: (self.last_used[s], s))
        common = 0
        for held_token, token in zip(self.tokens[slot], token_ids[:-1], strict=False):
            if held_token != token:
                break
            common += 1
        return slot, common

    def clear(self) -> None:
        """Forget everything, so that what comes next depends on what is asked alone."""
        self.tokens = [[] for _ in range(self.num_slots)]
        self.last_used = [0] * self.num_slots

    def bind_prefill(self, slot: int, start: int, stop: int) -> None:
        """The next pass writes positions `start..stop` of one slot and reads up to `stop`."""
        self._rows, self._width = slice(slot, slot + 1), stop
        self._positions = torch.arange(start, stop, device=self.keys[0].device)[None]

    def bind_decode(self, running: list[int]) -> tuple[list[int], Tensor]:
        """The next pass writes one position per row. Returns the slot of every row, which may
        include idle ones, and the positions `[B, 1]`."""
        span = max(running) + 1
        slots = running if 2 * len(running) < span else list(range(span))
        device = self.keys[0].device
        self._rows = torch.tensor(slots, device=device) if len(slots) < span else slice(0, span)
        self._positions = torch.tensor([self.length(s) for s in slots], device=device)[:, None]
        self._width = int(self._positions.max()) + 1
        return slots, self._positions

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store `[B, H, q, D]` at the bound places; returns `[B, H, T, D]` to attend to."""
        positions, rows, width = self._positions, self._rows, self._width
        assert positions is not None
        held_k, held_v = self.keys[layer_idx], self.values[layer_idx]
        if isinstance(rows, Tensor):
            held_k[rows[:, None], :, positions] = keys.transpose(1, 2)
            held_v[rows[:, None], :, positions] = values.transpose(1, 2)
            return (
                held_k[:, :, :width].index_select(0, rows),
                held_v[:, :, :width].index_select(0, rows),
            )
        held_k, held_v = held_k[rows], held_v[rows]
        index = torch.arange(held_k.shape[0], device=keys.device)[:, None]
        held_k[index, :, positions] = keys.transpose(1, 2)
        held_v[index, :, positions] = values.transpose(1, 2)
        return held_k[:, :, :width], held_v[:, :, :width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions and masks are always given explicitly
