"""Whether a project tree tells the answer of a task: copies of the code as it was before the bug.

Looked for: version control, bytecode of the file under repair, backups, archives and whole other
copies of the function in any file, and modification times that single one file out.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from pathlib import Path

from frontrunner.envs.mutations import functions

BACKUPS = (".orig", ".rej", ".bak", ".swp", ".diff", ".patch", "~")
ARCHIVES = (".whl", ".egg", ".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")
CONTROL = (".git", ".hg", ".svn", ".bzr")
MIN_COPY_LINES = 4
"""Shorter functions are idioms, not copies."""
MAX_FILE_BYTES = 4 << 20


class LeakScan:
    """Reads a tree once and answers for each function of it."""

    def __init__(self, tree: Path, *, sealed: bool = True) -> None:
        """`sealed`: the tree was made by `packages`, whose bytecode is checked against its source
        and taken away by the sandbox together with the file that a bug is put into."""
        self._texts: dict[str, bytes] = {}
        self._general: list[str] = []
        times: dict[str, float] = {}
        for folder, names, files in os.walk(tree):
            at = Path(folder)
            self._general += [f"version control: {at / n}" for n in names if n in CONTROL]
            for name in files:
                path = at / name
                where = path.relative_to(tree).as_posix()
                if name.endswith(BACKUPS):
                    self._general.append(f"backup: {where}")
                elif name.endswith(ARCHIVES) and "test" not in where:
                    self._general.append(f"archive: {where}")
                elif name.endswith((".pyc", ".pyo")):
                    if not sealed or not _checked(path):
                        self._general.append(f"bytecode: {where}")
                elif path.stat().st_size <= MAX_FILE_BYTES:
                    self._texts[where] = path.read_bytes()
                    times[where] = path.stat().st_mtime
        self._newest = _singled_out(times)
        self._known: dict[tuple[str, str], str] = {}

    def leak(self, path: str, function: str, text: str) -> str:
        """`kind: where` of what tells the answer for a function of `path`; empty when nothing."""
        if self._general:
            return self._general[0]
        if path == self._newest:
            return f"modification time: {path}"
        key = (path, function)
        if key not in self._known:
            self._known[key] = self._copy(path, function, text)
        return self._known[key]

    def _copy(self, path: str, function: str, text: str) -> str:
        lines = text.encode().splitlines()
        for found in functions(ast.parse(text)):
            if found.qualname != function:
                continue
            body = b"\n".join(lines[found.first - 1 : found.last])
            if body.count(b"\n") + 1 < MIN_COPY_LINES:
                return ""
            for where, data in self._texts.items():
                if body in data and (where != path or data.count(body) > 1):
                    return f"copy: {where}"
        return ""


def _checked(bytecode: Path) -> bool:
    """Whether Python compares a .pyc with its source's hash before it uses it (PEP 552)."""
    with bytecode.open("rb") as file:
        return file.read(8)[4:5] == b"\x03"


def _singled_out(times: Mapping[str, float]) -> str:
    """The only Python file that is more than a minute newer than all others, if there is one."""
    rows = sorted((when, path) for path, when in times.items() if path.endswith(".py"))
    return rows[-1][1] if len(rows) > 2 and rows[-1][0] - rows[-2][0] > 60 else ""
