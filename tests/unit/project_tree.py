"""The repository as the tests of its rules see it: files, syntax trees and imports."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "frontrunner"


@dataclass(frozen=True)
class Import:
    """One imported module, `frontrunner.algo.baseline` or `torch`, and where it is imported."""

    path: Path
    line: int
    module: str
    lazy: bool
    """Inside a function, so that loading the file does not load the module."""

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.module}"


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def source_files() -> tuple[Path, ...]:
    """Every Python file of the package."""
    return tuple(sorted(PACKAGE.rglob("*.py")))


@cache
def project_files() -> tuple[Path, ...]:
    """Every file that is, or would be, under version control (all files outside a checkout)."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        folders = ("src", "tests", "docs", "recipes", "tools", "examples", "benchmarks")
        paths = [p for folder in folders for p in (ROOT / folder).rglob("*")]
    skipped = {"__pycache__", ".git"}
    return tuple(sorted(p for p in paths if p.is_file() and not skipped & set(p.parts)))


def room(path: Path) -> str:
    """First part of a file's path in the package: `algo`, `types`, `run`."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[Import]:
    """Everything a file imports, at the top, inside functions and for type checking alike."""
    yield from _imports(path, parse(path), lazy=False)


def _imports(path: Path, node: ast.AST, *, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for name in child.names:
                yield Import(path, child.lineno, name.name, lazy)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(path, child)
            for name in child.names:
                yield Import(path, child.lineno, f"{base}.{name.name}", lazy)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports(path, child, lazy=lazy or inside or _for_types_only(child))


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    folder = path.relative_to(PACKAGE.parent).parts[: -node.level]
    return ".".join([*folder, *([node.module] if node.module else [])])


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
