"""Packing loses nothing, keeps to its budget, and wastes little."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from frontrunner.algo.packing import MicroBatch, pack

lengths_lists = st.lists(st.integers(1, 600), max_size=60)
budgets = st.integers(1, 4000)


def row_tokens(micro: MicroBatch, lengths: list[int]) -> list[int]:
    return [sum(lengths[i] for i in row) for row in micro.rows]


def test_the_example_of_the_docstring() -> None:
    assert pack([5, 3, 2], 10) == [MicroBatch(5, ((0,), (1, 2)))]


def test_nothing_packs_to_nothing() -> None:
    assert pack([], 100) == []


@given(lengths_lists, budgets)
def test_every_sample_is_in_exactly_one_place(lengths: list[int], budget: int) -> None:
    placed = [i for micro in pack(lengths, budget) for row in micro.rows for i in row]
    assert sorted(placed) == list(range(len(lengths)))


@given(lengths_lists, budgets)
def test_no_row_is_wider_than_its_batch(lengths: list[int], budget: int) -> None:
    for micro in pack(lengths, budget):
        assert max(row_tokens(micro, lengths)) <= micro.width


@given(lengths_lists, budgets)
def test_the_width_is_that_of_the_longest_sample(lengths: list[int], budget: int) -> None:
    for micro in pack(lengths, budget):
        assert micro.width == max(lengths[i] for row in micro.rows for i in row)


@given(lengths_lists, budgets)
def test_a_batch_keeps_to_the_budget_unless_it_is_one_long_row(
    lengths: list[int], budget: int
) -> None:
    for micro in pack(lengths, budget):
        assert micro.num_tokens == micro.width * len(micro.rows)
        assert micro.num_tokens <= budget or len(micro.rows) == 1


@given(lengths_lists, budgets)
def test_there_are_no_empty_rows_or_batches(lengths: list[int], budget: int) -> None:
    for micro in pack(lengths, budget):
        assert micro.rows
        assert all(micro.rows)


@given(lengths_lists, budgets)
def test_batches_come_from_wide_to_narrow(lengths: list[int], budget: int) -> None:
    widths = [micro.width for micro in pack(lengths, budget)]
    assert all(a >= b for a, b in pairwise(widths))


@given(lengths_lists, budgets)
def test_at_most_one_row_per_batch_is_less_than_half_full(lengths: list[int], budget: int) -> None:
    for micro in pack(lengths, budget):
        tokens = row_tokens(micro, lengths)
        assert sum(2 * t < micro.width for t in tokens) <= 1


@given(st.lists(st.integers(1, 600), max_size=60, unique=True), budgets, st.randoms())
def test_the_order_of_the_samples_does_not_matter(
    lengths: list[int], budget: int, rng: random.Random
) -> None:
    def by_length(given: list[int]) -> list[list[list[int]]]:
        return [[[given[i] for i in row] for row in m.rows] for m in pack(given, budget)]

    shuffled = rng.sample(lengths, len(lengths))
    assert by_length(shuffled) == by_length(lengths)


@given(lengths_lists, budgets)
def test_packing_is_repeatable(lengths: list[int], budget: int) -> None:
    assert pack(lengths, budget) == pack(lengths, budget)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=60), st.integers(64, 512))
def test_packing_never_computes_more_than_padding_would(lengths: list[int], budget: int) -> None:
    packed = sum(micro.num_tokens for micro in pack(lengths, budget))
    assert sum(lengths) <= packed <= len(lengths) * max(lengths)


def test_packing_saves_most_of_the_padding_on_skewed_lengths() -> None:
    rng = random.Random(0)
    lengths = [min(1024, int(rng.lognormvariate(4.5, 0.8)) + 1) for _ in range(256)]
    packed = sum(micro.num_tokens for micro in pack(lengths, 8192))
    assert packed <= 1.3 * sum(lengths)
    assert len(lengths) * max(lengths) > 4 * sum(lengths)
