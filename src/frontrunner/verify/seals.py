"""Proof that the code under test reached the end of each test, not only that a runner says so.

A copy of a test file gets one more statement at the end of each judged test, which leaves a random
token; a last test of ours fails with all tokens in its message. A forged report does not know the
tokens: they are only in the code of the tests, and change with every run. The statement is an
assertion, so that a run in which assertions do nothing leaves no token either.
"""

from __future__ import annotations

import ast
import posixpath
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from frontrunner.verify.canaries import WORDS
from frontrunner.verify.syntax import parse

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_End = tuple[int, str]
"""Index in the list of lines where a statement is put, and its indentation."""


@dataclass(frozen=True, slots=True)
class Seals:
    """Test files with tokens in them, and what to run."""

    files: dict[str, str]
    tests: tuple[str, ...]
    """Node ids to run, in their order; the last one shows the tokens."""
    tokens: dict[str, str]
    """The token that each sealed test leaves."""

    def broken(self, message: str) -> frozenset[str]:
        """Sealed tests that did not reach their end in the run with this first failure."""
        shown = set(re.findall(r"[0-9a-f]{12}", message.partition(": ")[2]))
        return frozenset(test for test, token in self.tokens.items() if token not in shown)


def make_seals(tree: Path, tests: Sequence[str], rng: random.Random) -> Seals:
    """Seals for those of `tests` whose function is found in its file below `tree`."""
    place = f"_{rng.choice(WORDS)}_{rng.getrandbits(40):x}"
    files: dict[str, str] = {}
    tokens: dict[str, str] = {}
    for path in dict.fromkeys(test.partition("::")[0] for test in tests):
        try:
            text = (tree / path).read_text(encoding="utf-8")
            ends = _ends(text)
        except (OSError, ValueError, SyntaxError):
            continue
        lines = text.split("\n")
        marks: dict[_End, str] = {}
        for test in tests:
            end = _end_of(test, ends) if test.startswith(path + "::") else None
            if end is not None:
                tokens[test] = marks.setdefault(end, f"{rng.getrandbits(48):012x}")
        for (index, indent), token in sorted(marks.items(), reverse=True):
            lines.insert(index, indent + _statement(place, token, rng))
        if marks:
            files[path] = "\n".join(lines)
    folder = posixpath.dirname(next(iter(files), ""))
    name = f"test_{rng.choice(WORDS)}_{rng.getrandbits(40):x}"
    last = posixpath.join(folder, f"{name}.py")
    files[last] = (
        f"import sys\n\ndef {name}():\n    found = sys.__dict__.get({place!r}, [])\n"
        "    assert not found, ' '.join(f'{token:012x}' for token in set(found))\n"
    )
    return Seals(files, (*tokens, f"{last}::{name}"), tokens)


def _statement(place: str, token: str, rng: random.Random) -> str:
    half = rng.getrandbits(48)
    value = f"{half} ^ {half ^ int(token, 16)}"
    return f"assert not __import__('sys').__dict__.setdefault({place!r}, []).append({value})"


def _end_of(test: str, ends: dict[tuple[str, str], _End | None]) -> _End | None:
    """The end of the function that a node id names, also where its class inherits it."""
    *classes, name = test.split("[", 1)[0].split("::")[1:]
    exact = (classes[-1] if classes else "", name)
    if exact in ends or not classes:
        return ends.get(exact)
    return next((end for (_, found), end in ends.items() if found == name), None)


@lru_cache(maxsize=256)
def _ends(text: str) -> dict[tuple[str, str], _End | None]:
    """Where another statement can stand at the end of each function, by class and name."""
    lines = text.split("\n")
    return {
        (owner, function.name): _end(function, lines)
        for owner, function in _functions(parse(text).body, "")
    }


def _functions(body: Sequence[ast.stmt], owner: str) -> Iterator[tuple[str, _Function]]:
    for node in body:
        if isinstance(node, _Function):
            yield owner, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, node.name)
        elif isinstance(node, (ast.If, ast.Try)):
            yield from _functions([*node.body, *node.orelse], owner)


def _end(function: _Function, lines: Sequence[str]) -> _End | None:
    """Behind the last statement, or before it if it returns; None if there is no such place."""
    first, last = function.body[0], function.body[-1]
    if first.lineno == function.lineno or isinstance(last, ast.Raise):
        return None
    index = last.lineno - 1 if isinstance(last, ast.Return) else last.end_lineno or last.lineno
    return index, lines[first.lineno - 1][: first.col_offset]
