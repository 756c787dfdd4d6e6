"""Task sets: a manifest of validated bugs, and the project trees they live in.

A manifest is JSON lines. The first line is the header (format, packages with version and digest,
yields of the build); every other line is one `types.Task`. It holds coordinates and digests, no
source of the packages: `TaskSet.tree` and `base_files` make the projects from what is installed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from frontrunner.envs import packages
from frontrunner.envs.mutations import apply
from frontrunner.envs.synthesis import task_id
from frontrunner.errors import UserError
from frontrunner.types import Split, Task, dump
from frontrunner.types import load as load_record

FORMAT = "frontrunner-tasks-1"


@dataclasses.dataclass(frozen=True, slots=True)
class PackagePin:
    """A package that tasks are cut from: what must be installed to materialise them."""

    version: str
    digest: str
    """`packages.digest` of the installed files."""
    libraries: tuple[str, ...]
    """Installed distributions that the package's own code imports."""


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    format: str
    seed: int
    """Of the split into train and held-out."""
    packages: dict[str, PackagePin]
    yields: dict[str, dict[str, int]]
    """Candidates by `package:NAME` and `kind:NAME`, counted by what became of them."""


class TaskSet:
    """Tasks of one manifest, in its order (which interleaves packages)."""

    def __init__(self, name: str, header: Header, tasks: Sequence[Task]) -> None:
        self.name = name
        self.header = header
        self.tasks = tuple(tasks)
        self._by_id = {task.id: task for task in self.tasks}

    def __len__(self) -> int:
        return len(self.tasks)

    def split(self, name: Split) -> tuple[Task, ...]:
        return tuple(task for task in self.tasks if task.split == name)

    def task(self, identity: str) -> Task:
        """The task with this id, or with the only id that starts so."""
        found = [t for i, t in self._by_id.items() if i == identity or i.startswith(identity)]
        if identity in self._by_id:
            return self._by_id[identity]
        if len(found) != 1:
            what = "no task" if not found else f"{len(found)} tasks"
            raise UserError(
                f"{what} of {self.name} match {identity!r}; see `frontrunner tasks list`"
            )
        return found[0]

    def tree(self, task: Task) -> Path:
        """The pristine, read-only project of a task; made on first use."""
        pin = self.header.packages[task.package]
        return packages.materialise(task.package, pin.version, pin.digest)

    def trees(self) -> dict[Path, tuple[str, ...]]:
        """Every project of the set with the distributions that it imports, as the sandbox takes
        them."""
        used = {task.package for task in self.tasks}
        return {
            packages.materialise(name, pin.version, pin.digest): pin.libraries
            for name, pin in self.header.packages.items()
            if name in used
        }

    def gold(self, task: Task) -> dict[str, str]:
        """The file of the bug as it was before: `{path: pristine source}`."""
        data = (self.tree(task) / task.path).read_bytes()
        if hashlib.sha256(data).hexdigest() != task.file_sha256:
            raise UserError(
                f"{task.path} of {task.package} {task.version} is not the file that task "
                f"{task.id} was validated with; delete {self.tree(task)} and try again"
            )
        return {task.path: data.decode()}

    def base_files(self, task: Task) -> dict[str, str]:
        """The file with the bug in it: `{path: mutated source}`, to overlay on the tree."""
        return {path: apply(text, task.mutation) for path, text in self.gold(task).items()}


def manifest_path(name_or_path: str | Path) -> Path:
    """The file of a shipped set by name, or of any set by path."""
    shipped = Path(str(resources.files("frontrunner.envs"))) / "data"
    named = shipped / f"{name_or_path}.jsonl"
    if named.is_file():
        return named
    path = Path(name_or_path)
    if not path.is_file():
        known = ", ".join(sorted(f.stem for f in shipped.glob("*.jsonl"))) or "none"
        raise UserError(
            f"no task set {str(name_or_path)!r}: give a manifest file, a folder of Harbor tasks or "
            f"one of: {known}"
        )
    return path


def load(name_or_path: str | Path) -> TaskSet:
    """Read and check a manifest, or a folder of Harbor tasks that were written from one: field by
    field, and every id against its content."""
    if (Path(name_or_path) / "tasks.jsonl").is_file():
        name_or_path = Path(name_or_path) / "tasks.jsonl"
    if Path(name_or_path).is_dir():
        from frontrunner.envs import harbor  # late: it imports this module

        folder = Path(name_or_path)
        return harbor.task_set(folder, harbor.read_all(folder))
    path = manifest_path(name_or_path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as text: {error}") from error
    if not lines:
        raise UserError(f"{path} is empty; `frontrunner tasks build` makes a new one")
    header: Header = _parse(Header, lines[0], path, 1)
    if header.format != FORMAT:
        raise UserError(
            f"{path} line 1: format is {header.format!r}, this version reads {FORMAT!r}"
        )
    tasks = [_parse(Task, line, path, number) for number, line in enumerate(lines[1:], 2)]
    if not tasks:
        raise UserError(f"{path} holds no tasks; `frontrunner tasks build` makes some")
    check(tasks, header, [f"{path} line {number}" for number in range(2, len(tasks) + 2)])
    return TaskSet(path.stem, header, tasks)


def _parse(kind: type[Any], line: str, path: Path, number: int) -> Any:
    try:
        return load_record(kind, line)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        where = f"field {field}: " if field else ""
        raise UserError(f"{path} line {number}: {where}{first['msg']}") from None


def check(tasks: Sequence[Task], header: Header, places: Sequence[str]) -> None:
    """What must hold between tasks; `places` says where each one was read."""
    sides: dict[tuple[str, str, str], str] = {}
    seen: set[str] = set()
    for place, task in zip(places, tasks, strict=True):
        where = f"{place}: task {task.id}"
        pin = header.packages.get(task.package)
        if pin is None or pin.version != task.version:
            raise UserError(f"{where}: {task.package} {task.version} is not in the header")
        if task.id in seen:
            raise UserError(f"{where} occurs twice")
        if task.id != task_id(task):
            raise UserError(f"{where}: its content belongs to id {task_id(task)}")
        if not task.fail_to_pass or not task.pass_to_pass:
            raise UserError(f"{where} has an empty list of tests")
        if sides.setdefault((task.package, task.path, task.function), task.split) != task.split:
            raise UserError(f"{where}: {task.function} is in both splits")
        seen.add(task.id)


def save(path: Path, header: Header, tasks: Sequence[Task]) -> None:
    """Write a manifest in one step: readers see the old file or the new one."""
    lines = [json.dumps(dataclasses.asdict(header), separators=(",", ":")), *map(dump, tasks)]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.replace(path)
