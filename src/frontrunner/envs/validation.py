"""Whether a candidate bug is a fair task: its tests run on gold and on the mutant, in the sandbox.

    gold passes 3 times in different orders -> the mutant fails, and fails again the same way in
    another order -> its final test list passes on gold -> nothing in the tree tells the answer

Every answer is written to a cache as it comes.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frontrunner.envs.leaks import LeakScan
from frontrunner.envs.mutations import apply, content
from frontrunner.envs.reach import Reached
from frontrunner.envs.synthesis import Target, select_tests, symptom
from frontrunner.envs.variants import combinations, combined_parts
from frontrunner.errors import SandboxError
from frontrunner.protocols import Sandbox, TestReport
from frontrunner.types import Mutation, Task

RULES = "1"
"""Version of the admission rules; part of every cache key."""
TIMEOUT = 6.0
"""Wall seconds of one run; a mutant that needs more is no task."""
MAX_GOLD_SECONDS = 1.0
MAX_VALID = 6
"""Tasks per function."""
MAX_WIDE = 2
"""Tasks per function of each family but `single`."""
BUILT = ("single", "combined", "removed")
"""Families of tasks."""
MAX_LISTED = 4
"""Failing and passing tests that a task lists, each."""
SANDBOX_FAILED = "sandbox failed"
"""Not the candidate's fault: counted, not cached, and tried again by the next build."""
BAD = ("failed", "error")
TRIVIAL = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "SyntaxError")


@dataclass(frozen=True, slots=True)
class Options:
    """What kind of tasks a build makes."""

    kinds: tuple[str, ...] = ("single",)
    """Some of `BUILT`."""
    per_function: int = MAX_VALID
    symptom_only: bool = False
    """Instructions name neither test nor exception."""
    hidden: bool = False
    """The agent's test tool leaves the failing tests out."""


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
        return self._known.get(key_of(content))

    def put(self, record: dict[str, Any], *content: object) -> None:
        line = json.dumps({"key": key_of(content), **record})
        with self._lock:
            self._known[key_of(content)] = record
            with self._path.open("a") as file:
                file.write("\n" + line)


def key_of(content: Sequence[object]) -> str:
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
    scan: LeakScan


class Validator:
    """Decides whether candidate bugs are fair tasks."""

    def __init__(self, sandbox: Sandbox, options: Options) -> None:
        self._sandbox = sandbox
        self._options = options

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
        return list(self._try_all(project, target, text, covering, neighbours))

    def _try_all(
        self,
        project: Project,
        target: Target,
        text: str,
        covering: list[str],
        neighbours: list[str],
    ) -> Iterator[tuple[Mutation, Result]]:
        """Kinds in turn, the rarest first, each as far as the function has room for tasks."""
        kinds = self._options.kinds
        room = self._options.per_function
        valid: list[tuple[Mutation, Result]] = []

        def attempt(mutations: Sequence[Mutation], most: int) -> Iterator[tuple[Mutation, Result]]:
            found = 0
            for mutation in mutations:
                if found >= most:
                    break
                result = self._cached(project, target, mutation, text, covering, neighbours)
                found += result.reason == "valid"
                if result.reason == "valid":
                    valid.append((mutation, result))
                yield mutation, result

        if "removed" in kinds:
            yield from attempt(target.removed, min(MAX_WIDE, room))
        wide = len(valid)
        if {"single", "combined"} & set(kinds):
            spare = MAX_WIDE * (kinds != ("single",) and "combined" in kinds and room > MAX_WIDE)
            tried = attempt(target.mutations, room - wide - spare)
            yield from ((m, r) for m, r in tried if "single" in kinds)
        if "combined" in kinds:
            singles = valid[wide:]
            left = room - (len(valid) if "single" in kinds else wide)
            detected = {m: set(r.fail_to_pass) for m, r in singles}
            for mutation, result in attempt(combinations(list(detected)), min(MAX_WIDE, left)):
                parts = [detected[m] for m in combined_parts(mutation, list(detected))]
                seen = all(part & set(result.fail_to_pass) for part in parts)
                reason = "a part goes unnoticed"
                fine = seen or result.reason != "valid"
                yield mutation, result if fine else replace(result, reason=reason)

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
        key = (target.path, target.function, content(mutation), covering, neighbours)
        known = project.cache.get(*key)
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
            project.cache.put(known, *key)
        leak = project.scan.leak(target.path, target.function, text)
        if leak and known["reason"] == "valid":
            return Result(f"leak ({leak.partition(':')[0]})")
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
