"""`frontrunner tasks`: build, list, show, materialise, check, import and export task sets."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from frontrunner.cli import task_formats
from frontrunner.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frontrunner.envs.build import Progress
    from frontrunner.envs.validation import Options

T = TypeVar("T")
DEFAULT_SET = "quickstart"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    jobs = os.cpu_count() or 1

    build = verbs.add_parser("build", help="make a task set from installed packages")
    build.add_argument("packages", nargs="*", metavar="PACKAGE", help="default: the shipped set's")
    build.add_argument(
        "--out", type=Path, default=Path("tasks.jsonl"), help="manifest, or folder for one"
    )
    build.add_argument(
        "--jobs", "--workers", type=int, default=jobs, help="runs at a time (%(default)s)"
    )
    build.add_argument("--kinds", default="single", help="of single,combined,removed")
    build.add_argument("--per-function", type=int, default=6, help="tasks at most (%(default)s)")
    build.add_argument("--symptom-only", action="store_true", help="name no failing test")
    build.add_argument("--hidden", action="store_true", help="failing tests only when graded")
    build.add_argument("--against", metavar="SET", help="no near-duplicate of its functions")
    build.add_argument("--train", type=int, default=720, help="tasks for training (%(default)s)")
    build.add_argument("--heldout", type=int, default=260, help="held-out tasks (%(default)s)")
    build.add_argument("--seed", type=int, default=0, help="of the split (%(default)s)")

    listing = verbs.add_parser("list", help="list the tasks of a set")
    listing.add_argument("set", nargs="?", default=DEFAULT_SET, metavar="SET")
    listing.add_argument("--split", choices=("train", "heldout"))
    listing.add_argument("--json", action="store_true", help="one JSON object per line")

    show = verbs.add_parser("show", help="show one task and its bug")
    show.add_argument("id", metavar="ID", help="task id or its beginning")
    show.add_argument("--set", default=DEFAULT_SET, metavar="SET")
    show.add_argument("--json", action="store_true")

    trees = verbs.add_parser("materialise", help="make the projects that a set needs")
    trees.add_argument("set", nargs="?", default=DEFAULT_SET, metavar="SET")
    trees.add_argument("--json", action="store_true")

    check = verbs.add_parser("check", help="run the tests of a set with and without the bugs")
    check.add_argument("set", nargs="?", default=DEFAULT_SET, metavar="SET")
    check.add_argument("--sample", type=int, metavar="N", help="N tasks spread over the set")
    check.add_argument("--jobs", type=int, default=jobs, help="runs at a time (%(default)s)")
    check.add_argument("--json", action="store_true")

    difficulty = verbs.add_parser("difficulty", help="how hard a run's tasks are for its policy")
    difficulty.add_argument("run", type=Path, metavar="RUN")
    difficulty.add_argument("--json", action="store_true")

    task_formats.add_arguments(verbs)


def run(args: argparse.Namespace) -> int:
    verbs = {
        "build": _build,
        "list": _list,
        "show": _show,
        "materialise": _materialise,
        "check": _check,
        "difficulty": _difficulty,
        "import": task_formats.run_import,
        "export": task_formats.run_export,
    }
    return verbs[args.verb](args)


def _build(args: argparse.Namespace) -> int:
    from frontrunner.envs import build, packages, taskset
    from frontrunner.envs.sandbox import LocalSandbox

    names = args.packages or [source.name for source in packages.SOURCES]
    if args.jobs < 1 or args.train < 0 or args.heldout < 0 or args.train + args.heldout == 0:
        raise UserError("--jobs must be at least 1, and --train or --heldout above 0")
    options = _options(args)
    against = taskset.load(args.against) if args.against else None
    out = args.out if args.out.suffix == ".jsonl" else args.out / "tasks.jsonl"
    start = time.monotonic()
    trees = {packages.materialise(name): packages.libraries(name) for name in names}
    with LocalSandbox(trees, num_workers=args.jobs) as sandbox, _Console() as console:
        builder = build.Builder(sandbox, args.jobs, args.seed, console.show, options, against)
        header, tasks = builder.build(names, args.train, args.heldout)
    if not tasks:
        raise UserError(f"no valid task found in {', '.join(names)}; try other packages")
    taskset.save(out, header, tasks)
    seconds = round(time.monotonic() - start, 1)
    facts = {"seconds": seconds, "total": header.yields, "packages": builder.detail}
    (out.parent / "yield.json").write_text(json.dumps(facts, indent=1) + "\n")
    _print_yields(header.yields)
    splits = Counter(task.split for task in tasks)
    print(
        f"{out}: {splits['train']} train and {splits['heldout']} held-out tasks in {seconds:.0f} s"
    )
    short = splits["train"] < args.train or splits["heldout"] < args.heldout
    if short:
        print("fewer than asked for: the packages have no more", file=sys.stderr)
    return int(short)


def _options(args: argparse.Namespace) -> Options:
    from frontrunner.envs.validation import BUILT, Options

    kinds = tuple(args.kinds.split(","))
    unknown = sorted(set(kinds) - set(BUILT))
    if unknown:
        raise UserError(f"--kinds: {', '.join(unknown)} is none of {', '.join(BUILT)}")
    if args.per_function < 1:
        raise UserError("--per-function must be at least 1")
    return Options(kinds, args.per_function, args.symptom_only, args.hidden)


class _Console:
    """A bar on a terminal, else one plain line every ten seconds."""

    def __init__(self) -> None:
        self._last = float("-inf")
        self._live = sys.stderr.isatty()

    def __enter__(self) -> Self:
        if self._live:
            from rich.console import Console

            self._status = Console(stderr=True).status("starting")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._status.stop()

    def show(self, event: Progress | str) -> None:
        now = time.monotonic()
        plain = isinstance(event, str)
        if not plain and not self._live and now - self._last < 10:
            return
        text = event if isinstance(event, str) else _progress_line(event)
        if self._live:
            self._status.update(text)
        else:
            print(text, file=sys.stderr, flush=True)
            self._last = now


def _progress_line(event: Progress) -> str:
    return (
        f"{event.num_functions} of {event.total_functions} functions, "
        f"{event.num_tried} bugs tried: "
        f"{event.num_train} train and {event.num_heldout} held-out tasks"
    )


def _print_yields(yields: dict[str, dict[str, int]]) -> None:
    for row, counts in yields.items():
        tried = counts["tried"]
        rest = ", ".join(
            f"{name} {n}" for name, n in counts.items() if name not in ("tried", "valid")
        )
        valid = counts.get("valid", 0)
        print(f"{row:24} tried {tried:5}  valid {valid:5} ({valid / tried:4.0%})  {rest}")


def _list(args: argparse.Namespace) -> int:
    from frontrunner.envs import taskset
    from frontrunner.types import dump

    foreign = task_formats.read(args.set)
    if foreign is not None:
        return task_formats.show_list(foreign, args.json)
    for task in taskset.load(args.set).tasks:
        if args.split in (None, task.split):
            line = (
                f"{task.id:24} {task.split:8} {task.mutation.kind:11} {task.path} {task.function}"
            )
            print(dump(task) if args.json else line)
    return 0


def _show(args: argparse.Namespace) -> int:
    import difflib

    from frontrunner.envs import taskset
    from frontrunner.types import dump

    foreign = task_formats.read(args.set)
    if foreign is not None:
        return task_formats.show(foreign, args.id, args.json)
    tasks = taskset.load(args.set)
    task = tasks.task(args.id)
    if args.json:
        print(dump(task))
        return 0
    print(f"{task.id} ({task.split}, {task.mutation.kind})\n{task.instruction}\n")
    for title, names in (("fails", task.fail_to_pass), ("passes", task.pass_to_pass)):
        print("\n".join(f"{title:7} {name}" for name in names))
    gold, base = tasks.gold(task)[task.path], tasks.base_files(task)[task.path]
    pristine, bug = (text.split("\n") for text in (gold, base))
    print()
    print(
        "\n".join(difflib.unified_diff(pristine, bug, task.path, "with the bug", n=2, lineterm=""))
    )
    return 0


def _materialise(args: argparse.Namespace) -> int:
    from frontrunner.envs import taskset

    start = time.monotonic()
    tasks = taskset.load(args.set)
    trees = tasks.trees()
    for task in tasks.tasks:
        tasks.base_files(task)  # every digest is checked and every bug applied once
    seconds = time.monotonic() - start
    if args.json:
        facts = {"tasks": len(tasks), "trees": [str(t) for t in trees], "seconds": seconds}
        print(json.dumps(facts))
    else:
        print("\n".join(str(tree) for tree in trees))
        print(f"{len(tasks)} tasks of {len(trees)} packages are ready ({seconds:.1f} s)")
    return 0


def _check(args: argparse.Namespace) -> int:
    if args.sample is not None and args.sample < 1:
        raise UserError("--sample must be at least 1")
    if args.jobs < 1:
        raise UserError("--jobs must be at least 1")
    start = time.monotonic()
    foreign = task_formats.read(args.set)
    if foreign is not None:
        reasons = task_formats.check(_sampled(foreign, args.sample))
    else:
        reasons = _check_local(args)
    counts = Counter(reason.partition(":")[0] for reason in reasons.values())
    num_valid, seconds = counts.pop("valid", 0), time.monotonic() - start
    unchecked = {t: reason for t, reason in reasons.items() if reason.startswith("not checked")}
    num_unchecked = counts.pop("not checked", 0)
    num_checked = len(reasons) - num_unchecked
    invalid = {t: r for t, r in reasons.items() if r != "valid" and t not in unchecked}
    if args.json:
        facts = {"checked": num_checked, "valid": num_valid}
        times = {"not_checked": num_unchecked, "seconds": round(seconds, 1)}
        why = {"reasons": dict(counts), "invalid": invalid}
        print(json.dumps({**facts, **times, **why}))
    else:
        for task, reason in {**invalid, **unchecked}.items():
            print(f"{task}: {reason}")
        print(f"{num_valid} of {num_checked} tasks are valid ({seconds:.0f} s)")
    return int(bool(invalid or unchecked))


def _check_local(args: argparse.Namespace) -> dict[str, str]:
    from frontrunner.envs import taskset
    from frontrunner.envs.check import check_tasks
    from frontrunner.envs.sandbox import LocalSandbox

    tasks = taskset.load(args.set)
    chosen = _sampled(tasks.tasks, args.sample)
    with LocalSandbox(tasks.trees(), num_workers=args.jobs) as sandbox:
        return check_tasks(tasks, chosen, sandbox, args.jobs)


def _difficulty(args: argparse.Namespace) -> int:
    from frontrunner.rollout.difficulty import posteriors
    from frontrunner.rollout.store import RolloutFile

    path = args.run / "rollouts.jsonl"
    if not path.is_file():
        raise UserError(f"{path}: no such file; give the directory of a run that has trained")
    rollouts = RolloutFile(path).read()
    known = posteriors(rollouts, max((r.version for r in rollouts if r.turns), default=0))
    for (task, effort), found in sorted(known.items(), key=lambda row: row[1].mean):
        low, high = found.interval()
        if args.json:
            facts = {"task": task, "effort": effort, "mean": found.mean, "low": low, "high": high}
            print(json.dumps({**facts, "alpha": found.alpha, "beta": found.beta}))
        else:
            print(f"{task:28} {effort:10} {found.mean:.2f} [{low:.2f}, {high:.2f}]")
    return 0


def _sampled(tasks: Sequence[T], number: int | None) -> Sequence[T]:
    """`number` tasks spread over the set; all of them for None."""
    return tasks if number is None else tasks[:: max(1, len(tasks) // number)][:number]
