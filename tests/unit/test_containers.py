"""Container engines and the grading of logs; the engine is a script that answers as docker does."""

import json
import sys
from pathlib import Path

import pytest

from frontrunner.cli.main import main
from frontrunner.envs import containers, harbor_grade
from frontrunner.errors import SandboxError

DOCKER = """#!{python}
import pathlib, sys
logs = [a.split("=", 1)[1].split(":")[0] for a in sys.argv if a.endswith(":/logs:rw")]
if logs and {writes}:
    solved = "/solution/solve.sh" in sys.argv[-1]
    pathlib.Path(logs[0], "verifier/reward.json").write_text('{{"reward": %d}}' % solved)
sys.exit({code} if sys.argv[1] == "run" else 0)
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    files = {
        "task.toml": 'schema_version = "1.4"\n[environment]\ndocker_image = "i:1"\n',
        "instruction.md": "Make it pass.\n",
        "tests/test.sh": "true\n",
        "solution/solve.sh": "true\n",
    }
    for name, text in files.items():
        path = tmp_path / "tasks/hello" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path / "tasks")


@pytest.mark.parametrize(
    ("writes", "code", "reason"),
    [(True, 0, ""), (False, 0, "unchecked: the tests left no reward"), (True, 125, "unchecked")],
)
def test_an_engine_checks_gold_and_doing_nothing(
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    writes: bool,
    code: int,
    reason: str,
) -> None:
    engine = tmp_path / "bin/docker"
    engine.parent.mkdir()
    engine.write_text(DOCKER.format(python=sys.executable, writes=writes, code=code))
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", str(engine.parent))
    assert main(["tasks", "check", folder, "--json"]) == int(bool(reason))
    facts = json.loads(capsys.readouterr().out)
    assert facts["valid"] == int(not reason)
    assert facts["invalid"].get("hello", "").startswith(reason)


def test_without_an_engine_tasks_are_unchecked_and_say_why(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert main(["tasks", "check", folder, "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["reasons"] == {"unchecked": 1}
    assert "docker is not installed; podman is not installed" in facts["invalid"]["hello"]


@pytest.mark.parametrize(
    ("log", "status"),
    [
        ("PASSED t.py::test_x[a b]", {"t.py::test_x[a b]": "PASSED"}),
        ("FAILED t.py::test_x - boom", {"t.py::test_x": "FAILED"}),
        ("t.py::test_x PASSED   [ 50%]", {"t.py::test_x": "PASSED"}),
        ("test_x (m.T) ... ok", {"test_x (m.T)": "PASSED"}),
        ("test_x ok", {"test_x": "PASSED"}),
        ("test a::b ... ok", {"a::b": "PASSED"}),
        ("--- FAIL: TestX (0.1s)", {"TestX": "FAILED"}),
        ("nothing", {}),
    ],
)
def test_logs_of_the_usual_runners_are_read(log: str, status: dict[str, str]) -> None:
    assert harbor_grade.statuses(log) == status


def test_a_test_that_is_not_in_the_log_has_not_passed() -> None:
    wanted: dict[str, object] = {"fail_to_pass": ["a"], "pass_to_pass": ["b"]}
    assert harbor_grade.solved(wanted, {"a": "PASSED", "b": "PASSED"})
    assert not harbor_grade.solved(wanted, {"a": "PASSED"})
    assert not harbor_grade.solved(wanted, {"a": "SKIPPED", "b": "PASSED"})
    assert not harbor_grade.solved({"expected": {"a": "PASSED"}}, {"a": "PASSED", "b": "PASSED"})


@pytest.mark.parametrize("text", ["", "NaN", '{"reward": "1"}', '{"a": 1, "b": 1}', "[1]"])
def test_an_unreadable_reward_is_a_failed_verifier(tmp_path: Path, text: str) -> None:
    (tmp_path / "reward.json").write_text(text)
    with pytest.raises(SandboxError):
        containers.read_reward(tmp_path)
