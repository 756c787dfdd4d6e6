"""The local sandbox: what a report says, what a run can see, and how failures of a box end."""

from __future__ import annotations

import os
import py_compile
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import frontrunner
from frontrunner.envs import box_mounts, sandbox
from frontrunner.envs.sandbox import LocalSandbox
from frontrunner.errors import SandboxError, SandboxUnavailable, UserError

CORE = "def double(x):\n    return 2 * x\n"
TESTS = """
import unittest
import pytest
from calc.core import double

def test_two():
    assert double(2) == 4

@pytest.mark.parametrize("x", [1, 3])
def test_many(x):
    assert double(x) == 2 * x

class TestGroup(unittest.TestCase):
    def test_zero(self):
        self.assertEqual(double(0), 0)

def test_skipped():
    pytest.skip("not here")

@pytest.fixture
def broken():
    raise OSError("no device")

def test_fixture(broken):
    pass
"""
FILE = "calc/tests/test_core.py"


def make_tree(root: Path) -> Path:
    for name, text in {
        "calc/__init__.py": "",
        "calc/core.py": CORE,
        "calc/tests/__init__.py": "",
        FILE: TESTS,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(path), invalidation_mode=mode)
    return root


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("trees") / "calc")


@pytest.fixture(scope="module")
def box(tree: Path) -> Iterator[LocalSandbox]:
    with LocalSandbox([tree], num_workers=1, scratch_mb=16) as made:
        yield made


def run(box: LocalSandbox, tree: Path, body: str, timeout: float = 10.0) -> dict[str, str]:
    """Outcomes, by test name, of a test file that exists in this run only."""
    files: dict[str, str | None] = {"calc/tests/test_x.py": body}
    report = box.run_tests(tree, files, ["calc/tests/test_x.py"], timeout=timeout)
    assert report.outcomes, report
    return {node.partition("::")[2]: outcome for node, outcome in report.outcomes.items()}


def test_outcomes_come_back_per_node_id(box: LocalSandbox, tree: Path) -> None:
    report = box.run_tests(tree, {}, [FILE], timeout=10)
    assert report.outcomes == {
        f"{FILE}::test_two": "passed",
        f"{FILE}::test_many[1]": "passed",
        f"{FILE}::test_many[3]": "passed",
        f"{FILE}::TestGroup::test_zero": "passed",
        f"{FILE}::test_skipped": "skipped",
        f"{FILE}::test_fixture": "error",
    }
    assert (report.timed_out, report.exited_early) == (False, False)
    assert 0 < report.wall_seconds < 10


def test_only_the_requested_tests_run_in_their_order(box: LocalSandbox, tree: Path) -> None:
    wanted = [f"{FILE}::TestGroup::test_zero", f"{FILE}::test_many[3]", f"{FILE}::test_two"]
    assert list(box.run_tests(tree, {}, wanted, timeout=10).outcomes) == wanted


def test_an_unknown_id_is_absent_and_the_others_run(box: LocalSandbox, tree: Path) -> None:
    wanted = [f"{FILE}::test_gone", "calc/tests/test_gone.py::test_a", f"{FILE}::test_two"]
    assert box.run_tests(tree, {}, wanted, timeout=10).outcomes == {f"{FILE}::test_two": "passed"}


def test_message_names_the_first_failure_and_its_statement(box: LocalSandbox, tree: Path) -> None:
    files: dict[str, str | None] = {"calc/core.py": "def double(x):\n    return x\n"}
    report = box.run_tests(tree, files, [f"{FILE}::test_two"], timeout=10)
    assert report.outcomes == {f"{FILE}::test_two": "failed"}
    assert report.message == "test_two: AssertionError: assert double(2) == 4"


def test_addresses_are_left_out_of_the_message(box: LocalSandbox, tree: Path) -> None:
    files: dict[str, str | None] = {"calc/core.py": "def double(x):\n    return object()\n"}
    files[FILE] = "from calc.core import double\ndef test_two():\n    raise ValueError(double(2))\n"
    report = box.run_tests(tree, files, [f"{FILE}::test_two"], timeout=10)
    assert report.message == "test_two: ValueError: <object object at 0x...>"


def test_a_module_that_does_not_import_is_an_error_of_its_tests(
    box: LocalSandbox, tree: Path
) -> None:
    files: dict[str, str | None] = {"calc/core.py": "def double(x:\n"}
    report = box.run_tests(tree, files, [f"{FILE}::test_two"], timeout=10)
    assert report.outcomes == {f"{FILE}::test_two": "error"}
    assert "SyntaxError" in report.message
    assert not report.exited_early


