"""Single-site source mutations of Python functions: where they are and how to apply them.

A mutation replaces a span on one line and is stored as coordinates plus the new text (see
`types.Mutation`), so that a manifest of bugs carries no source of the package it mutates.
Operator families follow the mutation-testing literature (comparison, arithmetic, boolean,
constant, negated condition, ...). Everything here is pure text and `ast`; nothing is executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass

from frontrunner.types import Mutation

_COMPARE: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, tuple[str, ...]]] = {
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("+", "/")),
    ast.Div: ("/", ("*",)),
    ast.FloorDiv: ("//", ("/", "*")),
    ast.Mod: ("%", ("//",)),
    ast.Pow: ("**", ("*",)),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: ("|", ("&",)),
}
_BOOLEAN: dict[type[ast.boolop], tuple[str, str]] = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}

KINDS = (
    "comparison",
    "arithmetic",
    "boolean",
    "constant",
    "negation",
    "call",
    "control",
    "arguments",
)


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a module: qualified name and 1-based first and last line."""

    qualname: str
    first: int
    last: int
    node: ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[Function]:
    """Module-level functions and methods (those nested in functions belong to the outer one)."""

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[Function]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                end = node.end_lineno or node.lineno
                yield Function(prefix + node.name, node.lineno, end, node)
            elif isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{prefix}{node.name}.")

    yield from walk(tree.body, "")


