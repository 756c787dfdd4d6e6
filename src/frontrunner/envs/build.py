"""Building a task set: run the tests on every candidate bug, keep what is a fair task.

    targets -> tests that reach them -> gold passes 3 times -> each mutant: fails, fails again the
    same way in another order, and its final test list passes on gold

Runs go through the sandbox, in threads. Every answer is written to a cache as it comes, so a
build that is killed at any time continues where it stopped.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from frontrunner.envs import packages
from frontrunner.envs.decontamination import Against
from frontrunner.envs.leaks import LeakScan
from frontrunner.envs.mutations import functions
from frontrunner.envs.reach import Job, reached_tests
from frontrunner.envs.synthesis import (
    NUM_VARIANTS,
    Target,
    content_id,
    instruction,
    module_name,
    split_of,
    symptom,
    targets,
)
from frontrunner.envs.taskset import FORMAT, Header, PackagePin, TaskSet
from frontrunner.envs.validation import (
    Options,
    Project,
    Result,
    ResultCache,
    Validator,
    key_of,
)
from frontrunner.protocols import Sandbox
from frontrunner.types import Mutation, Split, Task


@dataclass(frozen=True, slots=True)
class Progress:
    """Sent to the listener after every function."""

    num_functions: int
    total_functions: int
    num_tried: int
    num_train: int
    num_heldout: int


class Builder:
    """Builds one task set; `listener` is told about progress, from the calling thread."""

    def __init__(
        self,
        sandbox: Sandbox,
        jobs: int,
        seed: int,
        listener: Callable[[Progress | str], None],
        options: Options | None = None,
        against: TaskSet | None = None,
    ) -> None:
        """`against`: no task is made of a near-duplicate of one of this set's functions."""
        self._options = options or Options()
        self._validator = Validator(sandbox, self._options)
        self._against = Against(against) if against else None
        self._pool = ThreadPoolExecutor(jobs)
        self._window = 2 * jobs
        self._seed = seed
        self._tell = listener
        self.yields: dict[str, Counter[str]] = {}
        self.detail: dict[str, dict[str, Counter[str]]] = {}
        """Package -> kind -> what became of its candidates."""

    def build(self, names: Sequence[str], train: int, heldout: int) -> tuple[Header, list[Task]]:
        """Up to `train` and `heldout` tasks from the named packages, the same for the same seed."""
        try:
            projects = [self._project(name) for name in names]
            tasks = self._search(projects, {"train": train, "heldout": heldout})
            self._tell(f"timing the tests of {len(tasks)} tasks")
            by_name = {project.name: project for project in projects}
            timed = self._pool.map(
                lambda task: self._validator.timed(by_name[task.package], task), tasks
            )
            tasks = list(timed)
        finally:
            self._pool.shutdown(cancel_futures=True)
        pins = {
            p.name: PackagePin(p.version, p.digest, packages.libraries(p.name)) for p in projects
        }
        yields = {name: dict(sorted(count.items())) for name, count in sorted(self.yields.items())}
        return Header(FORMAT, self._seed, pins, yields), tasks

    def _project(self, name: str) -> Project:
        self._tell(f"{name}: running its tests to see what they reach")
        tree = packages.materialise(name)
        reached = reached_tests(tree, packages.source(name), self._run_all)
        cache = ResultCache(packages.cache_dir() / "build" / f"results-{tree.name}.jsonl")
        version, digest = packages.installed_version(name), packages.digest(name)
        return Project(name, version, digest, tree, tuple(reached), cache, LeakScan(tree))

    def _run_all(self, jobs: Sequence[Job]) -> list[Any]:
        return list(self._pool.map(lambda job: job(), jobs))

    def _search(self, projects: Sequence[Project], room: dict[Split, int]) -> list[Task]:
        order = list(self._interleaved(projects))
        waiting: deque[tuple[Project, Target, Future[list[tuple[Mutation, Result]]]]] = deque()
        tasks: list[Task] = []
        upcoming = iter(order)
        num_done = num_tried = 0
        while any(room.values()):
            for project, target in upcoming:
                if room[split_of(target.key, self._seed)] > 0:
                    future = self._pool.submit(self._validator.try_target, project, target)
                    waiting.append((project, target, future))
                if len(waiting) >= self._window:
                    break
            if not waiting:
                break
            project, target, future = waiting.popleft()
            split = split_of(target.key, self._seed)
            if room[split] == 0:
                continue
            num_done += 1
            for mutation, result in future.result():
                num_tried += 1
                self._count(project.name, mutation.kind, result.reason)
                if result.reason == "valid" and room[split] > 0:
                    room[split] -= 1
                    tasks.append(make_task(project, target, mutation, result, split, self._options))
            by_split = Counter(task.split for task in tasks)
            self._tell(
                Progress(num_done, len(order), num_tried, by_split["train"], by_split["heldout"])
            )
        return _spread(tasks)

    def _count(self, package: str, kind: str, reason: str) -> None:
        for row in (f"package:{package}", f"kind:{kind}", "all"):
            self.yields.setdefault(row, Counter()).update(["tried", reason])
        kinds = self.detail.setdefault(package, {})
        kinds.setdefault(kind, Counter()).update(["tried", reason])

    def _interleaved(self, projects: Sequence[Project]) -> Iterator[tuple[Project, Target]]:
        """Functions of all packages in turn, shuffled by content within each package."""
        queues = []
        for project in projects:
            found = targets(project.name, project.tree, packages.source(project.name).skip_code)
            found = [t for t in found if not self._contaminated(project, t)]
            found.sort(key=lambda t: key_of([self._seed, t.path, t.function]))
            if found:
                queues.append((project, deque(found)))
        while queues:
            for project, queue in queues:
                yield project, queue.popleft()
            queues = [(project, queue) for project, queue in queues if queue]

    def _contaminated(self, project: Project, target: Target) -> bool:
        if self._against is None:
            return False
        module = ast.parse((project.tree / target.path).read_text(encoding="utf-8"))
        found = {f.qualname: f.node for f in functions(module)}[target.function]
        if not self._against.has(found):
            return False
        self._count(project.name, "any", "near-duplicate")
        return True


