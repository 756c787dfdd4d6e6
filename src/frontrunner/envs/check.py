"""Re-validation of a task set: the gold source passes, the bug fails exactly the listed tests."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from frontrunner.envs.leaks import LeakScan
from frontrunner.envs.taskset import TaskSet
from frontrunner.errors import SandboxError
from frontrunner.protocols import Sandbox
from frontrunner.types import Task

NOT_CHECKED = "not checked"
"""A fault of the sandbox says nothing about the task."""
TIMEOUT = 10.0
"""Wall seconds of one run, generous: a loaded machine makes no task invalid."""


def check_task(tasks: TaskSet, task: Task, sandbox: Sandbox) -> str:
    """`valid`, or why the task is not."""
    tree = tasks.tree(task)
    tests = [*task.fail_to_pass, *task.pass_to_pass]
    try:
        gold = sandbox.run_tests(tree, {}, tests, timeout=TIMEOUT)
        base = sandbox.run_tests(tree, {**tasks.base_files(task)}, tests, timeout=TIMEOUT)
    except SandboxError as error:
        return f"{NOT_CHECKED}: {error}"
    if gold.timed_out or base.timed_out:
        return "timeout"
    if any(gold.outcomes.get(test) != "passed" for test in tests):
        return "gold does not pass"
    if any(base.outcomes.get(test) not in ("failed", "error") for test in task.fail_to_pass):
        return "the bug does not fail its tests"
    if any(base.outcomes.get(test) != "passed" for test in task.pass_to_pass):
        return "the bug breaks a test that should pass"
    (path, text), *_ = tasks.gold(task).items()
    leak = _scan(tree).leak(path, task.function, text)
    return f"leak: {leak}" if leak else "valid"


@lru_cache(maxsize=64)
def _scan(tree: Path) -> LeakScan:
    return LeakScan(tree)


def check_tasks(
    tasks: TaskSet, chosen: Sequence[Task], sandbox: Sandbox, jobs: int
) -> dict[str, str]:
    """`check_task` of every chosen task by id, `jobs` at a time."""
    tasks.trees()  # made once, before the threads ask for them
    with ThreadPoolExecutor(jobs) as pool:
        reasons = pool.map(lambda task: check_task(tasks, task, sandbox), chosen)
        return dict(zip((task.id for task in chosen), reasons, strict=True))
