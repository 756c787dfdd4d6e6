"""Latency of one sandboxed test run and of one graded submission, one worker, in milliseconds.

    python benchmarks/bench_sandbox.py [--runs 40]

Each run recompiles the overlaid source file, as an agent's edit does. `grade` includes the
canaries and a static check, with the verdict cache missed. `cold` starts an interpreter and pytest
in the same box for every run: what the fork server saves. Writes `results/sandbox.json`.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.metadata
import json
import py_compile
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from record import write

from frontrunner.envs.sandbox import LocalSandbox
from frontrunner.types import Mutation, Task
from frontrunner.verify.grader import TestGrader

# Package -> (overlaid file, one light test, tests that stay green in grading).
CASES = {
    "toolz": (
        "toolz/dicttoolz.py",
        "toolz/tests/test_dicttoolz.py::test_environ",
        ("toolz/tests/test_itertoolz.py::test_take", "toolz/tests/test_itertoolz.py::test_drop"),
    ),
    "mpmath": (
        "mpmath/libmp/libintmath.py",
        "mpmath/tests/test_bitwise.py::test_bitcount",
        ("mpmath/tests/test_bitwise.py::test_trailing",),
    ),
    "networkx": (
        "networkx/algorithms/core.py",
        "networkx/algorithms/tests/test_core.py::TestCore::test_core_number",
        ("networkx/algorithms/tests/test_core.py::TestCore::test_trivial",),
    ),
}


def make_tree(package: str, root: Path) -> Path:
    """A directory with the installed package alone, compiled as task trees are."""
    source = Path(str(importlib.metadata.distribution(package).locate_file(package)))
    shutil.copytree(source, root / package / package)
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(root / package, quiet=2, force=True, invalidation_mode=mode)
    return root / package


def timed(runs: int, work: Callable[[int], object]) -> dict[str, float]:
    work(-1)  # the first call starts the box
    samples = []
    for index in range(runs):
        start = time.perf_counter()
        work(index)
        samples.append(1000 * (time.perf_counter() - start))
    return {
        "median": round(statistics.median(samples), 2),
        "p90": round(statistics.quantiles(samples, n=10)[-1], 2),
        "min": round(min(samples), 2),
        "n": runs,
    }


def make_task(package: str, path: str, test: str, others: tuple[str, ...]) -> Task:
    return Task(
        id=f"{package}-bench",
        package=package,
        version=importlib.metadata.version(package),
        path=path,
        file_sha256="",
        function="",
        mutation=Mutation("none", 1, 0, 1, 0, ""),
        fail_to_pass=(test,),
        pass_to_pass=others,
        split="train",
        symptom="",
        instruction="",
        test_seconds=1.0,
    )


def measure(package: str, tree: Path, runs: int) -> dict[str, dict[str, float]]:
    path, test, others = CASES[package]
    text = (tree / path).read_text()
    found: dict[str, dict[str, float]] = {}
    with LocalSandbox([tree], num_workers=1) as sandbox:

        def run(index: int) -> None:
            files: dict[str, str | None] = {path: f"{text}\n# {index}\n"}
            report = sandbox.run_tests(tree, files, [test], timeout=30)
            assert report.outcomes == {test: "passed"}, report

        grader = TestGrader(sandbox, lambda _: tree, lambda _: {path: text})

        def grade(index: int) -> None:
            task = make_task(package, path, test, others)
            verdict = grader.grade(task, {path: f"{text}\n# {index}\n"})
            assert verdict.value == 1.0, verdict

        found[f"run_tests {package}"] = timed(runs, run)
        found[f"grade {package}"] = timed(runs, grade)
        sandbox.facts["nested"] = False
        found[f"cold {package}"] = timed(max(5, runs // 8), run)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=40)
    runs = parser.parse_args().runs
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for package in CASES:
            results |= measure(package, make_tree(package, Path(folder)), runs)
        with LocalSandbox(num_workers=1) as sandbox:
            isolation = sandbox.describe()
    isolation["bwrap"] = Path(isolation["bwrap"]).name
    record = {
        "name": "sandbox",
        "unit": "ms",
        "distributions": results,
        "isolation": isolation,
    }
    write(record, f"bench_sandbox.py --runs {runs}", ("pytest", *CASES))
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
