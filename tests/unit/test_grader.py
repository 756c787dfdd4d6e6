"""Grading rules, with a scripted sandbox: what is applied, what counts as solved, what is kept."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from frontrunner.errors import SandboxError
from frontrunner.protocols import TestReport
from frontrunner.types import Mutation, Task
from frontrunner.verify.canaries import make_canaries
from frontrunner.verify.grader import TestGrader
from frontrunner.verify.submission import MAX_FILE_BYTES, effective

BASE = {"pkg/core.py": "x = 1\n"}
FAIL, PASS = "pkg/tests/test_a.py::test_f", "pkg/tests/test_a.py::test_p"


def make_task(test_seconds: float = 0.1) -> Task:
    return Task(
        id="pkg-1",
        package="pkg",
        version="1",
        path="pkg/core.py",
        file_sha256="",
        function="f",
        mutation=Mutation("number", 1, 4, 1, 5, "1"),
        fail_to_pass=(FAIL,),
        pass_to_pass=(PASS,),
        split="train",
        symptom="",
        instruction="",
        test_seconds=test_seconds,
    )


class ScriptedSandbox:
    """Tells the truth about canaries (it reads them), and what it was told about the rest."""

    def __init__(self, outcomes: dict[str, str], **report: bool | str) -> None:
        self.outcomes = outcomes
        self.report = {"message": "", "timed_out": False, "exited_early": False, **report}
        self.calls: list[tuple[dict[str, str | None], tuple[str, ...], float]] = []
        self.lie: Callable[[dict[str, str]], dict[str, str]] = lambda outcomes: outcomes

    def run_tests(
        self,
        tree: Path,
        files: dict[str, str | None],
        tests: Sequence[str],
        *,
        timeout: float,
        max_failures: int = 0,
    ) -> TestReport:
        self.calls.append((dict(files), tuple(tests), timeout))
        return self.answer(files, tests, timeout)

    def answer(
        self, files: dict[str, str | None], tests: Sequence[str], timeout: float
    ) -> TestReport:
        """What a run of these files says; what special sandboxes change."""
        found = {test: "failed" for test in tests if test not in (FAIL, PASS)}
        found |= dict.fromkeys(self.holding(files, tests), "passed")
        return TestReport(
            outcomes=self.lie({**found, **self.outcomes}),
            message=str(self.report["message"]),
            timed_out=bool(self.report["timed_out"]),
            exited_early=bool(self.report["exited_early"]),
            wall_seconds=0.1,
        )

    @staticmethod
    def holding(files: dict[str, str | None], tests: Sequence[str]) -> list[str]:
        """Canaries that hold, found by running them in a scratch process-free namespace."""
        found = []
        for test in tests:
            path, _, name = test.partition("::")
            text = files.get(path)
            if not text or path in BASE:
                continue
            space: dict[str, object] = {}
            exec(text.replace("import pkg  # noqa: F401", ""), space)
            try:
                case = name.partition("::")
                owner = space[case[0]]
                getattr(owner(case[2]), case[2])() if case[2] else owner()  # type: ignore[operator]
                found.append(test)
            except (AssertionError, pytest.fail.Exception):
                continue
        return found

    def close(self) -> None:
        return


def make_grader(box: ScriptedSandbox, tmp_path: Path) -> TestGrader:
    return TestGrader(box, lambda _: tmp_path, lambda _: dict(BASE))


FIX: dict[str, str | None] = {"pkg/core.py": "x = 2\n"}


@pytest.mark.parametrize(
    ("fail", "keep", "value"),
    [
        ("passed", "passed", 1.0),
        ("passed", "skipped", 1.0),
        ("skipped", "passed", 0.0),
        ("passed", "failed", 0.0),
        ("failed", "passed", 0.0),
        ("error", "passed", 0.0),
        ("passed", "error", 0.0),
    ],
)
def test_success_needs_every_outcome(tmp_path: Path, fail: str, keep: str, value: float) -> None:
    verdict = make_grader(ScriptedSandbox({FAIL: fail, PASS: keep}), tmp_path).grade(
        make_task(), FIX
    )
    assert (verdict.kind, verdict.value) == ("graded", value)
    assert verdict.reason == ("solved" if value else "tests failed")
    assert verdict.tests == {FAIL: fail, PASS: keep}


def test_an_absent_outcome_is_not_a_pass(tmp_path: Path) -> None:
    verdict = make_grader(ScriptedSandbox({FAIL: "passed"}), tmp_path).grade(make_task(), FIX)
    assert verdict.value == 0.0
    assert verdict.tests[PASS] == "missing"


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        ({"exited_early": True}, "exited early"),
        ({"message": "tampering: x was replaced"}, "tampering: x was replaced"),
    ],
)
def test_a_report_that_is_not_trusted_scores_zero(
    tmp_path: Path, report: dict[str, bool | str], reason: str
) -> None:
    box = ScriptedSandbox({FAIL: "passed", PASS: "passed"}, **report)
    verdict = make_grader(box, tmp_path).grade(make_task(), FIX)
    assert (verdict.kind, verdict.value, verdict.reason) == ("graded", 0.0, reason)


def all_pass(outcomes: dict[str, str]) -> dict[str, str]:
    return dict.fromkeys(outcomes, "passed")


def only_real(outcomes: dict[str, str]) -> dict[str, str]:
    return {test: outcome for test, outcome in outcomes.items() if test in (FAIL, PASS)}


def canaries_skipped(outcomes: dict[str, str]) -> dict[str, str]:
    return {test: o if test in (FAIL, PASS) else "skipped" for test, o in outcomes.items()}


def all_others_fail(outcomes: dict[str, str]) -> dict[str, str]:
    return {test: o if test in (FAIL, PASS) else "failed" for test, o in outcomes.items()}


@pytest.mark.parametrize("lie", [all_pass, only_real, canaries_skipped, all_others_fail])
def test_canaries_expose_a_lying_runner(
    tmp_path: Path, lie: Callable[[dict[str, str]], dict[str, str]]
) -> None:
    box = ScriptedSandbox({FAIL: "passed", PASS: "passed"})
    box.lie = lie
    verdict = make_grader(box, tmp_path).grade(make_task(), FIX)
    assert verdict.value == 0.0
    assert verdict.reason.startswith("tampering: ")


def test_canaries_run_first_and_last_and_differ(tmp_path: Path) -> None:
    box = ScriptedSandbox({FAIL: "passed", PASS: "passed"})
    grader = make_grader(box, tmp_path)
    grader.grade(make_task(), FIX)
    grader.grade(make_task(), {"pkg/core.py": "x = 3\n"})
    (_, first, _), (_, second, _) = box.calls
    assert first[2:4] == second[2:4] == (FAIL, PASS)
    assert len(first) == 6
    assert not set(first[:2] + first[4:]) & set(second[:2] + second[4:])


@pytest.mark.parametrize("seed", range(20))
def test_canaries_are_what_they_claim(seed: int) -> None:
    canaries = make_canaries("", "json", random.Random(seed))
    files: dict[str, str | None] = {**canaries.files}
    tests = (*canaries.first, *canaries.last)
    assert set(ScriptedSandbox.holding(files, tests)) == canaries.must_pass
    assert canaries.must_pass | canaries.must_fail == set(tests)


def test_a_failing_box_is_invalid_and_not_remembered(tmp_path: Path) -> None:
    class Broken(ScriptedSandbox):
        def answer(self, *_: object) -> TestReport:
            raise SandboxError("no space")

    box = Broken({})
    grader = make_grader(box, tmp_path)
    for _ in range(2):
        verdict = grader.grade(make_task(), FIX)
        assert (verdict.kind, verdict.value, verdict.reason) == (
            "invalid",
            0.0,
            "sandbox: no space",
        )
    assert len(box.calls) == 2


def test_the_same_effective_submission_runs_once(tmp_path: Path) -> None:
    box = ScriptedSandbox({FAIL: "failed", PASS: "passed"})
    grader = make_grader(box, tmp_path)
    plain = grader.grade(make_task(), FIX)
    dressed = grader.grade(make_task(), {**FIX, "conftest.py": "x"})
    assert len(box.calls) == 1
    assert plain.reason == "tests failed"
    assert dressed.reason == "tests failed; ignored edits to conftest.py"
    assert plain.tests == dressed.tests


def test_the_timeout_follows_the_reference_duration(tmp_path: Path) -> None:
    box = ScriptedSandbox({FAIL: "passed", PASS: "passed"})
    grader = make_grader(box, tmp_path)
    grader.grade(make_task(0.01), FIX)
    grader.grade(make_task(2.0), {"pkg/core.py": "x = 3\n"})
    assert [timeout for _, _, timeout in box.calls] == [1.5, 20.0]


def test_the_bug_stays_where_the_submission_does_not_touch_it(tmp_path: Path) -> None:
    box = ScriptedSandbox({FAIL: "failed", PASS: "passed"})
    make_grader(box, tmp_path).grade(make_task(), {"pkg/other.py": "y = 1\n"})
    files = box.calls[0][0]
    assert files["pkg/core.py"] == BASE["pkg/core.py"]
    assert files["pkg/other.py"] == "y = 1\n"


@pytest.mark.parametrize(
    "path",
    [
        "pkg/tests/test_a.py",
        "pkg/tests/helpers.py",
        "pkg/test/a.py",
        "pkg/test_a.py",
        "pkg/a_test.py",
        "pkg/conftest.py",
        "conftest.py",
        "os.py",
        "pkg.py",
        "pkg/data.json",
        "pkg/core.pyc",
        "pkg/../pkg/core.py",
        "pkg//core.py",
        "./pkg/core.py",
        "/pkg/core.py",
        "pkg/core.py/x.py",
        "",
        "pkg/a\0.py",
    ],
)
def test_only_source_of_the_package_is_applied(path: str) -> None:
    judged = effective({path: "x"}, BASE, "pkg/core.py")
    assert (judged.files, judged.dropped) == ({}, (path,))


def test_size_and_encoding_are_limited() -> None:
    for text in ("x" * (MAX_FILE_BYTES + 1), "\ud800"):
        assert effective({"pkg/core.py": text}, BASE, "pkg/core.py").files == {}
    many: dict[str, str | None] = {f"pkg/m{index}.py": "" for index in range(100)}
    assert len(effective(many, BASE, "pkg/core.py").files) == 64


def test_a_single_module_package_is_that_file_alone() -> None:
    judged = effective({"six.py": "x", "seven.py": "x"}, {"six.py": "y"}, "six.py")
    assert list(judged.files) == ["six.py"]


def test_unchanged_files_are_no_change() -> None:
    assert effective(dict(BASE), BASE, "pkg/core.py").files == {}


class SlowSandbox(ScriptedSandbox):
    """Out of time in the first runs of the submission; without it, runs take `control` seconds."""

    def __init__(self, num_slow: int, control: float) -> None:
        super().__init__({FAIL: "passed", PASS: "passed"})
        self.num_slow, self.control = num_slow, control

    def answer(
        self, files: dict[str, str | None], tests: Sequence[str], timeout: float
    ) -> TestReport:
        report = super().answer(files, tests, timeout)
        if "pkg/core.py" in files:
            self.num_slow -= 1
            late = self.num_slow >= 0
        else:
            late = self.control > timeout
            report = replace(report, wall_seconds=self.control)
        return replace(report, timed_out=True, outcomes={}) if late else report


def test_out_of_time_on_a_machine_at_ease_is_zero_and_not_remembered(tmp_path: Path) -> None:
    box = SlowSandbox(1, control=0.1)
    grader = make_grader(box, tmp_path)
    verdict = grader.grade(make_task(), FIX)
    assert (verdict.kind, verdict.value, verdict.reason) == ("graded", 0.0, "timeout")
    assert [timeout for _, _, timeout in box.calls] == [1.5, 1.5]
    assert "pkg/core.py" not in box.calls[1][0]
    assert grader.grade(make_task(), FIX).value == 1.0


def test_a_slow_machine_gives_more_time(tmp_path: Path) -> None:
    box = SlowSandbox(1, control=1.0)
    verdict = make_grader(box, tmp_path).grade(make_task(), FIX)
    assert (verdict.value, verdict.reason) == (1.0, "solved")
    assert [timeout for _, _, timeout in box.calls][:3] == [1.5, 1.5, 3.0]
    late = make_grader(SlowSandbox(2, control=1.0), tmp_path).grade(make_task(), FIX)
    assert (late.kind, late.value, late.reason) == ("graded", 0.0, "timeout")


def test_out_of_time_without_the_bug_too_is_invalid(tmp_path: Path) -> None:
    verdict = make_grader(SlowSandbox(2, control=9.0), tmp_path).grade(make_task(), FIX)
    assert (verdict.kind, verdict.value) == ("invalid", 0.0)
    assert verdict.reason.startswith("timeout: ")


class SealedSandbox(ScriptedSandbox):
    """Shows the tokens of sealed tests, or none of them to the submission or to anyone."""

    def __init__(self, honest: bool, sealable: bool) -> None:
        super().__init__({FAIL: "passed", PASS: "passed"})
        self.honest, self.sealable = honest, sealable

    def answer(
        self, files: dict[str, str | None], tests: Sequence[str], timeout: float
    ) -> TestReport:
        self.report["message"] = ""
        suite = files.get(FAIL.partition("::")[0])
        if suite and self.sealable and (self.honest or "pkg/core.py" not in files):
            pairs = re.findall(r"(\d+) \^ (\d+)", suite)
            tokens = " ".join(f"{int(a) ^ int(b):012x}" for a, b in pairs)
            self.report["message"] = f"test_x: AssertionError: {tokens}"
        outcomes = dict.fromkeys(tests, "passed") if suite else None
        report = super().answer(files, tests, timeout)
        return report if outcomes is None else replace(report, outcomes=outcomes)


@pytest.mark.parametrize(
    ("honest", "sealable", "value", "num_runs"),
    [(True, True, 1.0, 4), (False, True, 0.0, 6), (False, False, 1.0, 4)],
)
def test_a_solution_must_show_its_tokens_where_they_can_be_shown(
    tmp_path: Path, honest: bool, sealable: bool, value: float, num_runs: int
) -> None:
    suite = tmp_path / FAIL.partition("::")[0]
    suite.parent.mkdir(parents=True)
    suite.write_text("def test_f():\n    pass\n\n\ndef test_p():\n    pass\n")
    box = SealedSandbox(honest, sealable)
    grader = make_grader(box, tmp_path)
    for text in ("x = 2\n", "x = 3\n"):
        verdict = grader.grade(make_task(), {"pkg/core.py": text})
        assert verdict.value == value
        reason = f"tampering: {PASS} passed without reaching its end"
        assert verdict.reason == ("solved" if value else reason)
    assert len(box.calls) == num_runs


def test_source_that_does_not_parse_scores_zero(tmp_path: Path) -> None:
    box = ScriptedSandbox({FAIL: "passed", PASS: "passed"})
    verdict = make_grader(box, tmp_path).grade(make_task(), {"pkg/core.py": "def f(:"})
    assert (verdict.kind, verdict.value, verdict.reason) == ("graded", 0.0, "does not parse")
    assert box.calls == []


def test_the_version_names_the_settings(tmp_path: Path) -> None:
    box = ScriptedSandbox({})
    plain = TestGrader(box, lambda _: tmp_path, lambda _: {})
    slow = TestGrader(box, lambda _: tmp_path, lambda _: {}, min_timeout=9.0)
    assert plain.version != slow.version


def test_a_file_that_is_not_utf8_is_compared_as_well_as_it_can_be(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/old.py").write_bytes(b"# coding: latin-1\nx = '\xe9'\n")
    box = ScriptedSandbox({FAIL: "passed", PASS: "passed"})
    grader = make_grader(box, tmp_path)
    assert grader.grade(make_task(), {**FIX, "pkg/old.py": "x = 'e'\n"}).value == 1.0
    assert "import of gc" in grader.grade(make_task(), {"pkg/old.py": "import gc\n"}).reason