class _Sites:
    """Collects the mutations of one function."""

    def __init__(self, lines: list[bytes]) -> None:
        self.lines = lines
        self.found: list[Mutation] = []

    def _between(self, kind: str, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Replace operator `old`, which stands between two expressions on one line."""
        if left.end_lineno != right.lineno or left.end_lineno is None:
            return
        line, start, stop = right.lineno, left.end_col_offset or 0, right.col_offset
        gap = self.lines[line - 1][start:stop].decode()
        at = re.search(r"\s+".join(map(re.escape, old.split())), gap)
        if at is None or re.fullmatch(r"[\s()]*", gap[: at.start()] + gap[at.end() :]) is None:
            return
        self.found.append(Mutation(kind, line, start + at.start(), line, start + at.end(), new))

    def _span(self, kind: str, node: ast.expr | ast.stmt, new: str) -> None:
        if node.lineno == node.end_lineno and node.end_col_offset is not None:
            self.found.append(
                Mutation(kind, node.lineno, node.col_offset, node.lineno, node.end_col_offset, new)
            )

    def text(self, node: ast.expr) -> str | None:
        if node.lineno != node.end_lineno:
            return None
        return self.lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()

    def compare(self, node: ast.Compare) -> None:
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            old, news = _COMPARE[type(op)]
            for new in news:
                self._between("comparison", left, right, old, new)
            left = right

    def binary(self, node: ast.BinOp) -> None:
        if isinstance(node.left, ast.Constant | ast.JoinedStr) and not isinstance(
            getattr(node.left, "value", ""), int | float
        ):
            return  # `"%s" % x` and string concatenation are not arithmetic
        old, news = _ARITHMETIC.get(type(node.op), ("", ()))
        for new in news:
            self._between("arithmetic", node.left, node.right, old, new)

    def augmented(self, node: ast.AugAssign) -> None:
        old, news = _ARITHMETIC.get(type(node.op), ("", ()))
        for new in news[:1]:
            self._between("arithmetic", node.target, node.value, old + "=", new + "=")

    def boolean(self, node: ast.BoolOp) -> None:
        old, new = _BOOLEAN[type(node.op)]
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between("boolean", left, right, old, new)

    def constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._span("constant", node, str(not node.value))
        elif isinstance(node.value, int) and node.value < 1000:
            text = self.text(node)
            if text is None or not text.isdecimal():
                return  # 0xff, 1_000 and the like are not off-by-one material
            self._span("constant", node, str(node.value + 1))
            if node.value > 0:
                self._span("constant", node, str(node.value - 1))

    def condition(self, test: ast.expr) -> None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            text = self.text(test.operand)
            if text is not None:
                self._span("negation", test, text)
        elif isinstance(test, ast.Name | ast.Call | ast.Attribute | ast.Subscript):
            text = self.text(test)
            if text is not None:
                self._span("negation", test, f"not {text}")

    def call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in _CALLS:
            self._span("call", node.func, _CALLS[node.func.id])
        if len(node.args) == 2 and not node.keywords and node.args[0].lineno == node.args[1].lineno:
            first, second = node.args
            if isinstance(first, ast.Name) and isinstance(second, ast.Name):
                gap = self.lines[first.lineno - 1][first.end_col_offset : second.col_offset]
                if gap.strip() == b"," and first.id != second.id:
                    new = f"{second.id}{gap.decode()}{first.id}"
                    self.found.append(
                        Mutation(
                            "arguments",
                            first.lineno,
                            first.col_offset,
                            second.lineno,
                            second.end_col_offset or 0,
                            new,
                        )
                    )

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.JoinedStr():
                return  # columns inside f-strings are not reliable before Python 3.12
            case ast.Compare():
                self.compare(node)
            case ast.BinOp():
                self.binary(node)
            case ast.AugAssign():
                self.augmented(node)
            case ast.BoolOp():
                self.boolean(node)
            case ast.Constant():
                self.constant(node)
            case ast.If() | ast.While() | ast.IfExp():
                self.condition(node.test)
            case ast.Call():
                self.call(node)
            case ast.Break():
                self._span("control", node, "continue")
            case ast.Continue():
                self._span("control", node, "break")
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            self.visit(child)


def sites(source: str, function: Function) -> list[Mutation]:
    """All single-site mutations of the function's body, in source order."""
    found = _Sites(source.encode().splitlines())
    for statement in function.node.body:
        found.visit(statement)
    return sorted(found.found, key=lambda m: (m.line, m.col, m.after))


def apply(source: str, mutation: Mutation) -> str:
    """The source with the bug in it."""
    lines = source.encode().splitlines(keepends=True)
    for site in sorted((mutation, *mutation.more), key=lambda m: (m.line, m.col), reverse=True):
        head, tail = lines[site.line - 1][: site.col], lines[site.end_line - 1][site.end_col :]
        lines[site.line - 1 : site.end_line] = [head + site.after.encode() + tail]
    return b"".join(lines).decode()


def content(mutation: Mutation) -> list[object]:
    """What a mutation's address is made of; single sites keep the addresses they always had."""
    *fields, more = astuple(mutation)
    return [*fields, more] if more else fields


def _shared_tail(a: str, b: str) -> int:
    """Characters of the longest common ending that starts with a whole word in both."""
    starts = {len(a) - m.start() for m in re.finditer(r"\w+", a)}
    starts &= {len(b) - m.start() for m in re.finditer(r"\w+", b)}
    return max((s for s in starts if a[len(a) - s :] == b[len(b) - s :]), default=0)


def repair(source: str, mutation: Mutation, shown: Iterable[str]) -> tuple[str, str] | None:
    """The compact edit that undoes a mutation: (old, new).

    `source` is without the bug, `shown` are the lines that the agent sees, with the bug. `old`
    starts at the word before the site and grows by whole words, to both sides in turn, until it
    occurs once among them; None when even the whole line occurs more often. Naming the place by
    its words is what a small policy can do: it failed to name the line's number, and one that
    copies a word first has found the place with the first token it writes.
    """
    row = source.encode().splitlines()[mutation.line - 1]
    before, after = row[: mutation.col].decode(), row[mutation.end_col :].decode()
    good, bad = row[mutation.col : mutation.end_col].decode(), mutation.after
    shared = _shared_tail(bad, good)  # `not f(x)` and `f(x)` differ in `not` only
    after = bad[len(bad) - shared :] + after
    good, bad = good[: len(good) - shared], bad[: len(bad) - shared]
    lefts = [m.start() for m in re.finditer(r"\w+", before)][::-1] or [len(before)]
    rights = [m.end() for m in re.finditer(r"\w+", after)]
    left, right = lefts.pop(0), 0
    rows = list(shown)
    for step in range(len(lefts) + len(rights) + 1):
        old = before[left:] + bad + after[:right]
        new = before[left:] + good + after[:right]
        unique = bool(old) and sum(r.count(old) for r in rows) == 1
        if unique and new and old == old.strip() and new == new.strip():
            return old, new
        if rights and (step % 2 == 0 or not lefts):
            right = rights.pop(0)
        elif lefts:
            left = lefts.pop(0)
    return None
