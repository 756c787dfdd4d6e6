"""The agent's working copy: a package tree with edits on top, and the text tools on it.

Nothing here executes code from the tree; only `run tests` does, and that happens in the sandbox.
Paths are confined to the tree. A view numbers the lines it shows, and `edit` replaces a text that
occurs once in the last view, so a policy writes `edit x is => x is not` instead of whole lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

MAX_LINES = 60
MAX_WIDTH = 120
MAX_PATH = 200
_DEF = re.compile(r"^(\s*)(?:async\s+def|def|class)\s+(\w+)")


class ToolError(Exception):
    """A tool call that cannot be carried out; the text goes back to the agent as observation."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A `def` or `class`: 0-based first line and the line after its last."""

    path: str
    name: str
    first: int
    stop: int


Symbols = list[Symbol]
"""A name of its own, because `Workspace.list` hides the builtin inside the class."""


def symbols(path: str, text: str) -> Symbols:
    """Definitions by indentation, so that files with syntax errors can still be viewed."""
    lines = text.split("\n")
    found: list[Symbol] = []
    stack: list[tuple[int, str, int]] = []
    quote: str | None = None
    last_code = 0
    for number, line in enumerate(lines):
        inside = quote is not None
        quote = _triple_quote(line, quote)
        if inside or not line.strip():
            last_code = number if inside else last_code
            continue
        indent = len(line) - len(line.lstrip())
        if not line.lstrip().startswith((")", "]", "}", "#")):
            while stack and indent <= stack[-1][0]:
                _, name, first = stack.pop()
                found.append(Symbol(path, name, first, last_code + 1))
            match = _DEF.match(line)
            if match:
                name = ".".join([s[1].rsplit(".", 1)[-1] for s in stack] + [match[2]])
                stack.append((indent, name, number))
        last_code = number
    found += [Symbol(path, name, first, last_code + 1) for _, name, first in stack]
    return sorted(found, key=lambda s: s.first)


def _triple_quote(line: str, quote: str | None) -> str | None:
    """The triple quote that is open after this line, given the one open before it."""
    for mark in re.findall(r'"""|\'\'\'', line):
        if quote is None:
            quote = mark
        elif quote == mark:
            quote = None
    return quote


@lru_cache(maxsize=64)
def _tree_index(tree: Path) -> dict[str, list[Symbol]]:
    """Every definition of the pristine tree by name; built once per tree."""
    index: dict[str, list[Symbol]] = {}
    for file in sorted(tree.rglob("*.py")):
        path = file.relative_to(tree).as_posix()
        for symbol in symbols(path, _source(file)):
            index.setdefault(symbol.name, []).append(symbol)
    return index


@lru_cache(maxsize=4096)
def _source(file: Path) -> str:
    """Text of a pristine file; trees are read-only, so it is read once."""
    return file.read_text(encoding="utf-8", errors="replace")


def folded(lines: list[str], first: int, stop: int) -> list[int]:
    """Line numbers of a definition without its docstring (0-based)."""
    keep: list[int] = []
    number, header_done = first, False
    while number < stop:
        stripped = lines[number].strip()
        if header_done is False and stripped.endswith(":") and not stripped.startswith("#"):
            header_done = True
            keep.append(number)
            number += 1
            opening = (
                re.match(r'[rRuUbB]?("""|\'\'\'|"|\')', lines[number].strip())
                if (number < stop)
                else None
            )
            if opening:
                mark = opening[1]
                body = lines[number].strip()[opening.end() :]
                while mark not in body and number + 1 < stop and len(mark) == 3:
                    number += 1
                    body = lines[number]
                number += 1
            continue
        keep.append(number)
        number += 1
    return [n for n in keep if lines[n].strip()]


