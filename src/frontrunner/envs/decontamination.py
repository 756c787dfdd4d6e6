"""Near-duplicates of functions, so that a training set shares none with a held-out one.

A function is the set of its 5-token shingles after normalisation (syntax tree tokens in order;
names, attributes and literals lose their values). Two are near-duplicates when the Jaccard
similarity of their sets is at least 0.7 (Broder 1997, "On the resemblance and containment of
documents").
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from frontrunner.envs.mutations import functions
from frontrunner.envs.taskset import TaskSet

WIDTH = 5
THRESHOLD = 0.7

Shingles = frozenset[tuple[str, ...]]


def _tokens(node: ast.AST) -> Iterator[str]:
    yield type(node).__name__
    if isinstance(node, ast.Constant):
        yield type(node.value).__name__
    for child in ast.iter_child_nodes(node):
        yield from _tokens(child)
    yield "end"


def shingles(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Shingles:
    """Shingles of a function, without its docstring, name, decorators and annotations."""
    body = node.body[ast.get_docstring(node, clean=False) is not None :]
    words = [str(len(node.args.args))]
    for statement in body:
        words += _tokens(statement)
    return frozenset(tuple(words[n : n + WIDTH]) for n in range(max(1, len(words) - WIDTH + 1)))


def similarity(a: Shingles, b: Shingles) -> float:
    """Jaccard similarity, in [0, 1]."""
    return len(a & b) / len(a | b)


class Against:
    """The functions of a task set, to compare others with."""

    def __init__(self, tasks: TaskSet) -> None:
        self._known: set[Shingles] = set()
        files: dict[tuple[str, str], dict[str, Shingles]] = {}
        for task in tasks.tasks:
            key = (task.package, task.path)
            if key not in files:
                module = ast.parse(tasks.gold(task)[task.path])
                files[key] = {f.qualname: shingles(f.node) for f in functions(module)}
            self._known.add(files[key][task.function])

    def has(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Whether a near-duplicate of this function is in the set."""
        mine = shingles(node)
        size = len(mine)
        return any(
            THRESHOLD * size <= len(known) <= size / THRESHOLD
            and similarity(mine, known) >= THRESHOLD
            for known in self._known
        )
