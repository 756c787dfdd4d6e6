"""Which tests reach which functions: one profiled run of each test file of a pristine package.

Run as a program it is the child: `python -m frontrunner.envs.reach OUT FILE` inside a tree. Only
unmodified installed packages are run this way; every mutant runs in the sandbox.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from frontrunner.envs.packages import Source, cache_dir

Job = Callable[[], Any]

FILE_SECONDS = 40.0
"""Deadline of one profiled test file; slower files select no tests."""
MAX_ID = 110
"""Longest node id: longer ones spell out whole parameters."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A passing test: its profiled duration and the functions it calls (`path::qualname`)."""

    test: str
    seconds: float
    functions: frozenset[str]


def is_test_file(path: str) -> bool:
    """Whether a tree path is part of the package's tests."""
    *folders, name = path.split("/")
    if {"test", "tests", "testing", "testsuite"} & set(folders):
        return True
    return name.startswith(("test_", "conftest")) or name.endswith(("_test.py", "tests.py"))


def test_files(tree: Path, source: Source) -> list[str]:
    """Test modules of a tree; those that draw random examples are left out."""
    found = []
    for file in sorted(tree.rglob("*.py")):
        path = file.relative_to(tree).as_posix()
        name = file.name
        runnable = name.startswith("test") or name == "tests.py" or name.endswith("_test.py")
        if not is_test_file(path) or not runnable or path.startswith(source.skip_tests):
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        if "hypothesis" not in text and "def test" in text:
            found.append(path)
    return found


def _child_environment(tree: Path, home: str) -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": home,
        "TMPDIR": home,
        "PYTHONPATH": f"{tree}{os.pathsep}{root}",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
    }


def _probe(tree: Path, file: str) -> list[list[Any]]:
    """Rows [test, seconds, functions] of one file; empty when it does not finish."""
    with tempfile.TemporaryDirectory(prefix="frontrunner-") as home:
        out = Path(home) / "reached.json"
        command = [sys.executable, "-s", "-m", "frontrunner.envs.reach", str(out), file]
        try:
            subprocess.run(
                command,
                cwd=tree,
                env=_child_environment(tree, home),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=FILE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return []
        rows: list[list[Any]] = json.loads(out.read_text()) if out.exists() else []
        return rows


def reached_tests(
    tree: Path, source: Source, run_all: Callable[[Sequence[Job]], list[Any]]
) -> list[Reached]:
    """All passing tests of a package, cached by the tree's address; `run_all` runs in parallel."""
    cache = cache_dir() / "build" / f"reach-{tree.name}.json"
    if cache.exists():
        rows = json.loads(cache.read_text())
    else:
        files = test_files(tree, source)
        jobs = [partial(_probe, tree, file) for file in files]
        rows = [row for found in run_all(jobs) for row in found]
        cache.parent.mkdir(parents=True, exist_ok=True)
        unfinished = cache.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(rows))
        unfinished.replace(cache)
    return [Reached(test, seconds, frozenset(names)) for test, seconds, names in rows]


class _Profile:
    """Pytest plugin: the functions of the tree that each passing test calls."""

    def __init__(self, tree: str) -> None:
        self.tree = tree.rstrip("/") + "/"
        self.rows: list[list[Any]] = []

    def run(self, item: Any) -> Generator[None, Any, Any]:
        codes = set()

        def profile(frame: FrameType, event: str, argument: object) -> None:
            if event == "call":
                codes.add(frame.f_code)

        start = time.perf_counter()
        sys.setprofile(profile)
        try:
            result = yield
        finally:
            sys.setprofile(None)
        seconds = time.perf_counter() - start
        names = {
            f"{c.co_filename[len(self.tree) :]}::{c.co_qualname.split('.<locals>')[0]}"
            for c in codes
            if c.co_filename.startswith(self.tree)
        }
        usable = len(item.nodeid) <= MAX_ID and item.nodeid.isascii()
        if usable and item.name != "test_suite":  # old unittest's loader hook, tests nothing
            self.rows.append([item.nodeid, round(seconds, 5), sorted(names)])
        return result


def _main(out: str, file: str) -> None:
    import pytest

    hook = pytest.hookimpl(wrapper=True)(_Profile.run)  # here, so that the parent needs no pytest
    plugin = type("Profile", (_Profile,), {"pytest_runtest_call": hook})(str(Path.cwd()))
    pytest.main(
        ["-q", "-pno:cacheprovider", "--assert=plain", "--rootdir=.", f"-c{os.devnull}", file],
        plugins=[plugin],
    )
    Path(out).write_text(json.dumps(plugin.rows))


if __name__ == "__main__":
    _main(*sys.argv[1:3])