class Workspace:
    """Files of `tree` overlaid by `files` (the task's bug) and then by the agent's edits."""

    def __init__(self, tree: Path, files: dict[str, str]) -> None:
        self.tree = tree.resolve()  # links are followed once here and nowhere inside the tree
        self.base = dict(files)
        self.edits: dict[str, str | None] = {}
        self._undo: list[tuple[str, str | None]] = []
        self._view: tuple[str, tuple[tuple[int, int], ...]] | None = None

    def confined(self, path: str) -> str:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or len(path) > MAX_PATH:
            raise ToolError(f"{path[:80]}: paths are relative to the project and stay inside it")
        # compiled files hold the function as it was before the bug
        if "__pycache__" in parts or "\0" in path or not parts[-1].isprintable():
            raise ToolError(f"{path!r}: no such file")
        return str(PurePosixPath(*parts))

    def read(self, path: str) -> str:
        path = self.confined(path)
        text = self.edits.get(path, self.base.get(path))
        if text is not None:
            return text
        file = self.tree / path
        readable = file.suffix not in (".pyc", ".pyo") and file.is_file()
        if path in self.edits or not readable or self.tree not in file.resolve().parents:
            raise ToolError(f"{path}: no such file")
        return _source(file)

    def list(self, path: str = ".") -> str:
        """Names in a folder, those of changed files included."""
        inside = PurePosixPath("." if path in (".", "") else self.confined(path))
        folder = self.tree / inside
        names = {
            p.name + ("/" if p.is_dir() else "")
            for p in (folder.iterdir() if folder.is_dir() else ())
            if p.name != "__pycache__" and p.suffix not in (".pyc", ".pyo")
        }
        for changed in {*self.base, *self.edits}:
            if PurePosixPath(changed).is_relative_to(inside):
                first, *rest = PurePosixPath(changed).relative_to(inside).parts
                names.add(first + ("/" if rest else ""))
        if not names:
            raise ToolError(f"{path}: no such folder")
        return "\n".join(sorted(names)[:MAX_LINES])

    def find(self, name: str) -> Symbols:
        """Definitions called `name`, in the files as they are now."""
        changed = {**self.base, **{p: t for p, t in self.edits.items() if t is not None}}
        found = [s for s in _tree_index(self.tree).get(name, []) if s.path not in changed]
        for path, text in changed.items():
            found += [s for s in symbols(path, text) if s.name == name]
        return found

    def view(self, what: str, first: int | None = None, last: int | None = None) -> str:
        """Numbered lines: of a definition (docstring folded), or of a file from `first` on."""
        if what.endswith(".py") or "/" in what:
            path = self.confined(what)
            lines = self.read(path).split("\n")
            start = max(1, first or 1)
            stop = min(len(lines), last or start + MAX_LINES - 1, start + MAX_LINES - 1)
            numbers, labels = list(range(start - 1, stop)), list(range(start, stop + 1))
        else:
            found = self.find(what)
            if not found:
                raise ToolError(f"{what}: no such definition")
            if len(found) > 1:
                places = ", ".join(f"{s.path} line {s.first + 1}" for s in found[:5])
                raise ToolError(f"{what}: {len(found)} definitions: {places}")
            path = found[0].path
            lines = self.read(path).split("\n")
            numbers = folded(lines, found[0].first, found[0].stop)[:MAX_LINES]
            labels = list(range(1, len(numbers) + 1))
        if not numbers:
            raise ToolError(f"{what}: no lines there")
        self._view = (path, tuple(zip(labels, numbers, strict=True)))
        return "\n".join(
            f"{label} {lines[n][:MAX_WIDTH]}" for label, n in zip(labels, numbers, strict=True)
        )

    def search(self, text: str) -> str:
        """Lines that contain `text`, as `path:line: text`."""
        if not text.strip():
            raise ToolError("search: give some text to look for")
        hits: list[str] = []
        changed = {**self.base, **self.edits}
        on_disk = {f.relative_to(self.tree).as_posix(): f for f in self.tree.rglob("*.py")}
        for path in sorted({*on_disk, *changed}):
            content = changed[path] if path in changed else _source(on_disk[path])
            for number, line in enumerate((content or "").split("\n"), 1):
                if text in line:
                    hits.append(f"{path}:{number}: {line.strip()[:MAX_WIDTH]}")
            if len(hits) > 20:
                break
        if not hits:
            raise ToolError(f"search: {text!r} does not occur")
        return "\n".join(hits[:20])

    def edit(self, old: str, new: str) -> str:
        """Replace `old`, which must occur once in the lines of the last view, by `new`."""
        if self._view is None:
            raise ToolError("edit: view the code first; OLD must occur in the last view")
        path, numbered = self._view
        lines = self.read(path).split("\n")
        counted = [(label, n) for label, n in numbered for _ in range(lines[n].count(old))]
        hits = counted if old else []
        if len(hits) != 1:
            many = f"occurs {len(hits)} times in the last view; give more of the line"
            few = "does not occur in the last view"
            raise ToolError(f"edit: {old!r} {many if hits else few}")
        ((label, number),) = hits
        self._undo.append((path, self.edits.get(path)))
        lines[number] = lines[number].replace(old, new)
        self.edits[path] = "\n".join(lines)
        return f"{label} {lines[number][:MAX_WIDTH]}"

    def undo(self) -> str:
        """Take the last edit back."""
        if not self._undo:
            raise ToolError("undo: there is no edit to take back")
        path, text = self._undo.pop()
        if text is None:
            del self.edits[path]
        else:
            self.edits[path] = text
        return "undone"

    @property
    def submission(self) -> dict[str, str | None]:
        """Files that differ from the task's base."""
        return {p: t for p, t in self.edits.items() if t != self.base.get(p)}
