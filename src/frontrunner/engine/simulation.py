"""What a scheduling policy would gain, before a machine is asked: the real scheduler and the real
prefill delayer on a virtual clock, with a measured price per pass.

    pass seconds = (prefill_base if it holds prompts else decode_base)
                   + prefill_token * prompt tokens + decode_row * decoding rows

The load is agents: each asks, waits for its tool, and asks again with a longer context, until its
turns are over and the next agent takes its place. Nothing here is random beyond the seed.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

from frontrunner.engine.kv_cache import PagePool
from frontrunner.engine.prefill_delayer import PrefillDelayer
from frontrunner.engine.request import Row
from frontrunner.engine.scheduler import Plan, Scheduler
from frontrunner.protocols import GenerateRequest

STOP = 0
"""Token that ends a simulated answer."""


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Seconds of one pass; see the top of this file."""

    prefill_base: float
    prefill_token: float
    decode_base: float
    decode_row: float

    def seconds(self, plan: Plan) -> float:
        """What a pass takes."""
        prompt = sum(count for _, count in plan.chunks)
        base = self.prefill_base if plan.chunks else self.decode_base
        return base + self.prefill_token * prompt + self.decode_row * len(plan.singles)


@dataclass(frozen=True, slots=True)
class Agents:
    """A closed loop of agents. Means of exponential distributions where the name says mean."""

    concurrency: int
    num_agents: int
    turns: int = 8
    prompt_tokens: int = 200
    mean_answer: float = 30.0
    mean_observation: float = 40.0
    mean_tool_seconds: float = 0.5
    seed: int = 0


@dataclass(slots=True)
class Outcome:
    """What came of a simulation."""

    seconds: float = 0.0
    tokens: int = 0
    """Sampled."""
    passes: int = 0
    prefill_passes: int = 0
    first_token_seconds: list[float] = field(default_factory=list)
    """Per request, from its arrival."""
    held_passes: int = 0
    """Most passes for which one request was held."""

    @property
    def tokens_per_minute(self) -> float:
        return 60.0 * self.tokens / self.seconds

    def first_token_quantile(self, share: float) -> float:
        """Seconds to first token that this share of requests stays below."""
        ordered = sorted(self.first_token_seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class _Agent:
    """One conversation: its tokens so far, and what its turns will be."""

    def __init__(self, number: int, load: Agents) -> None:
        self.random = random.Random(load.seed * 1_000_003 + number)
        self.load, self.turns_left, self.answer_left = load, load.turns, 0
        shared = [1 + n % 97 for n in range(load.prompt_tokens // 2)]
        own = [self.random.randrange(100, 30_000) for _ in range(load.prompt_tokens // 2)]
        self.tokens = shared + own

    def ask(self, number: int, now: float) -> Row:
        """The request of the next turn."""
        self.turns_left -= 1
        self.answer_left = 1 + int(self.random.expovariate(1 / self.load.mean_answer))
        request = GenerateRequest(
            str(number), tuple(self.tokens), self.answer_left, 1.0, number, (STOP,)
        )
        return Row(request, number, now, list(self.tokens))

    def observe(self, row: Row) -> float:
        """Take the answer and the tool's output; returns the seconds that the tool took."""
        num = 1 + int(self.random.expovariate(1 / self.load.mean_observation))
        self.tokens = row.tokens + [self.random.randrange(100, 30_000) for _ in range(num)]
        return self.random.expovariate(1 / self.load.mean_tool_seconds)


def simulate(
    load: Agents,
    costs: CostProfile,
    *,
    delayer: PrefillDelayer | None = None,
    num_pages: int = 1 << 16,
    page_size: int = 128,
    max_batch: int = 1 << 10,
    prefill_tokens: int = 4096,
    mixed: bool = False,
) -> Outcome:
    """Run the load to its end."""
    scheduler = Scheduler(
        PagePool(num_pages, page_size),
        max_batch=max_batch,
        prefill_tokens=prefill_tokens,
        mixed=mixed,
        delayer=delayer,
    )
    outcome, now, asked = Outcome(), 0.0, 0
    agents = iter([_Agent(n, load) for n in range(load.num_agents)])
    started = [next(agents) for _ in range(min(load.concurrency, load.num_agents))]
    ready = [(0.0, number, agent) for number, agent in enumerate(started)]
    order, owners = len(ready), dict[int, _Agent]()
    while ready or scheduler.running or scheduler.waiting:
        if not scheduler.running and not scheduler.waiting:
            now = max(now, ready[0][0])
        while ready and ready[0][0] <= now:
            arrival, _, agent = heapq.heappop(ready)
            scheduler.submit(agent.ask(asked, arrival))
            owners[asked] = agent
            asked += 1
        plan = scheduler.plan(now)
        now += costs.seconds(plan)
        for row in _compute(scheduler, plan, now, outcome):
            agent = owners.pop(row.number)
            wait = agent.observe(row)
            if not agent.turns_left:
                successor = next(agents, None)
                if successor is None:
                    continue
                agent = successor
            heapq.heappush(ready, (now + wait, order, agent))
            order += 1
    outcome.seconds = now
    if delayer:
        outcome.held_passes = max(delayer.wait_passes, default=0)
    return outcome


def _compute(scheduler: Scheduler, plan: Plan, now: float, outcome: Outcome) -> list[Row]:
    """Stand in for the model: every sampling row gets a token. Returns the finished rows."""
    sampling = plan.sampling
    scheduler.advance(plan)
    outcome.passes += 1
    outcome.prefill_passes += bool(plan.chunks)
    outcome.tokens += len(sampling)
    finished = []
    for row in sampling:
        if not row.num_output:
            outcome.first_token_seconds.append(now - row.arrival_seconds)
        row.append(1 + row.num_tokens % 89, 0.0, (), scheduler.version)
        if row.finish:
            scheduler.finish(row, now)
            finished.append(row)
    return finished
