"""The prefill delayer: when it holds, when it must not, and its worth on a virtual clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontrunner.engine.prefill_delayer import PrefillDelayer, PrefillView
from frontrunner.engine.simulation import Agents, CostProfile, Outcome, simulate

BUSY = PrefillView(
    now=10.0,
    num_running=40,
    free_rows=24,
    num_waiting=1,
    waiting_tokens=30,
    prefill_tokens=4096,
    oldest=7,
    oldest_seconds=9.9,
)
GPU = CostProfile(prefill_base=0.03, prefill_token=2e-5, decode_base=0.015, decode_row=1e-4)
CHEAP_PREFILL = CostProfile(0.001, 2e-4, 0.004, 1e-4)
MANY = Agents(64, 80, turns=5)


def delayer(arrivals: int = 20, gap: float = 0.05, **settings: Any) -> PrefillDelayer:
    """One that has seen requests arrive every `gap` seconds until second 9.9."""
    made = PrefillDelayer(**settings)
    for number in range(arrivals):
        made.arrived(9.9 - gap * (arrivals - 1 - number))
    return made


def test_it_holds_a_lone_prompt_while_many_decode_and_more_are_near() -> None:
    assert not delayer().decide(BUSY)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_running": 0}, "idle"),
        ({"continues": True}, "continues"),
        ({"usage": 0.1}, "low_usage"),
        ({"num_waiting": 10}, "batch_full"),
        ({"waiting_tokens": 5000}, "batch_full"),
        ({"oldest_seconds": 8.9}, "max_seconds"),
    ],
)
def test_it_never_holds(change: dict[str, Any], reason: str) -> None:
    policy = delayer(low_usage=0.2)
    assert policy.decide(replace(BUSY, **change))
    assert policy.outcomes == {reason: 1}


def test_it_does_not_hold_when_nobody_is_expected() -> None:
    assert delayer(gap=3.0).decide(BUSY)
    assert delayer(arrivals=1).decide(BUSY)
    # a burst long ago says nothing about now
    assert delayer().decide(replace(BUSY, now=12.0, oldest_seconds=11.9))


def test_few_free_rows_wait_for_departures_not_arrivals() -> None:
    policy = delayer(gap=3.0)
    view = replace(BUSY, num_running=62, free_rows=2, num_waiting=50)
    assert policy.decide(view)
    for number in range(20):
        policy.departed(9.5 + 0.02 * number)
    assert not policy.decide(view)


def test_a_head_without_room_in_the_cache_is_not_counted_as_held() -> None:
    policy = delayer()
    for _ in range(100):
        assert policy.decide(replace(BUSY, blocked_by_kv=True))
    assert policy.outcomes == {"blocked_by_kv": 100}
    assert not policy.wait_passes


def test_the_limits_belong_to_the_oldest_request() -> None:
    policy = delayer(max_passes=3, max_seconds=100.0)
    assert [policy.decide(BUSY) for _ in range(5)] == [False, False, False, True, False]
    assert policy.wait_passes == {3: 1}
    # its head gone (aborted), the next one starts to count anew
    assert not policy.decide(replace(BUSY, oldest=8))
    assert [policy.decide(replace(BUSY, oldest=9)) for _ in range(4)] == [False] * 3 + [True]


def test_the_clock_releases_when_passes_do_not() -> None:
    policy = delayer(max_passes=10**6, max_seconds=0.5)
    view = replace(BUSY, oldest_seconds=10.0)
    for number in range(20):
        policy.arrived(10.0 + number * 0.025)
    assert not policy.decide(replace(view, now=10.4))
    assert policy.decide(replace(view, now=10.5))
    assert policy.metrics()["prefill_max_seconds"] == 1.0


def test_reset_forgets_timers_and_estimates() -> None:
    policy = delayer()
    assert not policy.decide(BUSY)
    policy.reset()
    assert policy.decide(BUSY)


@settings(max_examples=200, deadline=None)
@given(
    passes=st.integers(0, 20),
    seconds=st.floats(0.01, 5.0),
    ratio=st.floats(0.01, 1.0),
    views=st.lists(
        st.tuples(st.floats(0.001, 1.0), st.integers(1, 64), st.integers(1, 9)), max_size=80
    ),
)
def test_no_request_is_held_beyond_its_limits(
    passes: int, seconds: float, ratio: float, views: list[tuple[float, int, int]]
) -> None:
    policy = PrefillDelayer(max_passes=passes, max_seconds=seconds, queue_ratio=ratio)
    now, held, since, oldest = 0.0, 0, 0.0, 0
    for wait, running, waiting in views:
        now += wait
        policy.arrived(now)
        view = replace(
            BUSY,
            now=now,
            num_running=running,
            num_waiting=waiting,
            oldest=oldest,
            oldest_seconds=since,
        )
        if policy.decide(view):
            held, oldest, since = 0, oldest + 1, now
        else:
            held += 1
            assert held <= passes
            assert now - since < seconds


def outcome(load: Agents, costs: CostProfile, *, delay: bool) -> Outcome:
    policy = PrefillDelayer(max_passes=30, max_seconds=1.0, queue_ratio=0.25) if delay else None
    return simulate(load, costs, delayer=policy)


def test_where_prefills_interrupt_decodes_it_gains_a_tenth_at_least() -> None:
    plain, held = outcome(MANY, GPU, delay=False), outcome(MANY, GPU, delay=True)
    assert held.tokens == plain.tokens
    assert held.tokens_per_minute > 1.1 * plain.tokens_per_minute
    assert held.held_passes <= 30


@pytest.mark.parametrize(
    ("load", "costs"),
    [
        (Agents(1, 3), GPU),
        (Agents(4, 12), GPU),
        (MANY, CHEAP_PREFILL),
        (replace(MANY, mean_tool_seconds=20.0, num_agents=64), GPU),
    ],
)
def test_where_it_cannot_help_it_costs_little(load: Agents, costs: CostProfile) -> None:
    plain, held = outcome(load, costs, delay=False), outcome(load, costs, delay=True)
    assert held.tokens_per_minute > 0.98 * plain.tokens_per_minute


def test_an_idle_engine_answers_at_once() -> None:
    one = Agents(1, 5)
    plain, held = outcome(one, GPU, delay=False), outcome(one, GPU, delay=True)
    assert held.first_token_seconds == plain.first_token_seconds


def test_a_simulation_repeats_itself() -> None:
    assert outcome(MANY, GPU, delay=True) == outcome(MANY, GPU, delay=True)
