"""Building a task set: run the tests on every candidate bug, keep what is a fair task.

    targets -> tests that reach them -> gold passes 3 times -> each mutant: fails, fails again the
    same way in another order, and its final test list passes on gold

Runs go through the sandbox, in threads. Every answer is written to a cache as it comes, so a
build that is killed at any time continues where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from frontrunner.envs import packages
from frontrunner.envs.mutations import apply
from frontrunner.envs.reach import Job, Reached, reached_tests
from frontrunner.envs.synthesis import (
    NUM_VARIANTS,
    Target,
    content_id,
    instruction,
    module_name,
    select_tests,
    split_of,
    symptom,
    targets,
)
from frontrunner.envs.taskset import FORMAT, Header, PackagePin
from frontrunner.errors import SandboxError
from frontrunner.protocols import Sandbox, TestReport
from frontrunner.types import Mutation, Split, Task

RULES = "1"
"""Version of the admission rules; part of every cache key."""
TIMEOUT = 6.0
"""Wall seconds of one run; a mutant that needs more is no task."""
MAX_GOLD_SECONDS = 1.0
MAX_VALID = 6
"""Tasks per function."""
MAX_LISTED = 4
"""Failing and passing tests that a task lists, each."""
SANDBOX_FAILED = "sandbox failed"
"""Not the candidate's fault: counted, not cached, and tried again by the next build."""
BAD = ("failed", "error")
TRIVIAL = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "SyntaxError")


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one candidate; `reason` is `valid` or why not."""

    reason: str
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    message: str = ""
    seconds: float = 0.0


class ResultCache:
    """Append-only JSON lines by content key; a torn last line is ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, Any]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            self._known[record.pop("key")] = record

    def get(self, *content: object) -> dict[str, Any] | None:
        return self._known.get(_key(content))

    def put(self, record: dict[str, Any], *content: object) -> None:
        line = json.dumps({"key": _key(content), **record})
        with self._lock:
            self._known[_key(content)] = record
            with self._path.open("a") as file:
                file.write("\n" + line)


