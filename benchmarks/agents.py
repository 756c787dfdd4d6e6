"""Agent rollouts as a load for any engine, with the standard library alone.

A load is a list of rollouts, each a list of turns: the tokens that are added to the context, and
how long the answer is. Recorded rollouts (`agents.json`, written by `record_agents.py`) are those
of the shipped policy at work, with the tokens that it really read; rollouts of a group share
their prompt, and what they look at too as long as they act alike. Every answer has its recorded
length, so that engines do the same work; the answer itself is the engine's own.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

VOCABULARY = 2000
"""Made-up ids are below this: legal in every model that is compared."""

Finished = list[tuple[str, list[int]]]


@dataclass
class Turn:
    """Tokens added to the context, and the length of the answer."""

    fresh: list[int]
    answer: int


@dataclass
class Rollout:
    """What an agent will do."""

    group: int
    turns: list[Turn]

    @property
    def num_tokens(self) -> int:
        return sum(len(t.fresh) + t.answer for t in self.turns)


def recorded(number: int, max_context: int) -> list[Rollout]:
    """So many recorded rollouts, the whole set again and again as groups of their own. A turn that
    would not fit into the context ends its rollout."""
    tree = json.loads((Path(__file__).parent / "agents.json").read_text())
    rollouts = []
    for n in range(number):
        again, place = divmod(n, len(tree["rollouts"]))
        item = tree["rollouts"][place]
        made = Rollout(item["group"] + 10_000 * again, [])
        for fragment, answer in item["turns"]:
            turn = Turn(tree["fragments"][fragment], answer)
            if made.num_tokens + len(turn.fresh) + answer + 1 > max_context:
                break
            made.turns.append(turn)
        rollouts.append(made)
    return rollouts


def long_tailed(number: int, max_context: int, seed: int = 0) -> list[Rollout]:
    """One-turn requests whose answers have a log-normal length: most are short, a few very long."""
    rng = random.Random(seed)
    rollouts = []
    for n in range(number):
        prompt = [rng.randrange(3, VOCABULARY) for _ in range(rng.randint(40, 240))]
        answer = min(max_context - len(prompt) - 1, max(1, int(rng.lognormvariate(4.0, 1.0))))
        rollouts.append(Rollout(n, [Turn(prompt, answer)]))
    return rollouts


@dataclass
class Load:
    """A closed loop: `concurrency` rollouts in flight, the next one starts when one ends."""

    rollouts: list[Rollout]
    concurrency: int
    salt: int = 0
    """Another number, another first token: no cache knows a context from the drive before."""
    lockstep: bool = False
    """Hand in next turns only when nothing is in flight, as an engine without a queue needs it."""

    def first_context(self, number: int) -> list[int]:
        """The first turn's context, told apart by drive and by group."""
        rollout = self.rollouts[number]
        mark = random.Random(f"{self.salt} {rollout.group}").randrange(3, VOCABULARY)
        return [mark, *rollout.turns[0].fresh]


@dataclass
class Measured:
    """What one drive took."""

    seconds: float = 0.0
    tokens: int = 0
    """Sampled."""
    context_tokens: int = 0
    """Read for the first time, so without what earlier turns of the same rollout read."""
    turn_seconds: list[float] = field(default_factory=list)

    @property
    def mean_turn_seconds(self) -> float:
        return sum(self.turn_seconds) / len(self.turn_seconds)


def drive(
    load: Load,
    submit: Callable[[str, list[int], int], None],
    poll: Callable[[], Finished],
) -> Measured:
    """Run a load to its end. `submit(name, context, answer length)`, `poll()` what is finished."""
    contexts = [load.first_context(n) for n in range(len(load.rollouts))]
    turn = [0] * len(load.rollouts)
    waiting, sent = list(range(len(load.rollouts))), dict[str, float]()
    measured = Measured(context_tokens=len(contexts))
    begin = time.perf_counter()
    ready = [waiting.pop(0) for _ in range(min(load.concurrency, len(waiting)))]
    while ready or sent:
        if not (load.lockstep and sent):
            for number in ready:
                now = load.rollouts[number].turns[turn[number]]
                measured.context_tokens += len(now.fresh)
                name = f"{number}/{turn[number]}"
                sent[name] = time.perf_counter()
                submit(name, contexts[number], now.answer)
            ready = []
        for name, ids in poll():
            number = int(name.partition("/")[0])
            turns = load.rollouts[number].turns
            assert len(ids) == turns[turn[number]].answer, f"{name}: {len(ids)} tokens"
            measured.turn_seconds.append(time.perf_counter() - sent.pop(name))
            measured.tokens += len(ids)
            turn[number] += 1
            if turn[number] < len(turns):
                contexts[number] = contexts[number] + ids + turns[turn[number]].fresh
                ready.append(number)
            elif waiting:
                ready.append(waiting.pop(0))
    measured.seconds = time.perf_counter() - begin
    return measured