def test_max_failures_stops_early(box: LocalSandbox, tree: Path) -> None:
    files: dict[str, str | None] = {"calc/core.py": "def double(x):\n    return -1\n"}
    report = box.run_tests(tree, files, [FILE], timeout=10, max_failures=2)
    assert list(report.outcomes.values()) == ["failed", "failed"]
    assert not report.exited_early


def test_a_deleted_file_is_gone_with_its_compiled_copy(box: LocalSandbox, tree: Path) -> None:
    report = box.run_tests(tree, {"calc/core.py": None}, [f"{FILE}::test_two"], timeout=10)
    assert report.outcomes == {f"{FILE}::test_two": "error"}


def test_calls_do_not_see_each_other(box: LocalSandbox, tree: Path) -> None:
    body = """
import os
PLACES = ("/repo/calc/tests", "/repo", "/tmp", "/dev/shm", "/", "/dev", "/deps", "/opt", "/etc")
def test_leave():
    for place in PLACES:
        assert not os.path.exists(place + "/mark"), place
        try:
            open(place + "/mark", "w").close()
        except OSError:
            pass
    assert os.path.exists("/tmp/mark")
"""
    for _ in range(2):
        assert run(box, tree, body) == {"test_leave": "passed"}
    assert not list(tree.rglob("mark"))


def test_a_conftest_that_adds_options_works(box: LocalSandbox, tree: Path) -> None:
    files: dict[str, str | None] = {
        "calc/conftest.py": """
import pytest
def pytest_addoption(parser):
    parser.addoption("--fast", default="yes")
@pytest.fixture
def speed(request):
    return request.config.getoption("--fast")
""",
        "calc/tests/test_x.py": "def test_speed(speed):\n    assert speed == 'yes'\n",
    }
    report = box.run_tests(tree, files, ["calc/tests/test_x.py"], timeout=10)
    assert list(report.outcomes.values()) == ["passed"], report


def test_runs_are_deterministic(box: LocalSandbox, tree: Path) -> None:
    body = """
import random
def test_same():
    assert [hash("a") % 1000, random.randrange(1000)] == [{}, {}]
"""
    files: dict[str, str | None] = {"calc/tests/test_x.py": body}
    reports = {
        box.run_tests(tree, files, ["calc/tests/test_x.py"], timeout=10).message for _ in range(3)
    }
    assert len(reports) == 1


@pytest.mark.parametrize("path", ["/etc/x.py", "../x.py", "calc/../../x.py", "", "a\0b.py"])
def test_paths_outside_the_tree_are_refused(box: LocalSandbox, tree: Path, path: str) -> None:
    with pytest.raises(ValueError, match="unsafe path"):
        box.run_tests(tree, {path: "x = 1"}, [FILE], timeout=10)


def test_an_endless_test_is_stopped_on_time(box: LocalSandbox, tree: Path) -> None:
    files: dict[str, str | None] = {
        "calc/tests/test_x.py": "import time\ndef test_a():\n    pass\n"
        "def test_b():\n    time.sleep(60)\n"
    }
    start = time.monotonic()
    report = box.run_tests(tree, files, ["calc/tests/test_x.py"], timeout=1.0)
    assert report.timed_out
    assert report.outcomes == {"calc/tests/test_x.py::test_a": "passed"}
    assert time.monotonic() - start < 2.0


def test_threads_share_the_pool(tree: Path) -> None:
    with LocalSandbox([tree], num_workers=2) as box, ThreadPoolExecutor(4) as threads:

        def once(index: int) -> str:
            files: dict[str, str | None] = {"calc/core.py": f"def double(x):\n    return {index}\n"}
            return box.run_tests(tree, files, [f"{FILE}::test_two"], timeout=20).outcomes[
                f"{FILE}::test_two"
            ]

        outcomes = list(threads.map(once, range(8)))
    assert outcomes == ["passed" if index == 4 else "failed" for index in range(8)]


def test_a_new_tree_is_added_and_others_are_hidden(
    box: LocalSandbox, tree: Path, tmp_path: Path
) -> None:
    other = make_tree(tmp_path / "other")
    other.chmod(0o700)  # as `tempfile.mkdtemp` makes them; the box's user cannot enter
    assert run(box, other, "def test_a():\n    pass\n") == {"test_a": "passed"}
    body = "import os\ndef test_a():\n    assert os.listdir('/trees') == []\n"
    assert run(box, tree, body) == {"test_a": "passed"}


