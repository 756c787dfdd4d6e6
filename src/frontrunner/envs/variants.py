"""Harder bugs than one changed token: removed functionality, and several changes at once."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations as subsets

from frontrunner.envs.mutations import Function, content
from frontrunner.types import Mutation

MAX_PARTS = 3
"""Changes of a combined bug at most."""
MAX_COMBINED = 6
"""Combinations of one function that are tried at most."""


def removals(function: Function) -> list[Mutation]:
    """The body of a function gone, then every branch, loop or `with` of it gone.

    What is left still parses: `raise NotImplementedError` for the body, `pass` for a part.
    """
    node = function.node
    body = node.body[ast.get_docstring(node, clean=False) is not None :]
    if not body:
        return []
    found = [_span(body[0], body[-1], "raise NotImplementedError")]
    blocks = ast.If | ast.For | ast.While | ast.With | ast.Try
    for statement in body:
        for part in ast.walk(statement):
            if isinstance(part, blocks):
                found.append(_span(part, part, "pass"))
            if isinstance(part, ast.If) and part.orelse and not isinstance(part.orelse[0], ast.If):
                found.append(_span(part.orelse[0], part.orelse[-1], "pass"))
    # An `elif` starts in the middle of its parent's text and cannot become a statement.
    inner = {
        (s.lineno, s.col_offset)
        for part in ast.walk(node)
        if isinstance(part, ast.If)
        for s in part.orelse
        if isinstance(s, ast.If) and s.col_offset == part.col_offset
    }
    return [m for m in found if (m.line, m.col) not in inner]


def _span(first: ast.stmt, last: ast.stmt, after: str) -> Mutation:
    end_line, end_col = last.end_lineno or last.lineno, last.end_col_offset or 0
    return Mutation("removed", first.lineno, first.col_offset, end_line, end_col, after)


def combinations(singles: Sequence[Mutation]) -> list[Mutation]:
    """Two, then three of the given changes at once, none of which touches another's lines."""
    found = [m for size in range(2, MAX_PARTS + 1) for m in _combined(singles, size)]
    found.sort(key=lambda m: hashlib.sha256(repr(content(m)).encode()).hexdigest())
    return found[:MAX_COMBINED]


def _combined(singles: Sequence[Mutation], size: int) -> Iterator[Mutation]:
    for chosen in subsets(sorted(singles, key=lambda m: (m.line, m.col)), size):
        if len({m.line for m in chosen}) == size:
            first, *more = chosen
            yield replace(first, kind="combined", more=tuple(more))


def combined_parts(mutation: Mutation, singles: Sequence[Mutation]) -> list[Mutation]:
    """The changes that a combined one was made of."""
    parts = [s for s in singles if replace(s, kind="combined") == replace(mutation, more=())]
    return [*parts, *mutation.more]
