"""Which keys and values are at hand for a new context.

The next turn of a conversation starts with everything that the last turn computed; rollouts of a
group start with the same prompt. Contexts are found by hashes of their leading blocks, each hash
over the one before it, and the first one over the weight version, so that what older weights
computed cannot be found. Whatever the hashes say, tokens are compared before anything is used.

A context that continues a finished one takes over its pages. In every other case pages are copied:
copying is cheap beside computing, and every page keeps one owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

BLOCK = 16
"""Tokens per hash; shorter contexts are not found."""


class Source(Protocol):
    """Something that holds pages: a running row or a finished one."""

    tokens: list[int]
    pages: list[int]
    num_computed: int
    chain: list[int]


@dataclass(slots=True, eq=False)
class Cached:
    """Pages of a finished row, kept until the room is needed."""

    tokens: list[int]
    pages: list[int]
    chain: list[int]
    last_used: int
    num_computed: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_computed = len(self.tokens)


@dataclass(frozen=True, slots=True)
class Match:
    """`source` holds the first `length` tokens of the context, or will when its prefill is done."""

    source: Source
    length: int

    @property
    def ready(self) -> int:
        """Tokens that can be taken now."""
        return min(self.length, self.source.num_computed)

    @property
    def rank(self) -> tuple[int, int, bool]:
        """The larger, the better."""
        return self.length, self.ready, self.whole

    @property
    def whole(self) -> bool:
        """The source is finished and all of it is of use: its pages can be taken over."""
        return isinstance(self.source, Cached) and self.length == self.source.num_computed


class PrefixCache:
    """An index over running rows, and the pages of finished ones."""

    def __init__(self) -> None:
        self.cached: dict[Cached, None] = {}
        self._index: dict[int, dict[Source, None]] = {}

    @property
    def num_pages(self) -> int:
        """Pages that can be had by evicting."""
        return sum(len(entry.pages) for entry in self.cached)

    @staticmethod
    def extend(chain: list[int], tokens: Sequence[int], version: int) -> None:
        """Bring a chain of hashes up to date with the whole blocks of `tokens`."""
        for number in range(len(chain), len(tokens) // BLOCK):
            last = chain[-1] if chain else version
            block = tuple(tokens[number * BLOCK : (number + 1) * BLOCK])
            chain.append(hash((last, block)))

    def add(self, source: Source) -> None:
        """Let `source` be found by its chain."""
        for key in source.chain:
            self._index.setdefault(key, {})[source] = None
        if isinstance(source, Cached):
            self.cached[source] = None

    def remove(self, source: Source) -> None:
        """Forget a source; its pages are the caller's."""
        for key in source.chain:
            holders = self._index.get(key)
            if holders is not None and holders.pop(source, True) is None and not holders:
                del self._index[key]
        if isinstance(source, Cached):
            del self.cached[source]

    def match(self, tokens: Sequence[int], chain: Sequence[int]) -> Match | None:
        """The source that shares the longest prefix, short of the last token: that one has to be
        fed, since its output is wanted. Among equals one that has it ready, then one whose pages
        can be taken over."""
        holders: dict[Source, None] = {}
        for key in chain:
            deeper = self._index.get(key)
            if not deeper:
                break
            holders = deeper
        best, limit = None, len(tokens) - 1
        for source in holders:
            found = Match(source, _common(source.tokens, tokens))
            if best is None or found.rank > best.rank:
                best = found
            if best.ready == limit:
                break  # groups are large, and none of them can hold more
        return best if best and best.length else None

    def oldest(self, keep: Source | None = None) -> Cached | None:
        """What to evict next: unused for longest, but not `keep`."""
        entries = (entry for entry in self.cached if entry is not keep)
        return min(entries, key=lambda entry: entry.last_used, default=None)

    def clear(self) -> list[int]:
        """Forget everything; returns the pages of finished rows."""
        pages = [page for entry in self.cached for page in entry.pages]
        self.cached.clear()
        self._index.clear()
        return pages


def _common(held: Sequence[int], tokens: Sequence[int]) -> int:
    """Length of the common prefix, at most all but the last of `tokens`."""
    limit = min(len(held), len(tokens) - 1)
    low, high = 0, limit  # first `low` agree; bisecting compares slices at the speed of C
    while low < high:
        middle = (low + high + 1) // 2
        if held[low:middle] == tokens[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
