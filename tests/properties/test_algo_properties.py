"""Identities that hold for every group, whatever its rewards and lengths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontrunner.algo.advantage import advantages_of
from frontrunner.algo.baseline import BASELINES, Baseline, baseline
from frontrunner.algo.mismatch import kl_k3
from frontrunner.effort.reward import reward

rewards = st.floats(-5.0, 5.0)
lengths = st.integers(1, 50_000)
groups = st.lists(st.tuples(rewards, lengths), min_size=2, max_size=16)
kinds = st.sampled_from(BASELINES)

settings.register_profile("quick", max_examples=60, deadline=None)
settings.load_profile("quick")


def split(group: list[tuple[float, int]]) -> tuple[list[float], list[int]]:
    return [r for r, _ in group], [n for _, n in group]


@given(groups)
def test_length_weighted_advantages_balance_over_tokens(group: list[tuple[float, int]]) -> None:
    r, n = split(group)
    a = advantages_of(r, n, "length_weighted")
    assert abs(np.dot(n, a)) <= 1e-9 * np.dot(n, np.abs(r)) + 1e-9


@given(groups)
def test_the_mean_is_rloo_up_to_a_constant(group: list[tuple[float, int]]) -> None:
    r, n = split(group)
    mean, rloo = advantages_of(r, n, "mean"), advantages_of(r, n, "rloo")
    np.testing.assert_allclose(np.array(mean) * len(r) / (len(r) - 1), rloo, atol=1e-9)


@given(groups, kinds)
def test_leave_one_out_ignores_its_own_reward(
    group: list[tuple[float, int]], kind: Baseline
) -> None:
    r, n = split(group)
    b = baseline("length_weighted_loo", r, n)[0]
    assert baseline("length_weighted_loo", [r[0] + 3.0, *r[1:]], n)[0] == b


@given(groups, kinds, st.randoms())
def test_permuting_a_group_permutes_its_advantages(
    group: list[tuple[float, int]], kind: Baseline, random: "np.random.Generator"
) -> None:
    order = list(range(len(group)))
    random.shuffle(order)
    r, n = split(group)
    a = np.array(advantages_of(r, n, kind))
    moved = advantages_of([r[i] for i in order], [n[i] for i in order], kind)
    np.testing.assert_allclose(moved, a[order], atol=1e-9)


@given(groups, kinds, st.floats(-3.0, 3.0))
def test_advantages_ignore_a_shift_and_follow_a_scale(
    group: list[tuple[float, int]], kind: Baseline, shift: float
) -> None:
    r, n = split(group)
    a = np.array(advantages_of(r, n, kind))
    np.testing.assert_allclose(advantages_of([x + shift for x in r], n, kind), a, atol=1e-9)
    np.testing.assert_allclose(advantages_of([2.0 * x for x in r], n, kind), 2.0 * a, atol=1e-9)


@given(st.lists(st.tuples(st.floats(0.001, 1.0), lengths), min_size=2, max_size=8), kinds)
def test_lambda_does_not_cancel_when_all_are_solved(
    group: list[tuple[float, int]], kind: Baseline
) -> None:
    costs, n = split(group)
    small = np.array(advantages_of([reward(1.0, c, 0.1) for c in costs], n, kind))
    large = np.array(advantages_of([reward(1.0, c, 1.0) for c in costs], n, kind))
    np.testing.assert_allclose(large, 10.0 * small, atol=1e-9)


@given(rewards, st.integers(0, 1000), kinds)
def test_a_group_of_one_has_no_advantage(r: float, n: int, kind: Baseline) -> None:
    assert advantages_of([r], [n], kind) == (0.0,)


@given(st.floats(0, 1), st.floats(0, 10), st.floats(0, 10), st.floats(0, 1), st.floats(0, 1))
def test_reward_is_affine_and_monotone(
    s: float, c: float, lam: float, other: float, weight: float
) -> None:
    mixed = reward(weight * s + (1 - weight) * other, weight * c + (1 - weight) * 1.0, lam)
    parts = weight * reward(s, c, lam) + (1 - weight) * reward(other, 1.0, lam)
    assert mixed == pytest.approx(parts, abs=1e-9)
    assert reward(s, c + 1.0, lam) <= reward(s, c, lam)
    assert reward(s, c, lam + 1.0) <= reward(s, c, lam) <= reward(s + 0.1, c, lam)


@given(st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1, max_size=50))
def test_k3_is_never_negative(pairs: list[tuple[float, float]]) -> None:
    assert kl_k3([a for a, _ in pairs], [b for _, b in pairs]) >= 0.0
