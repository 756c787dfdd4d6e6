"""Grades a submission by the package's own tests, in a box that the agent never touched.

    submission -> allowed files -> static check -> box: canaries, tests, canaries -> Verdict

S is 1 when every fail-to-pass test passed and no pass-to-pass test failed. A missing outcome is
never a pass, and the runner must have told the truth about the canaries.
"""

from __future__ import annotations

import posixpath
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

from frontrunner.errors import SandboxError
from frontrunner.protocols import Sandbox, TestReport
from frontrunner.types import Task, Verdict
from frontrunner.verify import tamper
from frontrunner.verify.canaries import Canaries, make_canaries
from frontrunner.verify.submission import Effective, effective

_RULES = "tests-1"
"""Changes whenever the same submission could get another verdict."""
_MAX_NAMED = 3


class TestGrader:
    """Implements `protocols.Verifier`; thread-safe.

    `trees` gives the directory of a task's package, `base_files` the files that the task's bug
    changes in it (path -> text), which a submission builds on.
    """

    __test__ = False  # not a test class, whatever pytest makes of the name

    def __init__(
        self,
        sandbox: Sandbox,
        trees: Callable[[Task], Path],
        base_files: Callable[[Task], dict[str, str]],
        *,
        min_timeout: float = 5.0,
        timeout_factor: float = 10.0,
        cache_size: int = 65536,
    ) -> None:
        self._sandbox = sandbox
        self._trees = trees
        self._base_files = base_files
        self._min_timeout = min_timeout
        self._timeout_factor = timeout_factor
        self._cache: OrderedDict[tuple[str, str], Verdict] = OrderedDict()
        self._cache_size = cache_size
        self._lock = threading.Lock()
        self._random = random.SystemRandom()
        self.version = f"{_RULES}-t{min_timeout:g}x{timeout_factor:g}"

    def grade(self, task: Task, submission: dict[str, str | None]) -> Verdict:
        """The verdict on `submission`, a set of changes to the task's own (buggy) files.

        The same effective submission is run once; the cached verdict keeps its tests and names
        what this submission had ignored.
        """
        start = time.monotonic()
        base = self._base_files(task)
        judged = effective(submission, base, task.path)
        key = (task.id, judged.digest)
        with self._lock:
            verdict = self._cache.get(key)
            if verdict is not None:
                self._cache.move_to_end(key)
        if verdict is None:
            verdict = self._judge(task, base, judged)
            if verdict.kind == "graded":
                self._remember(key, verdict)
        reason = verdict.reason
        if judged.dropped and verdict.value < 1.0:
            reason += f"; ignored edits to {_listed(judged.dropped)}"
        seconds = time.monotonic() - start
        return replace(verdict, reason=reason, verifier=self.version, wall_seconds=seconds)

    def _remember(self, key: tuple[str, str], verdict: Verdict) -> None:
        with self._lock:
            self._cache[key] = verdict
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)

    def _judge(self, task: Task, base: dict[str, str], judged: Effective) -> Verdict:
        tree = self._trees(task)
        found = _static_findings(tree, base, judged)
        if found:
            return Verdict("graded", 0.0, f"tampering: {_listed(found)}")
        folder = posixpath.dirname(task.fail_to_pass[0].partition("::")[0])
        package = PurePosixPath(task.path).parts[0].removesuffix(".py")
        canaries = make_canaries(folder, package, self._random)
        tests = (*canaries.first, *task.fail_to_pass, *task.pass_to_pass, *canaries.last)
        timeout = max(self._min_timeout, self._timeout_factor * task.test_seconds)
        files: dict[str, str | None] = {**base, **judged.files, **canaries.files}
        try:
            report = self._sandbox.run_tests(tree, files, tests, timeout=timeout)
        except SandboxError as error:
            return Verdict("invalid", 0.0, f"sandbox: {error}")
        return _verdict(task, canaries, report)


def _static_findings(tree: Path, base: dict[str, str], judged: Effective) -> list[str]:
    found: list[str] = []
    for path, text in judged.files.items():
        if text is None:
            continue
        before = base.get(path)
        if before is None and (tree / path).is_file():
            before = (tree / path).read_text(encoding="utf-8")
        try:
            found += tamper.findings(before, text)
        except tamper.Unparsable:
            continue
    return found


def _verdict(task: Task, canaries: Canaries, report: TestReport) -> Verdict:
    wanted = (*task.fail_to_pass, *task.pass_to_pass)
    tests = {test: report.outcomes.get(test, "missing") for test in wanted}
    fixed = all(tests[test] == "passed" for test in task.fail_to_pass)
    kept = all(tests[test] in ("passed", "skipped") for test in task.pass_to_pass)
    reason = _distrust(canaries, report, fixed and kept)
    if not reason:
        reason = "solved" if fixed and kept else "tests failed"
    return Verdict("graded", float(reason == "solved"), reason, tests)


def _distrust(canaries: Canaries, report: TestReport, solved: bool) -> str:
    """Why the outcomes are not believed, or '' when they are."""
    if report.message.startswith("tampering: "):
        return report.message
    if report.timed_out:
        return "timeout"
    if report.exited_early:
        return "exited early"
    if any(report.outcomes.get(test) in ("passed", "skipped") for test in canaries.must_fail):
        return "tampering: a test that must fail did not"
    # Honest code that breaks every import breaks the canaries too, but it does not solve the task.
    if solved and any(report.outcomes.get(test) != "passed" for test in canaries.must_pass):
        return "tampering: a test that must pass did not"
    if solved and any(report.outcomes.get(test) != "failed" for test in canaries.must_fail):
        return "tampering: a test that must fail did not run"
    return ""


def _listed(names: tuple[str, ...] | list[str]) -> str:
    more = len(names) - _MAX_NAMED
    text = ", ".join(name[:80] for name in names[:_MAX_NAMED])
    return f"{text} and {more} more" if more > 0 else text
