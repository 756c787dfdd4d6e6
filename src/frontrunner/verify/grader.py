"""Grades a submission by the package's own tests, in a box that the agent never touched.

    submission -> allowed files -> static check -> box: canaries, tests, canaries
               -> only if solved, another box: sealed tests -> Verdict

S is 1 when every fail-to-pass test passed and no pass-to-pass test failed. A missing outcome is
never a pass, the runner must have told the truth about the canaries, and every test that passed
must leave its token when it is run again. A run out of time counts when the package without the
bug is fast at that moment; else it is repeated with more time, and when that package is too slow
as well, the verdict is `invalid`.
"""

from __future__ import annotations

import posixpath
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from frontrunner.errors import SandboxError
from frontrunner.protocols import Sandbox, TestReport
from frontrunner.types import Task, Verdict
from frontrunner.verify import tamper
from frontrunner.verify.canaries import Canaries, make_canaries
from frontrunner.verify.seals import make_seals
from frontrunner.verify.submission import Effective, effective

_RULES = "tests-4"
"""Changes whenever the same submission could get another verdict."""
_MAX_NAMED = 3
_PATIENCE = 2.0
"""How much longer a run may take when it is repeated, by itself, for being out of time."""
_AT_EASE = 0.25
"""Share of its time within which the package without the bug ends where the machine is at ease."""
_TAMPERING = "tampering: "
_Files = dict[str, str | None]


class _TooSlow(Exception):
    """The machine cannot run even the correct package in time."""


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
        min_timeout: float = 1.5,
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
        self._repeating = threading.Lock()
        self._unsealable: set[tuple[str, str]] = set()
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
            if verdict.kind == "graded" and verdict.reason != "timeout":
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
        try:
            found = _static_findings(tree, base, judged)
        except tamper.Unparsable:
            return Verdict("graded", 0.0, "does not parse")
        if found:
            return Verdict("graded", 0.0, f"tampering: {_listed(found)}")
        folder = posixpath.dirname(task.fail_to_pass[0].partition("::")[0])
        package = PurePosixPath(task.path).parts[0].removesuffix(".py")
        canaries = make_canaries(folder, package, self._random)
        tests = (*canaries.first, *task.fail_to_pass, *task.pass_to_pass, *canaries.last)
        timeout = max(self._min_timeout, self._timeout_factor * task.test_seconds)
        files: _Files = {**base, **judged.files}
        try:
            report = self._run(tree, files, canaries.files, tests, timeout)
            verdict = _verdict(task, canaries, report)
            if verdict.value < 1.0:
                return verdict
            return self._sealed(task, tree, files, verdict, timeout)
        except _TooSlow:
            return Verdict("invalid", 0.0, "timeout: the correct package is too slow as well")
        except SandboxError as error:
            return Verdict("invalid", 0.0, f"sandbox: {error}")

    def _run(
        self,
        tree: Path,
        files: _Files,
        extra: Mapping[str, str],
        tests: Sequence[str],
        timeout: float,
    ) -> TestReport:
        """A run of a submission with the verifier's own `extra` files.

        One out of time is compared with the package without the bug, while no other is; raises
        `_TooSlow` when that says nothing about the submission.
        """
        both = {**files, **extra}
        report = self._sandbox.run_tests(tree, both, tests, timeout=timeout)
        if not report.timed_out or report.message.startswith(_TAMPERING):
            return report
        with self._repeating:
            control = self._sandbox.run_tests(tree, {**extra}, tests, timeout=timeout)
            if not control.timed_out and control.wall_seconds <= _AT_EASE * timeout:
                return report
            report = self._sandbox.run_tests(tree, both, tests, timeout=_PATIENCE * timeout)
        if report.timed_out and control.timed_out:
            raise _TooSlow
        return report

    def _sealed(
        self, task: Task, tree: Path, files: _Files, verdict: Verdict, timeout: float
    ) -> Verdict:
        """`verdict` if the tests that passed reach their end once more, in a box of their own.

        Where one does not, the package without the bug tells whether the test can be sealed.
        """
        passed = [
            test
            for test, outcome in verdict.tests.items()
            if outcome == "passed" and (task.id, test) not in self._unsealable
        ]
        seals = make_seals(tree, passed, self._random)
        if not seals.tokens:
            return verdict
        report = self._run(tree, files, seals.files, seals.tests, timeout)
        broken = seals.broken(report.message)
        if not broken:
            return verdict
        control = self._run(tree, {}, seals.files, seals.tests, timeout)
        if control.timed_out:
            raise _TooSlow
        unsealable = seals.broken(control.message)
        with self._lock:
            self._unsealable |= {(task.id, test) for test in unsealable}
        if report.timed_out:
            return replace(verdict, value=0.0, reason="timeout")
        if unsealable >= broken:
            return verdict
        reason = "tests failed"
        if report.message.startswith(_TAMPERING):
            reason = report.message
        for test in sorted(broken - unsealable):
            if report.outcomes.get(test) == "passed":
                reason = f"{_TAMPERING}{test} passed without reaching its end"
        return replace(verdict, value=0.0, reason=reason)


def _static_findings(tree: Path, base: dict[str, str], judged: Effective) -> list[str]:
    found: list[str] = []
    for path, text in judged.files.items():
        if text is None:
            continue
        # A file that is not UTF-8 excuses nothing it hides: undecodable bytes name no feature.
        file = tree / path
        kept = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None
        found += tamper.findings(base.get(path, kept), text, kept)
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
    if report.message.startswith(_TAMPERING):
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
