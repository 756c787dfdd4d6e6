"""Harbor task folders: reading them, and telling which of them run without a container.

    NAME/task.toml  instruction.md  environment/  tests/test.sh  solution/solve.sh

A folder that `harbor_export` wrote carries its task in `[metadata.frontrunner]` and runs in the
local sandbox. Every other one needs its container image. Nothing malformed is read silently: each
error names the file and the field.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from frontrunner.envs import taskset
from frontrunner.envs.harbor_schema import TaskToml
from frontrunner.envs.taskset import PackagePin, TaskSet
from frontrunner.errors import UserError
from frontrunner.types import Task

_PIN = TypeAdapter(PackagePin)
_TASK = TypeAdapter(Task)
EXTENSION = "frontrunner"


@dataclass(frozen=True, slots=True)
class HarborTask:
    """One task folder."""

    folder: Path
    config: TaskToml
    instruction: str
    """Of the first step where there are several."""
    native: Task | None
    """The task of ours that the folder was written from."""
    pin: PackagePin | None
    """The package that `native` lives in."""

    @property
    def id(self) -> str:
        return self.native.id if self.native else self.folder.name

    @property
    def runnable(self) -> Literal["local", "docker"]:
        """Where it can be run: the sandbox of this machine, or a container only."""
        return "local" if self.native else "docker"

    @property
    def image(self) -> str | None:
        """The image it names or is built on; None where only its Dockerfile tells."""
        return self.config.environment.docker_image or self.facts.get("image")

    @property
    def facts(self) -> dict[str, Any]:
        """`[metadata.frontrunner]`: what an import noted."""
        known = self.config.metadata.get(EXTENSION)
        return known if isinstance(known, dict) else {}

    @property
    def source(self) -> str:
        """The format that it was imported from."""
        return str(self.facts.get("source", "harbor"))


def read(folder: Path) -> HarborTask:
    """Read and check one task folder."""
    config = _config(folder / "task.toml")
    places = [folder / "steps" / step.name for step in config.steps or ()] or [folder]
    texts = [read_text(place / "instruction.md") for place in places]
    for place, text in zip(places, texts, strict=True):
        if not text.strip():
            raise UserError(f"{place / 'instruction.md'}: is empty; it tells the agent what to do")
        _needs_one_of(place / "tests", ("test.sh", "test.bat"), "the tests that give the reward")
    environment = folder / "environment"
    if config.environment.docker_image is None:
        names = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml")
        _needs_one_of(environment, names, "or field environment.docker_image in task.toml")
    native, pin = _extension(folder / "task.toml", config)
    return HarborTask(folder, config, texts[0], native, pin)


def read_all(folder: Path) -> list[HarborTask]:
    """Every task below a folder, in the order of their names; the folder may be a task itself."""
    if (folder / "task.toml").is_file():
        return [read(folder)]
    found = [read(file.parent) for file in sorted(folder.glob("*/task.toml"))]
    if not found:
        raise UserError(f"{folder}: no task there; a Harbor task is a folder with a task.toml")
    return found


def task_set(folder: Path, tasks: Sequence[HarborTask]) -> TaskSet:
    """The set of tasks that folders of ours carry, each checked as in a manifest."""
    header = taskset.Header(taskset.FORMAT, 0, {}, {})
    found: list[Task] = []
    for task in tasks:
        if task.native is None or task.pin is None:
            raise UserError(
                f"{task.folder}: this task needs a container image and cannot be trained on in the "
                "local sandbox; `frontrunner tasks check` runs it with docker or podman"
            )
        known = header.packages.setdefault(task.native.package, task.pin)
        if known != task.pin:
            raise UserError(
                f"{task.folder / 'task.toml'}: field metadata.{EXTENSION}.package: another version "
                f"of {task.native.package} than in the tasks before"
            )
        found.append(task.native)
    taskset.check(found, header, [str(t.folder / "task.toml") for t in tasks])
    return TaskSet(folder.name, header, found)


def _config(file: Path) -> TaskToml:
    try:
        tree = tomllib.loads(read_text(file))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{file}: not TOML: {error}") from None
    config: TaskToml = parse(TypeAdapter(TaskToml), tree, str(file))
    return config


def parse(adapter: TypeAdapter[Any], tree: object, where: str, prefix: str = "") -> Any:
    """Validate, or say in one sentence which field of which file is wrong."""
    try:
        return adapter.validate_python(tree)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join([prefix, *map(str, first["loc"])] if prefix else map(str, first["loc"]))
        at = f"field {field}: " if field else ""
        raise UserError(f"{where}: {at}{first['msg']}") from None


def _extension(file: Path, config: TaskToml) -> tuple[Task | None, PackagePin | None]:
    extension = config.metadata.get(EXTENSION, {})
    name = f"metadata.{EXTENSION}"
    if not isinstance(extension, dict):
        raise UserError(f"{file}: field {name}: must be a table")
    if "task" not in extension:
        return None, None
    if "package" not in extension:
        raise UserError(f"{file}: field {name}.package: missing beside {name}.task")
    native = parse(_TASK, extension["task"], str(file), f"{name}.task")
    return native, parse(_PIN, extension["package"], str(file), f"{name}.package")


def read_text(file: Path, kind: str = "Harbor") -> str:
    """Text of a file that every task of this `kind` has; `UserError` where it has none."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{file}: missing; a {kind} task has one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read as text: {error}") from None


def _needs_one_of(folder: Path, names: Sequence[str], what: str) -> None:
    if not any((folder / name).is_file() for name in names):
        raise UserError(f"{folder}: none of {', '.join(names)} is there ({what})")
