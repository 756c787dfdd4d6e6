"""Functions of installed packages and the standard library, as raw material for bugs.

The base policy is trained on bugs in this corpus. Packages of the task set are left out, and so
is every function whose body, identifiers aside, also occurs in one of them.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import io
import re
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path

from frontrunner.envs import mutations
from frontrunner.envs.workspace import folded


@dataclass(frozen=True, slots=True)
class CorpusFunction:
    """A function cut out of its module: `source` holds it alone, under its class if it has one."""

    module: str
    qualname: str
    source: str


def fingerprint(source: str) -> str:
    """Digest of the code with identifiers made anonymous, so that near-copies collide."""
    names: dict[str, str] = {}
    parts: list[str] = []
    skip = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in skip or (token.type == tokenize.STRING and len(token.string) > 30):
            continue
        if token.type == tokenize.NAME and not iskeyword(token.string):
            parts.append(names.setdefault(token.string, f"n{len(names)}"))
        else:
            parts.append(token.string)
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def python_files(package: str) -> Iterator[Path]:
    """Source files of an installed distribution, or of the standard library for `stdlib`."""
    if package == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        files: Iterable[Path] = (f for f in root.rglob("*.py") if "site-packages" not in f.parts)
    else:
        listed = importlib.metadata.files(package) or []
        files = (Path(str(f.locate())) for f in listed if f.suffix == ".py")
    for file in sorted(files):
        if not re.search(r"(^|/)(tests?|testing|idlelib|lib2to3)(/|$)|/test_|conftest", str(file)):
            yield file


def functions_of(file: Path, module: str, min_lines: int, max_lines: int) -> list[CorpusFunction]:
    """The file's functions whose docstring-free length is within bounds (lines)."""
    try:
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (SyntaxError, ValueError, OSError):
        return []
    lines = text.split("\n")
    found: list[CorpusFunction] = []
    for function in mutations.functions(tree):
        shown = folded(lines, function.first - 1, function.last)
        if not min_lines <= len(shown) <= max_lines or function.qualname.count(".") > 1:
            continue
        rows = [lines[n] for n in shown]
        if any(len(r) > 100 or not r.isascii() for r in rows):
            continue
        holder, _, _ = function.qualname.rpartition(".")
        head = f"class {holder}:\n" if holder else ""
        source = head + "\n".join(rows) + "\n"
        try:
            ast.parse(source)
        except SyntaxError:
            continue  # nothing is left but a docstring, or a string literal holds blank lines
        found.append(CorpusFunction(module, function.qualname, source))
    return found


def collect(
    packages: Iterable[str],
    held_out: Iterable[str],
    min_lines: int = 3,
    max_lines: int = 16,
) -> list[CorpusFunction]:
    """Distinct functions of `packages` that do not occur in `held_out`, in a fixed order."""
    seen: set[str] = set()
    for package in held_out:
        for file in python_files(package):
            for function in functions_of(file, "", 1, 10_000):
                seen |= _prints(function)
    corpus: list[CorpusFunction] = []
    for package in packages:
        for file in python_files(package):
            module = _module(file)
            for function in functions_of(file, module, min_lines, max_lines):
                prints = _prints(function)
                if prints and not prints & seen:
                    seen |= prints
                    corpus.append(function)
    return corpus


def _module(file: Path) -> str:
    """Dotted name below the folder that holds the packages, at most three parts long."""
    parts = list(file.with_suffix("").parts)
    for root in ("site-packages", sysconfig.get_path("stdlib").rsplit("/", 1)[-1]):
        if root in parts:
            parts = parts[len(parts) - parts[::-1].index(root) :]
    return ".".join([p for p in parts if p != "__init__"][-3:])


def _prints(function: CorpusFunction) -> set[str]:
    try:
        return {fingerprint(function.source)}
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return set()