def _spread(tasks: Sequence[Task]) -> list[Task]:
    """A bug of every function, then second ones: any beginning is diverse, also in its kinds."""
    seen: Counter[tuple[str, str]] = Counter()
    turns: dict[str, int] = {}
    for task in sorted(tasks, key=lambda task: task.id):  # an address is as good as a die
        turns[task.id] = seen[task.path, task.function]
        seen[task.path, task.function] += 1
    return sorted(tasks, key=lambda task: turns[task.id])


def make_task(
    project: Project,
    target: Target,
    mutation: Mutation,
    result: Result,
    split: Split,
    options: Options,
) -> Task:
    tests = result.fail_to_pass + result.pass_to_pass
    identity = content_id(
        project.name,
        project.version,
        target.path,
        target.function,
        mutation,
        tests,
        hidden=options.hidden,
    )
    test, exception = symptom(result.message, result.fail_to_pass[0])
    variant = int(identity[-6:], 16) % NUM_VARIANTS
    if options.symptom_only or options.hidden:  # the upper half names no test
        variant = NUM_VARIANTS // 2 + variant % (NUM_VARIANTS // 2)
    return Task(
        id=identity,
        package=project.name,
        version=project.version,
        path=target.path,
        file_sha256=hashlib.sha256((project.tree / target.path).read_bytes()).hexdigest(),
        function=target.function,
        mutation=mutation,
        fail_to_pass=result.fail_to_pass,
        pass_to_pass=result.pass_to_pass,
        split=split,
        symptom=f"{test} fails with {exception}",
        instruction=instruction(
            target.function, module_name(target.path), test, exception, variant
        ),
        test_seconds=result.seconds,
        hidden=options.hidden,
    )
