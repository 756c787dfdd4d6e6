"""Harbor folders, rows of SWE-style sets and ATIF. Rows and folders are small and hand-made, with
the columns of the published formats; none comes from a data set."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frontrunner.cli.main import main
from frontrunner.envs import containers, harbor, taskset
from frontrunner.errors import UserError

PATCH = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
TEST_PATCH = PATCH.replace("m.py", "test_m.py")
BASE: dict[str, Any] = {
    "instance_id": "own__m-1",
    "repo": "own/m",
    "base_commit": "abc123",
    "patch": PATCH,
    "test_patch": TEST_PATCH,
    "problem_statement": "x is wrong",
    "FAIL_TO_PASS": '["test_m.py::test_x"]',
    "PASS_TO_PASS": [],
}
GROUP = {"test_x": {"run": "FAIL", "test": "FAIL", "fix": "PASS"}}
ROWS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "swe-bench": ({**BASE, "eval_script": "pytest -rA", "log_parser": "parse_log_pytest"}, []),
    "swe-gym": (BASE, ["--test-command", "pytest -rA"]),
    "swe-smith": ({**BASE, "image_name": "i:1"}, ["--test-command", "pytest -rA"]),
    "swe-rebench": (
        {
            **BASE,
            "docker_image": "i:1",
            "install_config": {"test_cmd": "pytest -rA", "log_parser": "parse_log_pytest"},
        },
        [],
    ),
    "r2e-gym": (
        {
            "repo_name": "own",
            "docker_image": "i:1",
            "commit_hash": "abc123def456",
            "problem_statement": "[ISSUE]x is wrong[/ISSUE]",
            "expected_output_json": '{"test_x": "PASSED"}',
            "patch": PATCH,
        },
        [],
    ),
    "swe-bench-pro": (
        {
            **BASE,
            "dockerhub_tag": "own-1",
            "selected_test_files_to_run": "['test_m.py']",
            "before_repo_set_cmd": "git reset --hard abc\ngit checkout def -- test_m.py",
        },
        ["--scripts", "scripts"],
    ),
    "multi-swe": (
        {
            "org": "own",
            "repo": "m",
            "number": 1,
            "base": {"label": "l", "ref": "main", "sha": "abc123"},
            "resolved_issues": [{"number": 2, "title": "x", "body": "is wrong"}],
            "fix_patch": PATCH,
            "test_patch": TEST_PATCH,
            "f2p_tests": GROUP,
            "s2p_tests": {},
            "n2p_tests": {},
            "p2p_tests": {},
        },
        [],
    ),
}


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "scripts/own__m-1", {"run_script.sh": "true\n", "parser.py": "pass\n"})
    return tmp_path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "tasks"
    assert main(["tasks", "export", "quickstart", "--limit", "2", "--out", str(out)]) == 0
    return out


def test_exported_tasks_load_again_with_the_same_id_and_content(exported: Path) -> None:
    shipped = taskset.load("quickstart")
    loaded = taskset.load(exported)
    assert sorted(t.id for t in loaded.tasks) == sorted(t.id for t in shipped.tasks[:2])
    for task in loaded.tasks:
        assert task == shipped.task(task.id)
        assert loaded.base_files(task) == shipped.base_files(task)


@pytest.mark.parametrize(("solve", "reward"), [(True, 1.0), (False, 0.0)])
def test_an_exported_folder_grades_itself(
    exported: Path, tmp_path: Path, solve: bool, reward: float
) -> None:
    tasks = taskset.load(exported)
    task = tasks.tasks[0]
    app, logs = tmp_path / "app", tmp_path / "logs"
    shutil.copytree(tasks.tree(task), app)
    subprocess.run(["chmod", "-R", "u+w", str(app)], check=True)
    shutil.copytree(exported / task.id / "environment/bug", app, dirs_exist_ok=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {**os.environ, "APP": str(app), "LOGS": str(logs), "PATH": path}
    scripts = ["solution/solve.sh"] * solve + ["tests/test.sh"]
    for script in scripts:
        subprocess.run(["sh", str(exported / task.id / script)], env=variables, check=True)
    assert containers.read_reward(logs) == reward


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "task.toml").write_text("x ="), "task.toml: not TOML"),
        (
            lambda f: change(f / "task.toml", 'schema_version = "1.4"', 'schema_version = "2"'),
            "1.0 to 1.4",
        ),
        (lambda f: change(f / "task.toml", "[agent]", "[agent]\nx = 1"), "field agent.x: "),
        (lambda f: change(f / "task.toml", "timeout_sec = 600.0", "timeout_sec = -1"), "agent.tim"),
        (lambda f: change(f / "task.toml", 'split = "', 'split = "z'), "frontrunner.task.split"),
        (lambda f: change(f / "task.toml", 'function = "', 'function = "z'), "belongs to id"),
        (lambda f: (f / "instruction.md").unlink(), "instruction.md: missing"),
        (lambda f: (f / "instruction.md").write_text(" "), "instruction.md: is empty"),
        (lambda f: (f / "tests/test.sh").unlink(), "tests: none of test.sh"),
        (lambda f: (f / "environment/Dockerfile").unlink(), "environment.docker_image"),
    ],
)
def test_a_damaged_folder_is_one_sentence_with_file_and_field(
    exported: Path,
    tmp_path: Path,
    damage: Callable[[Path], object],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = min(f.name for f in exported.iterdir())
    folder = tmp_path / "set" / name
    shutil.copytree(exported / name, folder)
    damage(folder)
    assert main(["tasks", "list", str(folder.parent)]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert str(folder) in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("form", ROWS)
def test_rows_become_folders_that_say_they_need_a_container(
    form: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row, options = ROWS[form]
    (work / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["tasks", "import", form, "rows.jsonl", "--out", "o", "--json", *options]) == 0
    assert json.loads(capsys.readouterr().out)["runnable"] == {"docker": 1}
    (task,) = harbor.read_all(work / "o")
    assert task.source == form
    assert task.image
    assert "x is wrong" in task.instruction.replace("\n", " ").replace("  ", " ")
    with pytest.raises(UserError, match="needs a container image"):
        taskset.load(work / "o")
    for script in task.folder.rglob("*.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize(
    ("form", "field", "value"),
    [
        ("swe-bench", "FAIL_TO_PASS", "[]"),
        ("swe-bench", "FAIL_TO_PASS", "no list"),
        ("swe-bench", "PASS_TO_PASS", None),
        ("swe-bench", "patch", "no diff"),
        ("swe-bench", "eval_script", None),
        ("swe-bench", "log_parser", "parse_log_jest"),
        ("swe-bench", "instance_id", "../up"),
        ("swe-bench", "problem_statement", 3),
        ("swe-gym", "test_patch", ""),
        ("swe-smith", "image_name", None),
        ("swe-smith", "problem_statement", None),
        ("swe-rebench", "install_config", {}),
        ("swe-rebench", "docker_image", ""),
        ("r2e-gym", "expected_output_json", "{}"),
        ("r2e-gym", "commit_hash", None),
        ("swe-bench-pro", "dockerhub_tag", None),
        ("multi-swe", "f2p_tests", {}),
        ("multi-swe", "number", "1"),
        ("multi-swe", "base", {}),
        ("multi-swe", "lang", "java"),
    ],
)
def test_a_malformed_row_is_one_sentence_with_line_and_field(
    form: str, field: str, value: object, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row, options = ROWS[form]
    (work / "rows.jsonl").write_text(json.dumps({**row, field: value}) + "\n")
    assert main(["tasks", "import", form, "rows.jsonl", "--out", "o", *options]) == 2
    printed = capsys.readouterr().err
    assert "rows.jsonl line 1: field" in printed
    assert field in printed
    assert printed.count("\n") == 1
    assert not (work / "o").exists()


TB1 = {
    "task.yaml": "instruction: |-\n  Make it pass.\ndifficulty: easy\nparser_name: pytest\n",
    "Dockerfile": "FROM python:3.13-slim\n",
    "docker-compose.yaml": "services:\n  client:\n    build: .\n",
    "run-tests.sh": "pytest $TEST_DIR/test_outputs.py -rA\n",
    "solution.sh": "true\n",
    "tests/test_outputs.py": "def test_it():\n    pass\n",
}


def test_terminal_bench_1_and_2_are_imported(work: Path) -> None:
    put(work / "tb/hello", TB1)
    assert main(["tasks", "import", "terminal-bench-1", "tb", "--out", "one"]) == 0
    (task,) = harbor.read_all(work / "one")
    assert (task.source, task.runnable) == ("terminal-bench-1", "docker")
    assert task.config.agent.timeout_sec == 360
    assert not (task.folder / "environment/tests").exists()
    assert main(["tasks", "import", "terminal-bench-2", "one", "--out", "two"]) == 0
    assert [t.id for t in harbor.read_all(work / "two")] == ["hello"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("task.yaml", "instruction: [", "task.yaml: not YAML"),
        ("task.yaml", "difficulty: easy\n", "task.yaml: field instruction"),
        ("task.yaml", "instruction: x\nparser_name: swebench\n", "field parser_name"),
        ("docker-compose.yaml", "services: {a: {}, b: {}}", "field services.a"),
        ("docker-compose.yaml", "services: {a: {ports: []}}", "field services.a.ports"),
        ("run-tests.sh", None, "run-tests.sh: missing"),
        ("Dockerfile", None, "Dockerfile: missing"),
        ("solution.sh", None, "neither solution.sh"),
        ("tests/test_outputs.py", None, "tests: no test"),
    ],
)
def test_a_malformed_terminal_bench_task_is_one_sentence(
    name: str, text: str | None, message: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(work / "tb/hello", {**TB1, name: text or ""})
    if text is None:
        (work / "tb/hello" / name).unlink()
    assert main(["tasks", "import", "terminal-bench-1", "tb", "--out", "o"]) == 2
    assert message in capsys.readouterr().err
