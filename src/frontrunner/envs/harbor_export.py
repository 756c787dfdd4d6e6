"""Writing Harbor task folders: our own tasks, and tasks of other formats (`ContainerTask`).

An exported folder of ours has the one file with the bug in `environment/`, its tests in `tests/`
and the fix in `solution/`; its Dockerfile installs the rest of the package. It carries the task
itself in `[metadata.frontrunner]`, so that it loads again with the same id.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from frontrunner.envs import harbor_grade
from frontrunner.envs.harbor_schema import SCHEMA_VERSION
from frontrunner.envs.taskset import TaskSet
from frontrunner.errors import UserError
from frontrunner.types import Task, dump

Folder = dict[str, str]
"""Path in the folder -> text."""


@dataclass(frozen=True, slots=True)
class ContainerTask:
    """A task of another format, ready to be written: it needs a container image."""

    id: str
    source: str
    """Format and, where known, data set: `swe-bench`."""
    instruction: str
    image: str
    workdir: str
    base_commit: str
    """Commit that the agent starts from; `HEAD` where the image is at it."""
    gold: str
    """The reference solution as a patch."""
    evaluate: str
    """Shell script that puts the tests in place and runs them in `workdir`."""
    wanted: Mapping[str, object]
    """What `harbor_grade` expects in the log."""
    bug: str = ""
    """Patch applied before the agent starts; `gold` is then undone, not applied (SWE-smith)."""
    hidden: tuple[str, ...] = ()
    """Paths of the image that an agent must not see."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """What the row tells beside: licence, revision, repository."""


def native_folder(tasks: TaskSet, task: Task) -> Folder:
    """The folder of one of our tasks."""
    tree = tasks.tree(task)
    pin = tasks.header.packages[task.package]
    names = sorted({test.split("::")[0] for test in (*task.fail_to_pass, *task.pass_to_pass)})
    (bug,), (gold,) = tasks.base_files(task).values(), tasks.gold(task).values()
    wanted = {"fail_to_pass": task.fail_to_pass, "pass_to_pass": task.pass_to_pass}
    config = {
        "schema_version": SCHEMA_VERSION,
        "task": {"name": f"frontrunner/{task.id}", "description": task.symptom},
        "metadata": {
            "frontrunner": {
                "source": "frontrunner",
                "runnable": "local",
                "task": json.loads(dump(task)),
                "package": dataclasses.asdict(pin),
            }
        },
        "agent": {"timeout_sec": 600.0},
        "verifier": {"timeout_sec": 120.0},
        "environment": {"network_mode": "no-network", "workdir": "/app"},
    }
    return {
        "task.toml": toml(config),
        "instruction.md": task.instruction + "\n",
        "environment/Dockerfile": _dockerfile(task, pin.libraries),
        f"environment/bug/{task.path}": bug,
        "tests/test.sh": _native_test(task),
        "tests/tests.json": json.dumps(wanted, indent=1) + "\n",
        "tests/grade.py": grader(),
        **{f"tests/files/{name}": (tree / name).read_text(encoding="utf-8") for name in names},
        "solution/solve.sh": (
            "#!/bin/sh\nset -eu\n"
            f'cp "$(dirname "$0")/gold/"{shlex.quote(task.path)} '
            f'"${{APP:-/app}}/"{shlex.quote(task.path)}\n'
        ),
        f"solution/gold/{task.path}": gold,
    }


def _dockerfile(task: Task, libraries: tuple[str, ...]) -> str:
    pins = [f"{name}=={metadata.version(name)}" for name in ("pytest", *libraries)]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    path = shlex.quote(f"/app/{task.path}")
    # No bytecode and no installation record stays: both tell what the file was before the bug.
    return (
        f"FROM python:{version}-slim\n"
        f"RUN pip install --no-cache-dir {' '.join(pins)} \\\n"
        f" && pip install --no-cache-dir --no-compile --no-deps --target /app "
        f"{task.package}=={task.version} \\\n"
        f' && echo "{task.file_sha256}  "{path} | sha256sum -c - \\\n'
        f" && rm -rf /app/*.dist-info /app/bin\n"
        "COPY bug/ /app/\n"
        "ENV PYTHONDONTWRITEBYTECODE=1\n"
        "WORKDIR /app\n"
    )


def _native_test(task: Task) -> str:
    tests = " ".join(shlex.quote(test) for test in (*task.fail_to_pass, *task.pass_to_pass))
    return (
        "#!/bin/sh\n"
        "# Restores the trusted tests over the agent's, runs them and grades their log.\n"
        'app="${APP:-/app}"; logs="${LOGS:-/logs/verifier}"\n'
        'here="$(cd "$(dirname "$0")" && pwd)"\n'
        'mkdir -p "$logs" && cp -R "$here/files/." "$app/" && cd "$app" || exit 1\n'
        'export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONPATH="$app" PYTHONDONTWRITEBYTECODE=1\n'
        "printf '[pytest]\\n' > \"$logs/pytest.ini\"\n"
        "python3 -s -m pytest -rA --tb=no -q -p no:cacheprovider --noconftest \\\n"
        f'  -c "$logs/pytest.ini" --rootdir "$app" {tests} > "$logs/tests.log" 2>&1\n'
        'python3 "$here/grade.py" "$here/tests.json" "$logs/tests.log" "$logs/reward.json"\n'
    )


def container_folder(task: ContainerTask) -> Folder:
    """The folder of a task that needs an image. Graded in a second box of the same image, which
    gets the agent's changes as a patch and nothing else."""
    where = shlex.quote(task.workdir)
    facts = {
        "source": task.source,
        "runnable": "docker",
        "image": task.image,
        **{key: value for key, value in task.extra.items() if value},
    }
    config = {
        "schema_version": SCHEMA_VERSION,
        "task": {"name": f"{task.source}/{task.id}"},
        "metadata": {"frontrunner": facts},
        "artifacts": ["/logs/artifacts/model.patch"],
        "agent": {"timeout_sec": 3600.0},
        "verifier": {
            "timeout_sec": 1800.0,
            "environment_mode": "separate",
            "collect": [
                {
                    "command": f"cd {where} && git add -A && mkdir -p /logs/artifacts && "
                    f"git diff --cached --binary base > /logs/artifacts/model.patch"
                }
            ],
        },
        "environment": {"network_mode": "no-network", "workdir": task.workdir},
    }
    apply = f"cd {where} && git apply --whitespace=nowarn"
    folder = {
        "task.toml": toml(config),
        "instruction.md": task.instruction.strip() + "\n",
        "environment/Dockerfile": _container_dockerfile(task),
        # Harbor builds the second box from this one.
        "tests/Dockerfile": f"FROM {task.image}\nCOPY . /tests/\nWORKDIR {task.workdir}\n",
        "tests/test.sh": _container_test(task, apply),
        "tests/evaluate.sh": task.evaluate.rstrip("\n") + "\n",
        "tests/tests.json": json.dumps(task.wanted, indent=1) + "\n",
        "tests/grade.py": grader(),
        "solution/solve.sh": (
            '#!/bin/bash\nset -eu\ngold="$(dirname "$(readlink -f "$0")")/gold.patch"\n'
            f'{apply}{" -R" if task.bug else ""} "$gold"\n'
        ),
        "solution/gold.patch": _patch(task.gold),
    }
    if task.bug:
        folder["environment/bug.patch"] = folder["tests/bug.patch"] = _patch(task.bug)
    return folder


