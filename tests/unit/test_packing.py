"""Packing loses nothing, lets every token see its own past alone, and computes nothing twice."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frontrunner.algo.packing import MIN_SHARED, Pack, pack, pad

lengths_lists = st.lists(st.integers(1, 600), max_size=60)
budgets = st.integers(1, 4000)


@st.composite
def related_sequences(draw: st.DrawFn) -> list[list[int]]:
    """Sequences that part from one another at all depths, at some of them twice."""
    trunks = draw(st.lists(st.lists(st.integers(0, 2), min_size=30, max_size=40), max_size=3))
    tails = st.lists(st.integers(0, 1), min_size=1, max_size=12)
    sequences = draw(st.lists(tails, max_size=4))
    for _ in range(draw(st.integers(0, 8))):
        if trunks:
            trunk = draw(st.sampled_from(trunks))
            sequences.append(trunk[: draw(st.integers(1, len(trunk)))] + draw(tails))
            trunks.append(sequences[-1])
    return sequences


def tokens_of(sequences: list[list[int]], plan: Pack) -> list[int]:
    ids = [-1] * plan.num_tokens
    for index, path in zip(plan.members, plan.paths, strict=True):
        for place, token in zip(path.tolist(), sequences[index], strict=True):
            assert ids[place] in (-1, token), "two tokens in one place"
            ids[place] = token
    return ids


def test_the_example_of_the_docstring() -> None:
    opening = list(range(10, 20))
    (plan,) = pack([[*opening, 1, 2], [*opening, 1, 3], [*opening, 4, 5]], 100)
    assert plan.num_tokens == 15
    assert plan.ends is not None
    assert plan.ends.tolist() == [15] * 10 + [13, 12, 13, 15, 15]
    assert [p.tolist()[10:] for p in plan.paths] == [[10, 11], [10, 12], [13, 14]]


def test_nothing_packs_to_nothing() -> None:
    assert pack([], 100) == []
    assert pad([], 100) == []


@given(related_sequences(), budgets)
def test_unpacking_gives_every_sequence_back(sequences: list[list[int]], budget: int) -> None:
    seen = []
    for plan in pack(sequences, budget):
        assert -1 not in tokens_of(sequences, plan)
        seen += plan.members
    assert sorted(seen) == list(range(len(sequences)))


@given(related_sequences(), budgets)
def test_a_token_attends_to_its_own_past_and_nothing_else(
    sequences: list[list[int]], budget: int
) -> None:
    for plan in pack(sequences, budget):
        assert plan.ends is not None
        for path in plan.paths:
            for depth, place in enumerate(path.tolist()):
                visible = np.flatnonzero(plan.ends[: place + 1] > place)
                assert visible.tolist() == path[: depth + 1].tolist()


@given(related_sequences(), budgets)
def test_a_pack_keeps_to_the_budget_unless_it_is_one_long_sequence(
    sequences: list[list[int]], budget: int
) -> None:
    for plan in pack(sequences, budget):
        assert plan.num_tokens <= budget or len(plan.members) == 1


@given(related_sequences(), st.randoms())
def test_the_order_of_the_sequences_does_not_matter(
    sequences: list[list[int]], rng: random.Random
) -> None:
    def content(given: list[list[int]]) -> list[list[int]]:
        return [tokens_of(given, plan) for plan in pack(given, 60)]

    assert content(rng.sample(sequences, len(sequences))) == content(sequences)


def test_the_opening_of_a_group_is_computed_once() -> None:
    opening = list(range(100))
    group = [[*opening, 200 + n, *range(300, 320)] for n in range(8)]
    (plan,) = pack(group, 10_000)
    assert plan.num_tokens == 100 + 8 * 21


def test_rollouts_that_part_late_share_their_first_turns_too() -> None:
    opening, turn = list(range(100)), list(range(100, 150))
    group = [[*opening, 1], [*opening, *turn, 2], [*opening, *turn, 3]]
    (plan,) = pack(group, 10_000)
    assert plan.num_tokens == 100 + 50 + 3


def test_equal_rollouts_are_computed_once() -> None:
    (plan,) = pack([list(range(20))] * 4, 1000)
    assert plan.num_tokens == 20


def test_a_short_common_beginning_is_computed_again() -> None:
    start = list(range(MIN_SHARED - 1))
    (plan,) = pack([[*start, 50], [*start, 51]], 1000)
    assert plan.num_tokens == 2 * MIN_SHARED


def test_a_group_that_exceeds_the_budget_repeats_its_opening() -> None:
    opening = list(range(50))
    group = [[*opening, *range(100 + 20 * n, 120 + 20 * n)] for n in range(4)]
    assert [plan.num_tokens for plan in pack(group, 90)] == [90, 90]


@given(lengths_lists, budgets)
def test_padded_rows_hold_every_sequence_once(lengths: list[int], budget: int) -> None:
    seen = []
    for plan in pad(lengths, budget):
        rows, width = plan.shape
        assert plan.ends is None
        assert rows == len(plan.members)
        assert width == max(lengths[i] for i in plan.members)
        for row, (index, path) in enumerate(zip(plan.members, plan.paths, strict=True)):
            assert path.tolist() == list(range(row * width, row * width + lengths[index]))
        seen += plan.members
    assert sorted(seen) == list(range(len(lengths)))


@given(lengths_lists, budgets)
def test_padded_rows_keep_to_the_budget(lengths: list[int], budget: int) -> None:
    for plan in pad(lengths, budget):
        assert plan.num_tokens <= budget or len(plan.members) == 1


def test_sorting_by_length_saves_most_of_the_padding() -> None:
    rng = random.Random(0)
    lengths = [min(1024, int(rng.lognormvariate(4.5, 0.8)) + 1) for _ in range(256)]
    padded = sum(plan.num_tokens for plan in pad(lengths, 8192))
    assert padded <= 1.4 * sum(lengths)
    assert len(lengths) * max(lengths) > 4 * sum(lengths)