def test_declared_libraries_only(tree: Path, tmp_path: Path) -> None:
    other = make_tree(tmp_path / "other")
    body = """
import pytest
def test_there():
    import sortedcontainers
def test_absent():
    for name in ("numpy", "toolz", "frontrunner", "pip"):
        with pytest.raises(ImportError):
            __import__(name)
"""
    with LocalSandbox({tree: ["sortedcontainers"], other: []}, num_workers=1) as box:
        assert set(run(box, tree, body).values()) == {"passed"}
        assert run(box, other, body)["test_there"] == "failed"


def test_a_box_that_died_is_replaced(tree: Path) -> None:
    with LocalSandbox([tree], num_workers=1) as box:
        box.run_tests(tree, {}, [FILE], timeout=10)
        running = box._all_slots[0].box
        assert running is not None
        running._process.kill()
        assert box.run_tests(tree, {}, [f"{FILE}::test_two"], timeout=10).outcomes


def test_a_box_that_cannot_start_again_is_a_sandbox_error(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalSandbox([tree], num_workers=1) as box:
        running = box._all_slots[0].box
        assert running is not None
        running._process.kill()
        box._stage.bwrap.unlink()
        with pytest.raises(SandboxError, match="failed twice"):
            box.run_tests(tree, {}, [FILE], timeout=10)


def processes_of(marker: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker in path.read_bytes().decode(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_close_leaves_no_process_and_no_file(tree: Path) -> None:
    box = LocalSandbox([tree], num_workers=2)
    box.run_tests(tree, {}, [FILE], timeout=10)
    stage = box._stage.root
    assert processes_of(str(stage))
    box.close()
    box.close()
    assert not processes_of(str(stage))
    assert not stage.exists()
    with pytest.raises(SandboxError, match="closed"):
        box.run_tests(tree, {}, [FILE], timeout=10)


def test_boxes_die_with_a_parent_that_is_killed(tree: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from frontrunner.envs.sandbox import LocalSandbox
box = LocalSandbox([Path({str(tree)!r})], num_workers=1)
print(box._stage.root, flush=True)
files = {{"calc/tests/test_x.py": "import time\\ndef test_a():\\n    time.sleep(60)\\n"}}
box.run_tests(Path({str(tree)!r}), files, ["calc/tests/test_x.py"], timeout=60)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(frontrunner.__file__).parents[1])}
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    with parent.stdout as lines:
        stage = lines.readline().strip()
    assert stage
    time.sleep(0.5)
    assert processes_of(stage)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 2
    while processes_of(stage) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_of(stage)
    box_mounts.Stage(Path(stage), Path()).close()


def test_no_bubblewrap_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_mounts, "bwrap_candidates", list)
    with pytest.raises(SandboxUnavailable, match=r"bwrap was not found.*apt install bubblewrap"):
        LocalSandbox()
    assert sandbox.probe()["status"] == "unavailable"


def test_a_tree_that_is_no_directory_is_a_user_error(box: LocalSandbox, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a directory"):
        box.run_tests(tmp_path / "none", {}, ["x.py"], timeout=1)


def test_probe_describes_the_isolation() -> None:
    found = sandbox.probe()
    assert found["status"] == "ok"
    assert {"bwrap", "boxes", "project", "user", "memory", "network"} <= set(found)
    assert os.geteuid() != 0 or found["user"].startswith("uid 6")


@pytest.mark.parametrize("weaker", [{"overlay": False}, {"nested": False}])
def test_fallbacks_give_the_same_answers(tree: Path, weaker: dict[str, bool]) -> None:
    body = """
import os
def test_hidden():
    copies = [os.path.join(d, f) for d, _, fs in os.walk("/") for f in fs if "core" in f
              and not d.startswith(("/proc", "/usr", "/lib", "/opt/python", "/opt/lib"))]
    others = {path for path in copies if "test_core" not in path}
    assert others == {"/repo/calc/core.py", "/dev/core"}, others
    assert "return 5" in open("/repo/calc/core.py").read()
"""
    files: dict[str, str | None] = {
        "calc/core.py": "def double(x):\n    return 5\n",
        "calc/tests/test_x.py": body,
    }
    with LocalSandbox([tree], num_workers=1) as box:
        box.facts.update(weaker)
        for _ in range(2):
            report = box.run_tests(tree, files, ["calc/tests/test_x.py", FILE], timeout=10)
            assert report.outcomes["calc/tests/test_x.py::test_hidden"] == "passed", report
            assert report.outcomes[f"{FILE}::test_two"] == "failed"
            assert len(report.outcomes) == 7