def _key(content: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps([RULES, *content]).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Project:
    """One package being searched for tasks."""

    name: str
    version: str
    digest: str
    tree: Path
    reached: tuple[Reached, ...]
    cache: ResultCache


class Validator:
    """Decides whether candidate bugs are fair tasks."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def try_target(self, project: Project, target: Target) -> list[tuple[Mutation, Result]]:
        """Results of a function's candidates in order, until `MAX_VALID` of them are valid."""
        covering, neighbours = select_tests(target, project.reached)
        if not covering:
            return []
        try:
            stable = self._stable(project, covering + neighbours)
        except SandboxError:
            return [(target.mutations[0], Result(SANDBOX_FAILED))]
        covering = [test for test in covering if test in stable]
        neighbours = [test for test in neighbours if test in stable]
        if not covering:
            return []
        text = (project.tree / target.path).read_text(encoding="utf-8")
        results: list[tuple[Mutation, Result]] = []
        for mutation in target.mutations:
            if sum(r.reason == "valid" for _, r in results) == MAX_VALID:
                break
            results.append(
                (mutation, self._cached(project, target, mutation, text, covering, neighbours))
            )
        return results

    def _stable(self, project: Project, tests: list[str]) -> set[str]:
        """Tests that pass on the pristine tree in three runs of different order."""
        known = project.cache.get("gold", tests)
        if known is None:
            shuffled = sorted(tests, key=lambda t: hashlib.sha256(t.encode()).digest())
            passing, seconds = set(tests), 0.0
            for order in (tests, tests[::-1], shuffled):
                report = self._run(project, {}, order)
                passing &= {t for t, outcome in report.outcomes.items() if outcome == "passed"}
                seconds = max(seconds, report.wall_seconds)
            known = {"passing": sorted(passing) if seconds <= MAX_GOLD_SECONDS else []}
            project.cache.put(known, "gold", tests)
        return set(known["passing"])

    def _run(self, project: Project, files: dict[str, str | None], tests: list[str]) -> TestReport:
        return self._sandbox.run_tests(project.tree, files, tests, timeout=TIMEOUT)

    def _cached(
        self,
        project: Project,
        target: Target,
        mutation: Mutation,
        text: str,
        covering: list[str],
        neighbours: list[str],
    ) -> Result:
        content = (target.path, target.function, astuple(mutation), covering, neighbours)
        known = project.cache.get(*content)
        if known is None:
            files: dict[str, str | None] = {target.path: apply(text, mutation)}
            try:
                result = self._validate(project, files, covering, neighbours)
            except SandboxError:
                return Result(SANDBOX_FAILED)
            known = {
                "reason": result.reason,
                "fail": result.fail_to_pass,
                "pass": result.pass_to_pass,
                "message": result.message,
                "seconds": result.seconds,
            }
            project.cache.put(known, *content)
        return Result(
            known["reason"],
            tuple(known["fail"]),
            tuple(known["pass"]),
            known["message"],
            known["seconds"],
        )

    def _validate(
        self,
        project: Project,
        files: dict[str, str | None],
        covering: list[str],
        neighbours: list[str],
    ) -> Result:
        tests = covering + neighbours
        first = self._run(project, files, tests)
        reason = _refusal(first, tests, neighbours)
        if reason:
            return Result(reason)
        failing = [t for t in tests if first.outcomes[t] in BAD][:MAX_LISTED]
        passing = [t for t in tests if first.outcomes[t] == "passed"][:MAX_LISTED]
        final = failing + passing
        again = self._run(project, files, final[::-1])
        if {t for t in final if again.outcomes.get(t) in BAD} != set(failing):
            return Result("not repeatable")
        gold = self._run(project, {}, final)
        if any(gold.outcomes.get(t) != "passed" for t in final):
            return Result("order dependent")
        seconds = round(gold.wall_seconds, 4)
        return Result("valid", tuple(failing), tuple(passing), first.message, seconds)

    def timed(self, project: Project, task: Task) -> Task:
        """The task with the fastest of three runs as its reference duration: load only adds."""
        known = project.cache.get("seconds", task.id)
        if known is None:
            tests = [*task.fail_to_pass, *task.pass_to_pass]
            runs = [self._run(project, {}, tests).wall_seconds for _ in range(2)]
            known = {"seconds": round(min(task.test_seconds, *runs), 4)}
            project.cache.put(known, "seconds", task.id)
        return replace(task, test_seconds=known["seconds"])


def _refusal(report: TestReport, tests: list[str], neighbours: list[str]) -> str:
    """Why the first run of a mutant makes it no task; empty when it may be one."""
    outcomes = report.outcomes
    if report.timed_out:
        return "timeout"
    if report.exited_early or any(test not in outcomes for test in tests):
        return "breaks the test run"
    if not any(outcomes[test] in BAD for test in tests):
        return "survived"
    if not any(outcomes[test] == "passed" for test in tests):
        return "nothing passes"
    if neighbours and all(outcomes[test] != "passed" for test in neighbours):
        return "breaks unrelated tests"
    if symptom(report.message, tests[0])[1] in TRIVIAL:
        return "trivial error"
    return ""


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
        self, sandbox: Sandbox, jobs: int, seed: int, listener: Callable[[Progress | str], None]
    ) -> None:
        self._validator = Validator(sandbox)
        self._pool = ThreadPoolExecutor(jobs)
        self._window = 2 * jobs
        self._seed = seed
        self._tell = listener
        self.yields: dict[str, Counter[str]] = {}

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
        return Project(name, version, digest, tree, tuple(reached), cache)

    def _run_all(self, jobs: Sequence[Job]) -> list[Any]:
        return list(self._pool.map(lambda job: job(), jobs))

    def _search(self, projects: Sequence[Project], room: dict[Split, int]) -> list[Task]:
        order = list(_interleaved(projects, self._seed))
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
                    tasks.append(make_task(project, target, mutation, result, split))
            by_split = Counter(task.split for task in tasks)
            self._tell(
                Progress(num_done, len(order), num_tried, by_split["train"], by_split["heldout"])
            )
        return _spread(tasks)

    def _count(self, package: str, kind: str, reason: str) -> None:
        for row in (f"package:{package}", f"kind:{kind}", "all"):
            self.yields.setdefault(row, Counter()).update(["tried", reason])


def _spread(tasks: Sequence[Task]) -> list[Task]:
    """A bug of every function, then second ones: any beginning is diverse, also in its kinds."""
    seen: Counter[tuple[str, str]] = Counter()
    turns: dict[str, int] = {}
    for task in sorted(tasks, key=lambda task: task.id):  # an address is as good as a die
        turns[task.id] = seen[task.path, task.function]
        seen[task.path, task.function] += 1
    return sorted(tasks, key=lambda task: turns[task.id])


def _interleaved(projects: Sequence[Project], seed: int) -> Iterator[tuple[Project, Target]]:
    """Functions of all packages in turn, shuffled by content within each package."""
    queues = []
    for project in projects:
        found = targets(project.name, project.tree, packages.source(project.name).skip_code)
        found.sort(key=lambda t: _key([seed, t.path, t.function]))
        if found:
            queues.append((project, deque(found)))
    while queues:
        for project, queue in queues:
            yield project, queue.popleft()
        queues = [(project, queue) for project, queue in queues if queue]


def make_task(
    project: Project, target: Target, mutation: Mutation, result: Result, split: Split
) -> Task:
    tests = result.fail_to_pass + result.pass_to_pass
    identity = content_id(
        project.name, project.version, target.path, target.function, mutation, tests
    )
    test, exception = symptom(result.message, result.fail_to_pass[0])
    variant = int(identity[-6:], 16) % NUM_VARIANTS
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
    )
