"""`frontrunner tasks import` and `export`, and the other verbs on folders of Harbor tasks."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrunner.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frontrunner.envs.harbor import HarborTask
    from frontrunner.envs.harbor_export import Folder

ROWS = ("swe-bench", "swe-bench-pro", "multi-swe", "swe-gym", "r2e-gym", "swe-smith", "swe-rebench")
FOLDERS = ("harbor", "terminal-bench-1", "terminal-bench-2")


def add_arguments(verbs: Any) -> None:
    into = verbs.add_parser("import", help="turn tasks of another format into Harbor folders")
    into.add_argument("format", choices=(*FOLDERS, *ROWS))
    into.add_argument("source", type=Path, help="folder of tasks, or .jsonl or .parquet of rows")
    into.add_argument("--out", type=Path, required=True, help="folder to make")
    into.add_argument("--test-command", default="", help="for rows without one: pytest -rA")
    into.add_argument("--scripts", type=Path, help="swe-bench-pro: its run_scripts folder")
    into.add_argument("--json", action="store_true")

    export = verbs.add_parser("export", help="write a set as Harbor folders, or rollouts as ATIF")
    export.add_argument("set", nargs="?", default="quickstart", metavar="SET")
    export.add_argument("--out", type=Path, required=True, help="folder to make")
    export.add_argument("--split", choices=("train", "heldout"))
    export.add_argument("--limit", type=int, metavar="N", help="the first N only")
    export.add_argument("--rollouts", type=Path, help="write these as ATIF trajectories instead")
    export.add_argument("--json", action="store_true")


def run_import(args: argparse.Namespace) -> int:
    from frontrunner.envs import harbor

    if args.format in ROWS:
        from frontrunner.envs import harbor_export, rows

        options = rows.Options(args.test_command, args.scripts)
        made = rows.read(args.source, args.format, options)
        folders = {task.id: harbor_export.container_folder(task) for task in made}
        _write_all(args.out, folders)
    elif args.format == "terminal-bench-1":
        from frontrunner.envs import terminal_bench

        sources = terminal_bench.folders(args.source)
        _write_all(args.out, {f.name: terminal_bench.convert(f) for f in sources})
    else:
        tasks = harbor.read_all(args.source)
        _fill(args.out, lambda new: [shutil.copytree(t.folder, new / t.folder.name) for t in tasks])
    return _report(args, "imported", harbor.read_all(args.out))


def run_export(args: argparse.Namespace) -> int:
    from frontrunner.envs import harbor, harbor_export, taskset

    if args.limit is not None and args.limit < 1:
        raise UserError("--limit must be at least 1")
    tasks = taskset.load(args.set)
    if args.rollouts is not None:
        return _export_rollouts(args)
    chosen = [task for task in tasks.tasks if args.split in (None, task.split)][: args.limit]
    if not chosen:
        raise UserError(f"{args.set}: no task of the split {args.split}")
    _write_all(args.out, {t.id: harbor_export.native_folder(tasks, t) for t in chosen})
    return _report(args, "exported", harbor.read_all(args.out))


def _export_rollouts(args: argparse.Namespace) -> int:
    from frontrunner.envs import taskset
    from frontrunner.rollout.atif import trajectory
    from frontrunner.rollout.store import RolloutFile

    if not args.rollouts.is_file():
        raise UserError(f"{args.rollouts}: no such file; a run keeps them in eval/base.jsonl")
    tasks = taskset.load(args.set)
    stored = RolloutFile(args.rollouts).read()[: args.limit]
    if not stored:
        raise UserError(f"{args.rollouts}: holds no rollouts")
    files: Folder = {}
    for number, rollout in enumerate(stored, 1):
        document = trajectory(rollout, instruction=tasks.task(rollout.task_id).instruction)
        name = f"{number:06}-{rollout.task_id}-{rollout.effort}.json"
        files[name] = json.dumps(document, ensure_ascii=False) + "\n"
    _fill(args.out, lambda new: [(new / n).write_text(t, "utf-8") for n, t in files.items()])
    if args.json:
        print(json.dumps({"exported": len(files), "format": "ATIF-v1.8", "out": str(args.out)}))
    else:
        print(f"{args.out}: {len(files)} trajectories")
    return 0


def _write_all(out: Path, folders: dict[str, Folder]) -> None:
    from frontrunner.envs.harbor_export import write

    def fill(new: Path) -> None:
        for name, files in folders.items():
            write(new / name, files)

    _fill(out, fill)


def _fill(out: Path, fill: Callable[[Path], object]) -> None:
    """Make a folder in one step: an import that fails, or is killed, leaves nothing behind."""
    if out.exists():
        raise UserError(f"{out}: already there; choose another --out")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
        new = Path(temporary) / out.name
        new.mkdir()
        fill(new)
        new.rename(out)


def _report(args: argparse.Namespace, what: str, tasks: list[HarborTask]) -> int:
    runnable = Counter(task.runnable for task in tasks)
    if args.json:
        print(json.dumps({what: len(tasks), "runnable": dict(runnable), "out": str(args.out)}))
        return 0
    print(f"{args.out}: {len(tasks)} tasks {what}")
    if runnable["docker"]:
        print(f"{runnable['docker']} of them need a container; {_engine_line()}")
    return 0


def _engine_line() -> str:
    from frontrunner.envs import containers

    engine = containers.find()
    return f"{engine.path} runs them" if engine.path else f"here {engine.why}"


def read(name: str) -> list[HarborTask] | None:
    """The tasks of a folder of Harbor tasks of which at least one needs a container; else None."""
    if not Path(name).is_dir():
        return None
    from frontrunner.envs import harbor

    tasks = harbor.read_all(Path(name))
    return tasks if any(task.native is None for task in tasks) else None


def row(task: HarborTask) -> dict[str, Any]:
    """What `list` and `show` tell about a task that needs a container."""
    return {
        "id": task.id,
        "source": task.source,
        "runnable": task.runnable,
        "image": task.image,
        "instruction": task.instruction,
    }


def show_list(tasks: list[HarborTask], as_json: bool) -> int:
    for task in tasks:
        image = task.image or "environment/Dockerfile"
        print(json.dumps(row(task)) if as_json else f"{task.id:40} {task.source:16} {image}")
    return 0


def show(tasks: list[HarborTask], name: str, as_json: bool) -> int:
    found = [t for t in tasks if t.id == name] or [t for t in tasks if t.id.startswith(name)]
    if len(found) != 1:
        raise UserError(f"{len(found)} tasks match {name!r}; see `frontrunner tasks list`")
    if as_json:
        print(json.dumps(row(found[0])))
    else:
        where = found[0].image or found[0].folder / "environment" / "Dockerfile"
        print(
            f"{found[0].id} ({found[0].source}; needs the image {where})\n\n{found[0].instruction}"
        )
    return 0


def check(tasks: Sequence[HarborTask]) -> dict[str, str]:
    """Reason per id, of tasks that need a container."""
    from frontrunner.envs import containers

    engine = containers.find()
    return {task.id: containers.check(task, engine) for task in tasks}
