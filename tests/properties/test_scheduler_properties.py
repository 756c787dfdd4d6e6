"""The scheduler under arbitrary traffic: no page leaks, none is freed twice, nothing stale is used,
and nobody waits for ever. Runs without a model: tokens are made up, and a shadow memory notes what
every place of the cache was computed from."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from frontrunner.engine.kv_cache import PagePool
from frontrunner.engine.prefill_delayer import PrefillDelayer
from frontrunner.engine.request import Row
from frontrunner.engine.scheduler import Plan, Scheduler
from frontrunner.errors import UserError
from frontrunner.protocols import GenerateRequest

PAGE = 4


class Traffic:
    """A scheduler, a clock, and a memory that holds (version, tokens up to here) per place."""

    def __init__(self, pages: int, **settings: Any) -> None:
        self.scheduler = Scheduler(PagePool(pages, PAGE), **settings)
        self.memory: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.names, self.now = count(), 0.0
        self.answers: list[list[int]] = []
        self.keeps_old = False

    def submit(self, tokens: list[int], limit: int) -> Row | None:
        number = next(self.names)
        request = GenerateRequest(str(number), tuple(tokens), limit, 1.0, 0, (0,))
        row = Row(request, number, self.now, list(tokens))
        try:
            self.scheduler.submit(row)
        except UserError:
            pages = self.scheduler.pool.pages_for(len(tokens) + limit - 1)
            assert pages > self.scheduler.pool.num_pages
            return None
        return row

    def step(self, tokens: Any) -> Plan:
        self.now += 1.0
        plan = self.scheduler.plan(self.now)
        for source, target in plan.copies:
            for old, new in zip(source, target, strict=True):
                for i in range(PAGE):
                    held = self.memory.get(old * PAGE + i, (-1, ()))
                    self.memory[new * PAGE + i] = held
        for row, num in [(r, 1) for r in plan.singles] + plan.chunks:
            self.compute(row, num)
        sampling = plan.sampling
        self.scheduler.advance(plan)
        for row in sampling:
            row.append(tokens(row), -1.0, (), self.scheduler.version)
            if row.finish:
                self.answers.append(list(row.tokens))
                self.scheduler.finish(row, self.now)
        return plan

    def compute(self, row: Row, num: int) -> None:
        """Read everything before, as attention does, then write the row's new tokens."""
        for at in range(row.num_computed):
            version, context = self.memory[self.place(row, at)]
            assert context == tuple(row.tokens[: at + 1])
            assert self.keeps_old or version == self.scheduler.version
        for at in range(row.num_computed, row.num_computed + num):
            known = (self.scheduler.version, tuple(row.tokens[: at + 1]))
            self.memory[self.place(row, at)] = known

    @staticmethod
    def place(row: Row, at: int) -> int:
        return row.pages[at // PAGE] * PAGE + at % PAGE

    def check(self) -> None:
        scheduler = self.scheduler
        owned = [p for r in scheduler.running for p in r.pages]
        owned += [p for entry in scheduler.prefix.cached for p in entry.pages]
        assert len(owned) == len(set(owned))
        assert len(owned) + scheduler.pool.num_free == scheduler.pool.num_pages
        assert all(not r.pages and not r.num_computed for r in scheduler.waiting)
        assert len(scheduler.running) <= scheduler.max_batch
        for entry in scheduler.prefix.cached:
            for at in range(entry.num_computed):
                place = entry.pages[at // PAGE] * PAGE + at % PAGE
                known = (scheduler.version, tuple(entry.tokens[: at + 1]))
                assert self.memory[place] == known

    def drain(self, limit: int = 10_000) -> None:
        while self.scheduler.running or self.scheduler.waiting:
            limit -= 1
            assert limit, "somebody waits for ever"
            self.step(lambda row: 1 + row.num_tokens % 3)
            self.check()


SIZES = st.integers(1, 40)


class Machine(RuleBasedStateMachine):
    """Any order of requests, next turns, passes, aborts, preemptions and updates."""

    @initialize(
        pages=st.integers(6, 24),
        batch=st.integers(1, 5),
        budget=st.integers(1, 30),
        reserve=st.sampled_from([0.0, 0.3, 1.0]),
        mixed=st.booleans(),
        delays=st.booleans(),
    )
    def start(
        self, pages: int, batch: int, budget: int, reserve: float, mixed: bool, delays: bool
    ) -> None:
        self.traffic = Traffic(
            pages,
            max_batch=batch,
            prefill_tokens=budget,
            reserve=reserve,
            mixed=mixed,
            delayer=PrefillDelayer(max_passes=3, max_seconds=9.0) if delays else None,
        )

    @rule(size=SIZES, limit=st.integers(1, 30), shared=st.integers(0, 40))
    def submit(self, size: int, limit: int, shared: int) -> None:
        own = [5 + (size * n) % 3 for n in range(size)]
        self.traffic.submit([7] * shared + own, limit)

    @rule(which=st.integers(0, 100), size=st.integers(0, 9), limit=st.integers(1, 20))
    def next_turn(self, which: int, size: int, limit: int) -> None:
        answers = self.traffic.answers
        if answers:
            self.traffic.submit(answers[which % len(answers)] + [8] * size, limit)

    @rule(passes=st.integers(1, 8), stop=st.integers(0, 6))
    def step(self, passes: int, stop: int) -> None:
        for _ in range(passes):
            self.traffic.step(lambda row: 0 if row.num_tokens % 7 == stop else 1 + stop)

    @rule(which=st.integers(0, 100))
    def abort(self, which: int) -> None:
        rows = [*self.traffic.scheduler.running, *self.traffic.scheduler.waiting]
        if rows:
            self.traffic.scheduler.drop(rows[which % len(rows)])

    @rule()
    def preempt_newest(self) -> None:
        running = self.traffic.scheduler.running
        if running:
            self.traffic.scheduler.preempt(max(running, key=lambda r: r.number))

    @rule(recompute=st.booleans())
    def update(self, recompute: bool) -> None:
        scheduler = self.traffic.scheduler
        for row in sorted(scheduler.running, key=lambda r: -r.number) if recompute else ():
            scheduler.preempt(row)
        self.traffic.keeps_old |= bool(scheduler.running)
        scheduler.forget(scheduler.version + 1)

    @invariant()
    def pages_are_accounted_for(self) -> None:
        if hasattr(self, "traffic"):
            self.traffic.check()

    def teardown(self) -> None:
        if hasattr(self, "traffic"):
            self.traffic.drain()
            self.traffic.scheduler.forget(99)
            pool = self.traffic.scheduler.pool
            assert pool.num_free == pool.num_pages


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=30),
    reserve=st.sampled_from([0.0, 0.5, 1.0]),
    budget=st.integers(1, 64),
    delays=st.booleans(),
)
def test_every_request_ends_in_bounded_time(
    sizes: list[tuple[int, int]], reserve: float, budget: int, delays: bool
) -> None:
    delayer = PrefillDelayer(max_passes=2, max_seconds=5.0) if delays else None
    traffic = Traffic(24, max_batch=4, prefill_tokens=budget, reserve=reserve, delayer=delayer)
    for number, (size, limit) in enumerate(sizes):
        traffic.submit([10 + number] * size, limit)
    traffic.drain()
    assert len(traffic.answers) == sum(
        -(-(size + limit - 1) // PAGE) <= 24 for size, limit in sizes
    )


def test_a_large_request_is_not_overtaken_for_ever_by_small_ones() -> None:
    traffic = Traffic(10, max_batch=4, prefill_tokens=16)
    for number in range(3):
        traffic.submit([20 + number] * 4, 8)
    large = traffic.submit([5] * 20, 20)
    assert large is not None
    passes = 0
    while not large.finish:
        passes += 1
        assert passes < 100
        if passes % 2:
            traffic.submit([40 + passes % 50] * 4, 8)
        traffic.step(lambda row: 1)
        traffic.check()


def test_decoding_goes_on_beside_an_endless_queue_of_prompts() -> None:
    traffic = Traffic(200, max_batch=8, prefill_tokens=8, mixed=False)
    first = traffic.submit([5] * 4, 20)
    assert first is not None
    passes = 0
    while not first.finish:
        passes += 1
        traffic.submit([6 + passes] * 8, 1)
        traffic.step(lambda row: 1)
    assert passes <= 45  # at most one pass of prompts between two of decoding


@pytest.mark.parametrize("reserve", [0.0, 1.0])
def test_the_oldest_row_is_never_preempted(reserve: float) -> None:
    traffic = Traffic(12, max_batch=6, prefill_tokens=64, reserve=reserve)
    rows = [traffic.submit([10 + n] * 6, 30) for n in range(6)]
    traffic.drain()
    assert rows[0] is not None
    assert rows[0].num_preempted == 0
    preempted = traffic.scheduler.counts["preempted"]
    assert preempted == 0 if reserve == 1.0 else 0 < preempted < 30