def _container_dockerfile(task: ContainerTask) -> str:
    """The agent's box: one commit and no history, which would hold the answer."""
    lines = [f"FROM {task.image}", f"WORKDIR {task.workdir}"]
    if task.base_commit != "HEAD":
        lines.append(f"RUN git checkout -q --force {shlex.quote(task.base_commit)}")
    if task.bug:
        lines.append("COPY bug.patch /tmp/bug.patch")
        lines.append("RUN git apply --whitespace=nowarn /tmp/bug.patch && rm /tmp/bug.patch")
    if task.hidden:
        lines.append(f"RUN rm -rf {shlex.join(task.hidden)}")
    lines.append(
        "RUN rm -rf .git && git init -q && git add -A -f && git -c user.name=base"
        " -c user.email=base@localhost commit -q -m base && git tag base"
    )
    return "\n".join(lines) + "\n"


def _container_test(task: ContainerTask, apply: str) -> str:
    start = shlex.quote(task.base_commit)
    return (
        "#!/bin/bash\n"
        "# A fresh box: the agent's patch, then the trusted tests, then the grade of their log.\n"
        'here="$(dirname "$(readlink -f "$0")")"; logs="${LOGS:-/logs/verifier}"\n'
        'patch="${PATCH:-/logs/artifacts/model.patch}"; mkdir -p "$logs"\n'
        f"cd {shlex.quote(task.workdir)} && git checkout -q --force {start} || exit 1\n"
        + (f'{apply} "$here/bug.patch" || exit 1\n' if task.bug else "")
        # A missing patch file means that the first box failed: no reward, rather than 0.
        + '[ -f "$patch" ] || { echo "no patch was collected" >&2; exit 1; }\n'
        'if [ -s "$patch" ] && ! git apply --whitespace=nowarn "$patch"; then\n'
        '  echo \'{"reward": 0.0}\' > "$logs/reward.json"; exit 0\nfi\n'
        'bash "$here/evaluate.sh" > "$logs/tests.log" 2>&1\n'
        'python3 "$here/grade.py" "$here/tests.json" "$logs/tests.log" "$logs/reward.json"\n'
    )


def _patch(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def grader() -> str:
    """The text of `grade.py`."""
    return Path(str(harbor_grade.__file__)).read_text(encoding="utf-8")


def write(folder: Path, files: Folder) -> None:
    """Write a task folder; one that is there already is refused, not mixed with."""
    if folder.exists():
        raise UserError(f"{folder}: already there; choose another --out")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(0o755)


def toml(tree: Mapping[str, Any]) -> str:
    """TOML of nested tables. JSON strings and lists are legal TOML; None is left out."""
    lines: list[str] = []

    def table(path: tuple[str, ...], values: Mapping[str, Any]) -> None:
        scalars = {k: v for k, v in values.items() if not _is_table(v) and v is not None}
        if path and (scalars or not values):
            lines.append(f"\n[{'.'.join(map(_key, path))}]")
        lines.extend(f"{_key(k)} = {_value(v)}" for k, v in scalars.items())
        for key, value in values.items():
            if isinstance(value, Mapping):
                table((*path, key), value)
            elif _is_table(value):
                for row in value:
                    lines.append(f"\n[[{'.'.join(map(_key, (*path, key)))}]]")
                    lines.extend(f"{_key(k)} = {_value(v)}" for k, v in row.items())

    table((), tree)
    return "\n".join(lines).lstrip("\n") + "\n"


def _is_table(value: Any) -> bool:
    rows = isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)
    return isinstance(value, Mapping) or rows


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else _value(name)


def _value(value: Any) -> str:
    # TOML's basic strings are JSON's, but for the delete character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
