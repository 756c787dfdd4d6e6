"""Terminal-Bench 1 task folders, as Harbor folders (Terminal-Bench 2 is Harbor's own format).

NAME/task.yaml  Dockerfile  docker-compose.yaml  run-tests.sh  tests/  solution.sh|solution.yaml
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from frontrunner.envs import harbor
from frontrunner.envs.harbor import read_text
from frontrunner.envs.harbor_export import Folder, grader, toml
from frontrunner.envs.harbor_schema import SCHEMA_VERSION
from frontrunner.errors import UserError

_OWN = ("task.yaml", "solution.sh", "solution.yaml", "run-tests.sh", "docker-compose.yaml")
_COMPOSE = {"build", "image", "container_name", "command", "environment", "volumes"}


class TaskYaml(BaseModel):
    """`task.yaml` of terminal-bench 0.2.18."""

    model_config = ConfigDict(extra="ignore")

    instruction: str = Field(min_length=1)
    author_name: str = "unknown"
    author_email: str = "unknown"
    difficulty: str = "unknown"
    category: str = "software_engineering"
    tags: list[str] = []
    parser_name: str = "pytest"
    max_agent_timeout_sec: float = Field(default=360.0, gt=0)
    max_test_timeout_sec: float = Field(default=60.0, gt=0)
    run_tests_in_same_shell: bool = False


_TASK = TypeAdapter(TaskYaml)


def convert(folder: Path) -> Folder:
    """The files of the Harbor folder of one Terminal-Bench 1 task."""
    config: TaskYaml = harbor.parse(_TASK, _yaml(folder / "task.yaml"), str(folder / "task.yaml"))
    place = f"{folder / 'task.yaml'}: field"
    if config.parser_name != "pytest":
        raise UserError(f"{place} parser_name: {config.parser_name!r}: only pytest can be graded")
    if config.run_tests_in_same_shell:
        raise UserError(f"{place} run_tests_in_same_shell: tests run in a shell of their own here")
    _one_plain_service(folder / "docker-compose.yaml")
    files = {
        path.relative_to(folder).as_posix(): _text(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in _OWN
    }
    if "Dockerfile" not in files:
        raise UserError(f"{folder / 'Dockerfile'}: missing; the agent's box is built from it")
    tests = {name: text for name, text in files.items() if name.startswith("tests/")}
    if not tests:
        raise UserError(f"{folder / 'tests'}: no test there")
    build = {f"environment/{name}": text for name, text in files.items() if name not in tests}
    keys = ("author_name", "author_email", "difficulty", "category", "tags")
    return {
        "task.toml": toml(
            {
                "schema_version": SCHEMA_VERSION,
                "metadata": {
                    **{key: getattr(config, key) for key in keys},
                    "frontrunner": {"source": "terminal-bench-1", "runnable": "docker"},
                },
                "agent": {"timeout_sec": config.max_agent_timeout_sec},
                "verifier": {"timeout_sec": config.max_test_timeout_sec},
                "environment": {},
            }
        ),
        "instruction.md": config.instruction.strip() + "\n",
        **build,
        **tests,
        "tests/run-tests.sh": _text(folder / "run-tests.sh"),
        "tests/tests.json": "{}\n",
        "tests/grade.py": grader(),
        "tests/test.sh": (
            "#!/bin/bash\nexport TEST_DIR=/tests\n"
            'logs="${LOGS:-/logs/verifier}"; mkdir -p "$logs"\n'
            'bash /tests/run-tests.sh > "$logs/tests.log" 2>&1\n'
            'python3 /tests/grade.py /tests/tests.json "$logs/tests.log" "$logs/reward.json"\n'
        ),
        "solution/solve.sh": _solution(folder),
    }


def folders(source: Path) -> list[Path]:
    """The task itself, or every task below a folder."""
    if (source / "task.yaml").is_file():
        return [source]
    found = [file.parent for file in sorted(source.glob("*/task.yaml"))]
    if not found:
        raise UserError(f"{source}: no task there; a Terminal-Bench 1 task has a task.yaml")
    return found


def _solution(folder: Path) -> str:
    if (folder / "solution.sh").is_file():
        return _text(folder / "solution.sh")
    file = folder / "solution.yaml"
    if not file.is_file():
        raise UserError(f"{folder}: neither solution.sh nor solution.yaml is there")
    commands = _yaml(file)
    lines = ["#!/bin/bash"]
    for number, command in enumerate(commands if isinstance(commands, list) else [None]):
        text = command.get("command") if isinstance(command, dict) else None
        if not isinstance(text, str):
            raise UserError(f"{file}: field {number}.command: missing; each entry is a command")
        lines.append(text)
    return "\n".join(lines) + "\n"


def _one_plain_service(file: Path) -> None:
    """More than one container, or more than the plain one, cannot be built from the Dockerfile."""
    if not file.is_file():
        return
    tree = _yaml(file)
    services = tree.get("services") if isinstance(tree, dict) else None
    if not isinstance(services, dict) or not services:
        raise UserError(f"{file}: field services: missing")
    for name, service in services.items():
        if len(services) > 1:
            raise UserError(
                f"{file}: field services.{name}: tasks of several containers cannot run here"
            )
        for key in sorted(set(service if isinstance(service, dict) else ()) - _COMPOSE):
            raise UserError(f"{file}: field services.{name}.{key}: has no counterpart here")


def _yaml(file: Path) -> Any:
    try:
        return yaml.safe_load(_text(file))
    except yaml.YAMLError as error:
        raise UserError(f"{file}: not YAML: {' '.join(str(error).split())}") from None


def _text(file: Path) -> str:
    return read_text(file, "Terminal-Bench 1")
