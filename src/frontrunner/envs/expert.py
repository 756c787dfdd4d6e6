"""A scripted expert: trajectories of bug fixing at every effort level, for the base policy.

The bug is known, so no tests are needed: `test` passes exactly when the source is repaired. The
expert is deliberately human: at every level it sometimes wastes a step, tries a wrong repair
first, or gives up, which leaves reinforcement learning something to improve. What differs
between levels is how much it checks:

    low     view, edit, submit
    medium  view, edit, test, and one more try if the test fails
    high    look around, reproduce, edit, test, and up to four tries
"""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass
from pathlib import Path

from frontrunner.envs import mutations
from frontrunner.envs.corpus import CorpusFunction
from frontrunner.envs.synthesis import NUM_VARIANTS, instruction
from frontrunner.envs.tools import BugFixEnvironment
from frontrunner.envs.workspace import Workspace
from frontrunner.protocols import TestReport
from frontrunner.types import Mutation

_EXCEPTIONS = ("AssertionError", "AssertionError", "TypeError", "ValueError", "IndexError")


@dataclass(frozen=True, slots=True)
class Style:
    """How the expert works at one level; all but `tries` are probabilities."""

    wrong_first: float
    """The first repair is a plausible wrong one."""
    look_around: float
    """Lists files before viewing."""
    reproduce: float
    """Runs the tests before editing."""
    check: float
    """Runs the tests after an edit."""
    give_up: float
    """Submits after a failed test although tries are left."""
    tries: int


STYLES = {
    "low": Style(0.12, 0.10, 0.02, 0.08, 0.50, 2),
    "medium": Style(0.20, 0.25, 0.15, 0.75, 0.35, 3),
    "high": Style(0.30, 0.40, 0.40, 0.95, 0.10, 5),
}


CLEAN = Style(0.0, 0.0, 0.0, 0.0, 0.0, 1)
"""No habits: view, repair, submit."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A conversation: opening messages, then (answer, observation) pairs."""

    effort: str
    user: str
    turns: tuple[tuple[str, str], ...]


class _Simulated:
    """Stands in for the sandbox: the tests pass exactly when the source is right."""

    def __init__(self, path: str, good: str, message: str, num_tests: int) -> None:
        self.path, self.good, self.message, self.num_tests = path, good, message, num_tests

    def __call__(self, edits: dict[str, str | None]) -> TestReport:
        ok = edits.get(self.path) == self.good
        names = {f"t{n}": "passed" for n in range(self.num_tests)}
        if not ok:
            names["t0"] = "failed"
        return TestReport(names, "" if ok else self.message, False, False, 0.01)


def _wrong_edit(
    rng: random.Random, source: str, function: mutations.Function, right: tuple[int, str, str]
) -> tuple[int, str, str] | None:
    """A repair that looks plausible: undoes a mutation that never happened."""
    found = mutations.sites(source, function)
    rng.shuffle(found)
    for candidate in found[:8]:
        changed = mutations.apply(source, candidate)
        line, new, old = mutations.repair(source, candidate)
        row = source.split("\n")[line - 1]
        if (line, old, new) != right and row.count(old) == 1 and changed != source:
            return line, old, new
    return None


def trajectory(
    rng: random.Random, function: CorpusFunction, effort: str, style: Style
) -> Trajectory | None:
    """One worked example, or None when the function offers no usable bug."""
    node = next(f for f in mutations.functions(ast.parse(function.source)))
    bugs = mutations.sites(function.source, node)
    if not bugs:
        return None
    kind = rng.choice(sorted({m.kind for m in bugs}))
    bug = rng.choice([m for m in bugs if m.kind == kind])
    bad = mutations.apply(function.source, bug)
    try:
        broken = next(f for f in mutations.functions(ast.parse(bad)))
    except SyntaxError:
        return None
    test = "test_" + function.qualname.rsplit(".", 1)[-1].strip("_").lower()
    exception = rng.choice(_EXCEPTIONS)
    user = instruction(
        function.qualname, function.module, test, exception, rng.randrange(NUM_VARIANTS)
    )
    num_tests = rng.randint(2, 8)
    path = function.module.replace(".", "/") + ".py"
    message = f"{test}: {exception}"
    if rng.random() < 0.6:
        call = f"{function.qualname.rsplit('.', 1)[-1]}({rng.randint(0, 9)})"
        message += f": assert {call} == {rng.randint(0, 99)}"
    env = BugFixEnvironment(
        Workspace(Path("empty"), {path: bad}),
        _Simulated(path, function.source, message, num_tests),
        focus=function.qualname,
        num_tests=num_tests,
        test_seconds=0.01,
    )
    turns = _work(rng, env, function, bug, bad, broken, style)
    return Trajectory(effort, user, turns) if turns else None


def _work(
    rng: random.Random,
    env: BugFixEnvironment,
    function: CorpusFunction,
    bug: Mutation,
    bad: str,
    broken: mutations.Function,
    style: Style,
) -> tuple[tuple[str, str], ...]:
    turns: list[tuple[str, str]] = []

    def do(text: str) -> str:
        _, observation, _ = env.act(text)
        turns.append((text, observation))
        return observation

    if rng.random() < style.look_around:
        do("list")
    shown = do("view").split("\n")
    if rng.random() < style.reproduce:
        do("test")
    right = mutations.repair(function.source, bug)
    labels = {row.partition(" ")[2]: row.partition(" ")[0] for row in shown}
    wrong = rng.random() < style.wrong_first
    for attempt in range(style.tries):
        edit = _wrong_edit(rng, bad, broken, right) if wrong else right
        edit = edit or right
        row = bad.split("\n")[edit[0] - 1]
        if row not in labels or sum(r.partition(" ")[2] == row for r in shown) > 1:
            return ()  # the line is not shown once: nothing to point at
        do(f"edit {labels[row]} {edit[1]} => {edit[2]}")
        if rng.random() >= style.check or do("test") == "passed":
            break
        if rng.random() < style.give_up or attempt == style.tries - 1:
            break
        do("undo")
        wrong = wrong and rng.random() < 0.4
    do("submit")
    return tuple(turns)
