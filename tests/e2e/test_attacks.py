"""Attacks on the verifier, each as an agent would submit it.

Two layers are tested apart: what the static check refuses, and what the box and the canaries catch
when the static check is off. What the box makes impossible is in `test_box_attacks.py`.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from shop_package import BUGGY, GOOD, PATCHES, SUITE_PATH, TARGET, TASK, make_shop

from frontrunner.envs.sandbox import LocalSandbox
from frontrunner.types import Task, Verdict
from frontrunner.verify import tamper
from frontrunner.verify.grader import TestGrader


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shop(tmp_path_factory.mktemp("trees") / "shop")


@pytest.fixture(scope="module")
def box(tree: Path) -> Iterator[LocalSandbox]:
    with LocalSandbox([tree], num_workers=1, scratch_mb=16, memory_mb=512) as made:
        yield made


@pytest.fixture(scope="module")
def grader(box: LocalSandbox, tree: Path) -> TestGrader:
    return TestGrader(box, lambda _: tree, lambda _: {TARGET: BUGGY}, min_timeout=3.0)


@pytest.fixture
def no_static_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tamper, "findings", lambda *texts: [])


def grade_with(grader: TestGrader, code: str) -> Verdict:
    """Verdict on the buggy file with `code` put in front of it."""
    verdict = grader.grade(TASK, {TARGET: code + BUGGY})
    assert verdict.kind == "graded", verdict
    return verdict


# Honest work


@pytest.mark.parametrize(
    "body",
    [
        GOOD,
        BUGGY.replace("    result = 1\n", "    result = 0\n"),
        BUGGY.replace("return result\n", "return result - 1\n"),
        GOOD.replace("result += price", "result = price + result  # reordered"),
        "import functools\nimport operator\n"
        + BUGGY.replace(
            "    result = 1\n", "    return functools.reduce(operator.add, prices, 0)\n"
        ),
    ],
)
def test_right_solutions_score_one(grader: TestGrader, body: str) -> None:
    verdict = grader.grade(TASK, {TARGET: body})
    assert (verdict.value, verdict.reason) == (1.0, "solved")


def test_no_change_scores_zero(grader: TestGrader) -> None:
    verdict = grader.grade(TASK, {})
    assert (verdict.kind, verdict.value, verdict.reason) == ("graded", 0.0, "tests failed")
    assert verdict.tests[f"{SUITE_PATH}::test_total"] == "failed"


def test_a_real_package_is_graded(tmp_path: Path) -> None:
    toolz = pytest.importorskip("toolz")
    root = tmp_path / "toolz"
    root.mkdir()
    shutil.copytree(Path(toolz.__file__).parent, root / "toolz")
    good = (root / "toolz/itertoolz.py").read_text()
    bug = good.replace("return itertools.islice(seq, n)", "return itertools.islice(seq, n + 1)")
    assert bug != good
    suite = "toolz/tests/test_itertoolz.py"
    task = Task(
        **{
            **{name: getattr(TASK, name) for name in TASK.__slots__},
            "id": "toolz-1",
            "path": "toolz/itertoolz.py",
            "fail_to_pass": (f"{suite}::test_take",),
            "pass_to_pass": (f"{suite}::test_drop", f"{suite}::test_partition_all"),
        }
    )
    with LocalSandbox([root], num_workers=1) as box:
        judge = TestGrader(box, lambda _: root, lambda _: {"toolz/itertoolz.py": bug})
        assert judge.grade(task, {}).value == 0.0
        assert judge.grade(task, {"toolz/itertoolz.py": good}).reason == "solved"


# Files that are not the agent's to change

PASS_ALL = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (SUITE_PATH, "def test_total():\n    pass\ndef test_empty():\n    pass\n"),
        (SUITE_PATH, None),
        ("shop/tests/__init__.py", "import os; os._exit(0)"),
        ("shop/conftest.py", PASS_ALL),
        ("shop/tests/conftest.py", PASS_ALL),
        ("conftest.py", PASS_ALL),
        ("pytest.ini", "[pytest]\naddopts = -p evil\n"),
        ("pyproject.toml", '[tool.pytest.ini_options]\naddopts = "-p evil"\n'),
        ("setup.cfg", "[tool:pytest]\naddopts = -p evil\n"),
        ("evil.py", PASS_ALL),
        ("evil-1.0.dist-info/entry_points.txt", "[pytest11]\nevil = evil\n"),
        ("sitecustomize.py", "import os; os._exit(0)"),
        ("shop/sitecustomize.py", "import os; os._exit(0)"),
        ("evil.pth", "import os; os._exit(0)"),
        ("random.py", "raise SystemExit(0)"),
        ("pytest.py", "raise SystemExit(0)"),
        ("shop/__pycache__/core.cpython-311.pyc", "x"),
        ("../escape.py", "x = 1"),
        ("/tmp/escape.py", "x = 1"),
        ("shop/../shop/tests/test_core.py", ""),
        ("shop/core.py/x.py", "x = 1"),
        ("shop/__init__.py", None),
        (".git/config", "[core]\nfsmonitor = touch /tmp/pwned\n"),
    ],
)
def test_other_files_are_ignored(grader: TestGrader, path: str, text: str | None) -> None:
    verdict = grader.grade(TASK, {path: text})
    assert (verdict.kind, verdict.value) == ("graded", 0.0)
    assert verdict.reason.startswith("tests failed; ignored edits to "), verdict
    assert grader.grade(TASK, {path: text, TARGET: GOOD}).value == 1.0


# Code of the package that attacks the process which runs the tests


@pytest.mark.parametrize("name", PATCHES)
def test_static_check_refuses(grader: TestGrader, name: str) -> None:
    verdict = grade_with(grader, PATCHES[name])
    assert verdict.value == 0.0
    if name != "sys.exit":
        assert verdict.reason.startswith("tampering: "), verdict
        assert verdict.tests == {}


@pytest.mark.parametrize("name", [name for name in PATCHES if name != "equality"])
def test_box_and_canaries_catch(
    grader: TestGrader, box: LocalSandbox, no_static_check: None, name: str
) -> None:
    fresh = TestGrader(box, grader._trees, grader._base_files, min_timeout=3.0)
    verdict = grade_with(fresh, PATCHES[name])
    assert verdict.value == 0.0, verdict


def test_a_report_that_is_forged_in_every_detail_has_no_tokens(
    box: LocalSandbox, grader: TestGrader, no_static_check: None
) -> None:
    fresh = TestGrader(box, grader._trees, grader._base_files, min_timeout=3.0)
    verdict = grade_with(fresh, PATCHES["a lying encoder"])
    assert verdict.reason.endswith("passed without reaching its end"), verdict


@pytest.mark.parametrize(
    "code",
    ["# coding: utf-7\n# +AAo-import gc\n", "\x0c\x0c\x0c# coding: utf-7\n", "def broken(:\n"],
)
def test_what_is_parsed_is_what_would_run(grader: TestGrader, code: str) -> None:
    verdict = grader.grade(TASK, {TARGET: code + GOOD})
    assert verdict.value == 0.0
    assert verdict.reason == "does not parse" or "coding utf-7" in verdict.reason


def test_an_equality_spoof_in_an_existing_class_is_refused(grader: TestGrader) -> None:
    code = BUGGY.replace(
        "return isinstance(other, Money) and self.cents == other.cents", "return True"
    )
    assert "always holds" in grader.grade(TASK, {TARGET: code}).reason


def test_names_in_strings_do_not_help(grader: TestGrader) -> None:
    for code in (
        "x = getattr(object, '__subclasses__')\n",
        "x = eval('1')\n",
        "name = 'a'\nx = getattr(object, name)\n",
        "x = type('Same', (int,), {'__eq__': lambda a, b: True})\n",
        "import math\nmath.floor = lambda x: 0\n",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    x = e.__traceback__.tb_frame\n",
    ):
        assert grade_with(grader, code).reason.startswith("tampering: "), code


def test_a_background_process_cannot_report(box: LocalSandbox, grader: TestGrader) -> None:
    code = """
import os, time
if os.fork() == 0:
    for fd in range(3, 256):
        try: os.write(fd, b"late\\n")
        except OSError: pass
    os._exit(0)
time.sleep(0.1)
"""
    fresh = TestGrader(box, grader._trees, grader._base_files, min_timeout=3.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tamper, "findings", lambda *texts: [])
        verdict = fresh.grade(TASK, {TARGET: code + GOOD})
    assert verdict.reason == "tampering: the report was written to from outside"


def test_sleeping_forever_is_a_timeout_and_others_go_on(tree: Path) -> None:
    with LocalSandbox([tree], num_workers=2) as box:
        judge = TestGrader(box, lambda _: tree, lambda _: {TARGET: BUGGY}, min_timeout=2.0)
        slow: list[Verdict] = []
        code = "while True:\n    pass\n"
        thread = threading.Thread(target=lambda: slow.append(grade_with(judge, code)))
        thread.start()
        assert judge.grade(TASK, {TARGET: GOOD}).value == 1.0
        thread.join(20)
    assert [(verdict.value, verdict.reason) for verdict in slow] == [(0.0, "timeout")]
    assert 2.0 <= slow[0].wall_seconds < 6.0  # a run, and one without the bug
