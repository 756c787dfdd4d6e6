"""Sequence packing: which samples share a row, and which rows share a forward pass.

Pure index arithmetic. Samples are sorted by length and placed first-fit, so that a micro-batch
has almost no padding. Samples in one row never attend to each other: the trainer builds a
block-diagonal mask from the segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of sample indices; every row is at most `width` tokens long."""

    width: int
    rows: tuple[tuple[int, ...], ...]

    @property
    def num_tokens(self) -> int:
        """Tokens computed, padding included."""
        return self.width * len(self.rows)


def pack(lengths: Sequence[int], micro_tokens: int) -> list[MicroBatch]:
    """Micro-batches of at most `micro_tokens` tokens (a longer sample gets one of its own).

    `pack([5, 3, 2], 10)` is one micro-batch of width 5 with rows (0,) and (1, 2).
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[MicroBatch] = []
    rows: list[list[int]] = []
    used: list[int] = []
    width = 0
    for index in order:
        length = lengths[index]
        place = next((r for r, tokens in enumerate(used) if tokens + length <= width), None)
        if place is not None:
            rows[place].append(index)
            used[place] += length
            continue
        if rows and width * (len(rows) + 1) > micro_tokens:
            batches.append(MicroBatch(width, tuple(tuple(r) for r in rows)))
            rows, used = [], []
        width = width if rows else length
        rows.append([index])
        used.append(length)
    if rows:
        batches.append(MicroBatch(width, tuple(tuple(r) for r in rows)))
    return batches
