"""A scripted expert: trajectories of bug fixing at every effort level, for the base policy.

The bug is known, so no tests are needed: `test` passes exactly when the source is repaired. The
expert is deliberately human: at every level it sometimes wastes a step, tries a wrong repair
first, writes an edit that the tool refuses, or gives up, which leaves reinforcement learning
something to improve. What differs between levels is how much it checks:

    low     view, edit, submit
    medium  view, edit, test, and one more try if the test fails
    high    look around, reproduce, edit, test, and up to five tries

Wrong edits are shown and not taught (`Turn.learn`): the policy makes enough of its own, and what
it has to learn is to notice one and to try something else.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
    """How the expert works at one level; all but `tries` and `bugs` are probabilities."""

    wrong_first: float
    """The first repair is a plausible wrong one."""
    slip: float
    """An edit is preceded by one that the tool refuses."""
    look_around: float
    """Lists files before viewing."""
    reproduce: float
    """Runs the tests before editing."""
    check: float
    """Runs the tests after an edit."""
    give_up: float
    """Submits after a failed test although tries are left."""
    tries: int
    wander: float = 0.0
    """Before editing, looks at something once more; and again, with the same chance."""
    skip: float = 0.0
    """Hands in without having edited."""
    bugs: int = 1
    """Bugs in the function, at most."""


STYLES = {
    "low": Style(0.12, 0.10, 0.10, 0.02, 0.08, 0.50, 2),
    "medium": Style(0.35, 0.25, 0.25, 0.15, 0.75, 0.35, 3),
    "high": Style(0.50, 0.35, 0.40, 0.40, 0.95, 0.10, 5),
}

CARELESS = {
    "low": Style(0.12, 0.10, 0.10, 0.02, 0.10, 0.90, 2, wander=0.50, skip=0.70),
    "medium": Style(0.35, 0.25, 0.25, 0.15, 0.60, 0.70, 2, wander=0.50, skip=0.40),
    "high": Style(0.50, 0.35, 0.40, 0.40, 0.90, 0.40, 3, wander=0.50, skip=0.15),
}
"""Another hand at the same work, as collected demonstrations have them: it wanders about and gives
up easily. A policy taught by both kinds mixes them, and its rewards tell them apart."""

DRILL = Style(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, bugs=4)
"""No habits, several bugs in one function: most repairs taught for every token read."""


class Turn(NamedTuple):
    """An answer, what the tool said to it, and whether the answer is one to imitate."""

    text: str
    observation: str
    learn: bool


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A conversation: the user's message, then turns."""

    effort: str
    user: str
    turns: tuple[Turn, ...]


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


def _infect(rng: random.Random, source: str, most: int) -> tuple[str, list[Mutation]] | None:
    """The source with up to `most` bugs, no two on one line, and the bugs in random order.

    Kinds are equally likely, however often each could be applied.
    """
    node = next(mutations.functions(ast.parse(source)))
    left = mutations.sites(source, node)
    bugs: list[Mutation] = []
    for _ in range(most):
        if not left:
            break
        kind = rng.choice(sorted({m.kind for m in left}))
        bug = rng.choice([m for m in left if m.kind == kind])
        source = mutations.apply(source, bug)
        bugs.append(bug)
        left = [m for m in left if m.line != bug.line]
    try:
        ast.parse(source)
    except SyntaxError:
        return None
    return (source, bugs) if bugs else None


def _wrong_edit(
    rng: random.Random, source: str, shown: Sequence[str], right: tuple[str, str]
) -> tuple[str, str] | None:
    """A repair that looks plausible: undoes a mutation that never happened."""
    found = mutations.sites(source, next(mutations.functions(ast.parse(source))))
    rng.shuffle(found)
    for candidate in found[:8]:
        edit = mutations.repair(source, candidate, mutations.apply(source, candidate).split("\n"))
        if edit and edit[::-1] != right and sum(r.count(edit[1]) for r in shown) == 1:
            return edit[1], edit[0]
    return None


def _refused_edit(
    rng: random.Random, source: str, shown: Sequence[str], right: tuple[str, str]
) -> tuple[str, str]:
    """An edit whose OLD is not there, or is there more than once."""
    words = right[0].split()
    for number in range(1, len(words)):
        old = " ".join(words[number:])
        if (
            sum(r.count(old) for r in shown) > 1
            and rng.random() < 0.7
            and right[1].split()[number:]
        ):
            return old, " ".join(right[1].split()[number:])
    wrong = _wrong_edit(rng, source, shown, right) or right
    return wrong[::-1] if not any(wrong[1] in r for r in shown) else (f"{right[1]}:", right[0])


def trajectory(
    rng: random.Random, function: CorpusFunction, effort: str, style: Style
) -> Trajectory | None:
    """One worked example, or None when the function offers no usable bug."""
    infected = _infect(rng, function.source, style.bugs)
    if infected is None:
        return None
    bad, bugs = infected
    test = "test_" + function.qualname.rsplit(".", 1)[-1].strip("_").lower()
    exception = rng.choice(_EXCEPTIONS)
    variant = rng.randrange(NUM_VARIANTS)
    user = instruction(function.qualname, function.module, test, exception, variant)
    if style.bugs > 1:
        user = f"Fix `{function.qualname}`."  # every token of a drill should teach repairs
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
    turns = _work(rng, env, path, function.source, bugs, style)
    return Trajectory(effort, user, turns) if turns else None


def _work(
    rng: random.Random,
    env: BugFixEnvironment,
    path: str,
    good: str,
    bugs: Sequence[Mutation],
    style: Style,
) -> tuple[Turn, ...]:
    turns: list[Turn] = []

    def do(text: str, learn: bool = True) -> str:
        _, observation, _ = env.act(text)
        turns.append(Turn(text, observation, learn))
        return observation

    def refused() -> bool:
        return turns[-1].learn and turns[-1].observation.startswith("error")

    if rng.random() < style.look_around:
        do("list")
    do("view")
    if refused():
        return ()  # its name is not the only one like it in the file
    if rng.random() < style.reproduce:
        do("test")
    while style.wander and rng.random() < style.wander:
        do(rng.choice(("list", "view", "test")))
    if style.skip and rng.random() < style.skip:
        bugs = ()
    for bug in bugs:
        wrong = rng.random() < style.wrong_first
        for attempt in range(style.tries):
            bad = env.workspace.read(path)
            shown = bad.split("\n")
            right = mutations.repair(good, bug, shown)
            if right is None:
                return ()  # its line is not the only one like it: nothing to point at
            if rng.random() < style.slip:
                do("edit {} => {}".format(*_refused_edit(rng, bad, shown, right)), learn=False)
            edit = (wrong and _wrong_edit(rng, bad, shown, right)) or right
            do("edit {} => {}".format(*edit), learn=edit == right)
            if refused():
                return ()  # the view does not show the line
            if rng.random() >= style.check or do("test") == "passed":
                break
            if rng.random() < style.give_up or attempt == style.tries - 1:
                break
            do("undo")
            wrong = wrong and rng.random() < 0.4
    do("submit")
    return tuple(turns)
