"""`frontrunner doctor`: what this machine can do, and what to do about the rest."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frontrunner.errors import UserError

MIN_DISK_GB = 2.0
MIN_MEMORY_GB = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    checks: dict[str, Callable[[], str]] = {
        "python": _python,
        "torch": _torch,
        "sandbox": _sandbox,
        "tasks": _tasks,
        "base policy": _policy,
        "disk": _disk,
        "memory": _memory,
    }
    results: list[dict[str, Any]] = []
    for name, check in checks.items():
        try:
            results.append({"name": name, "ok": True, "detail": check()})
        except (UserError, ImportError, ValueError, OSError) as error:
            results.append({"name": name, "ok": False, "detail": str(error)})
    good = all(r["ok"] for r in results)
    if args.json:
        print(json.dumps({"ok": good, "checks": results}, indent=1))
    else:
        for result in results:
            print(f"{'ok  ' if result['ok'] else 'FAIL'} {result['name']:<12} {result['detail']}")
        print("ready" if good else "not ready: see the lines marked FAIL")
    return 0 if good else 2


def _python() -> str:
    if sys.version_info < (3, 11):
        raise UserError(f"Python {platform.python_version()} is too old; install 3.11 or newer")
    return platform.python_version()


def _torch() -> str:
    import torch

    devices = "cuda" if torch.cuda.is_available() else "cpu"
    return f"{torch.__version__}, {devices}, {torch.get_num_threads()} threads"


def _sandbox() -> str:
    from frontrunner.envs.sandbox import probe

    facts = probe()
    if facts.get("status") == "unavailable":
        raise UserError(facts["reason"])
    return ", ".join(f"{k} {v}" for k, v in facts.items() if k != "status")


def _tasks() -> str:
    from frontrunner.envs.taskset import load

    tasks = load("quickstart")
    trees = tasks.trees()
    return (
        f"{len(tasks.split('train'))} training, {len(tasks.split('heldout'))} held-out, "
        f"from {len(trees)} packages"
    )


def _policy() -> str:
    from frontrunner.train.model import describe

    return ", ".join(f"{k} {v}" for k, v in describe("base").items())


def _disk() -> str:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    if free < MIN_DISK_GB:
        raise UserError(f"{free:.1f} GB free here; a run needs {MIN_DISK_GB:.0f} GB, free some")
    return f"{free:.0f} GB free"


def _memory() -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if total < MIN_MEMORY_GB:
        raise UserError(f"{total:.1f} GB of memory; a run needs {MIN_MEMORY_GB:.0f} GB")
    return f"{total:.0f} GB, {os.cpu_count()} cores"
