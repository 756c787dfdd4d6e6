"""Which samples share a forward pass, and where each of their tokens stands in it.

`pack` lays sequences out as a prefix tree, depth first: tokens that a group's rollouts have in
common (the opening at least, often the first turns) are computed once, and nothing is padding.

    a b c        places   0 1 2 | 3 | 4 5          token ids   a b c | d | e f
    a b d        ends     6 4 3 | 4 | 6 6
    a e f

Sorted lexicographically, a sequence shares most with the one before it, and the descendants of a
place are consecutive. One number per place then says all about attention: place k attends to place
j if and only if `j <= k < ends[j]`.

`pad` gives every sequence a row of its own, for models that cannot attend along a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

MIN_SHARED = 8
"""Shorter common beginnings are computed again. Sharing saves that many tokens and costs one more
attention call per layer, which takes as long as a few tokens of a small model."""


@dataclass(frozen=True, slots=True)
class Pack:
    """One forward pass over B rows of T places."""

    shape: tuple[int, int]
    """(B, T)"""
    members: tuple[int, ...]
    """Indices of the sequences in it."""
    paths: tuple[Ints, ...]
    """Per member `[L]`: the place of each of its tokens, counting through the rows."""
    ends: Ints | None
    """`[T]`, for one row that holds a prefix tree: the place after the last one that descends from
    each. None where every row is one sequence, padded at its end."""

    @property
    def num_tokens(self) -> int:
        """Tokens computed, padding included."""
        return self.shape[0] * self.shape[1]


def pack(sequences: Sequence[Sequence[int]], micro_tokens: int) -> list[Pack]:
    """Prefix trees of at most `micro_tokens` tokens (a longer sequence gets one of its own)."""
    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    packs: list[Pack] = []
    members: list[int] = []
    shared: list[int] = []
    tokens, before = 0, np.empty(0, dtype=np.int64)
    for index in order:
        ids = np.asarray(sequences[index], dtype=np.int64)
        common = common_prefix(before, ids) if members else 0
        common = common if common >= MIN_SHARED else 0
        if members and tokens + len(ids) - common > micro_tokens:
            packs.append(_tree(sequences, members, shared))
            members, shared, tokens, common = [], [], 0, 0
        members.append(index)
        shared.append(common)
        tokens += len(ids) - common
        before = ids
    if members:
        packs.append(_tree(sequences, members, shared))
    return packs


def common_prefix(a: Ints, b: Ints) -> int:
    """Number of leading tokens that two sequences have in common."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def _tree(sequences: Sequence[Sequence[int]], members: list[int], shared: list[int]) -> Pack:
    """Places of the members, each of which shares its first tokens with the member before it."""
    total = sum(len(sequences[i]) for i in members) - sum(shared)
    ends = np.full(total, total, dtype=np.int64)
    paths: list[Ints] = []
    path, stop = np.empty(0, dtype=np.int64), 0
    for index, common in zip(members, shared, strict=True):
        ends[path[common:]] = stop  # the tree goes on beside what is not shared
        added = len(sequences[index]) - common
        path = np.concatenate([path[:common], np.arange(stop, stop + added)])
        paths.append(path)
        stop += added
    return Pack((1, total), tuple(members), tuple(paths), ends)


def pad(lengths: Sequence[int], micro_tokens: int) -> list[Pack]:
    """Rows of similar length, at most `micro_tokens` with padding (or one longer row)."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    packs: list[Pack] = []
    while order:
        width = lengths[order[0]]
        count = max(1, micro_tokens // width)
        members, order = order[:count], order[count:]
        paths = tuple(row * width + np.arange(lengths[i]) for row, i in enumerate(members))
        packs.append(Pack((len(members), width), tuple(members), paths, None))
    return packs
