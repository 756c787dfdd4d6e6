from dataclasses import replace

import numpy as np
import pytest

from frontrunner.algo.advantage import advantages, advantages_of
from frontrunner.algo.baseline import baseline
from frontrunner.algo.mismatch import importance_weights, kl_k1, kl_k3, mismatch
from frontrunner.types import Group, Rollout, Turn, Usage, Verdict


def rollout(reward: float | None, num_tokens: int, num_turns: int = 1) -> Rollout:
    sizes = [len(part) for part in np.array_split(np.arange(num_tokens), num_turns)]
    turns = tuple(
        Turn((1, 2), (3,) * n, (-0.1,) * n, 0, "", "edit", "", Usage(output=n)) for n in sizes
    )
    verdict = Verdict("graded", 1.0, "solved")
    return Rollout("t", "low", 0, turns, "submitted", {}, verdict, cost=0.1, reward=reward)


def test_worked_example() -> None:
    rewards, lengths = [1.0, 0.0], [100.0, 300.0]
    np.testing.assert_allclose(baseline("length_weighted", rewards, lengths), [0.25, 0.25])
    np.testing.assert_allclose(baseline("length_weighted_loo", rewards, lengths), [0.0, 1.0])
    np.testing.assert_allclose(baseline("mean", rewards, lengths), [0.5, 0.5])
    np.testing.assert_allclose(baseline("rloo", rewards, lengths), [0.0, 1.0])


def test_a_group_counts_sampled_tokens_of_all_its_turns() -> None:
    group = Group("t", "low", (rollout(1.0, 100), rollout(0.0, 300)))
    assert advantages(group) == (0.75, -0.25)


def test_splitting_a_trajectory_into_segments_changes_nothing() -> None:
    whole = Group("t", "low", (rollout(1.0, 120), rollout(0.2, 300), rollout(0.0, 50)))
    split = Group("t", "low", (rollout(1.0, 120, 7), rollout(0.2, 300, 3), rollout(0.0, 50, 10)))
    assert advantages(whole) == advantages(split)


def test_empty_trajectories_do_not_divide_by_zero() -> None:
    assert advantages_of([0.4, 0.2], [0, 0]) == pytest.approx((0.1, -0.1))
    assert advantages_of([0.4, 0.2], [0, 5], "length_weighted_loo") == pytest.approx((0.2, -0.2))
    assert advantages(Group("t", "low", ())) == ()


def test_mixed_or_ungraded_groups_are_refused() -> None:
    good = rollout(1.0, 10)
    for bad in (
        replace(good, effort="high"),
        replace(good, task_id="u"),
        replace(good, reward=None),
        replace(good, verdict=Verdict("invalid", 0.0, "box failed")),
    ):
        with pytest.raises(ValueError, match="group"):
            advantages(Group("t", "low", (good, bad)))
    with pytest.raises(ValueError, match="Unknown baseline"):
        baseline("median", [1.0, 2.0], [1.0, 1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one length per reward"):
        baseline("mean", [1.0, 2.0], [1.0])


def test_leave_one_out_is_unbiased_and_length_weights_cut_the_variance() -> None:
    """A policy over two outcomes, one long and failing; the score's norm grows with length."""
    rng = np.random.default_rng(0)
    num_groups, n, p = 20_000, 6, 0.4
    solved = rng.random((num_groups, n)) < p
    lengths = np.where(solved, 100.0, 400.0)
    rewards = solved - 0.0005 * lengths
    # A direction in which every token pushes at random: E[score] = 0, E[score^2] = length.
    score = rng.standard_normal((num_groups, n)) * np.sqrt(lengths) + (solved - p)
    truth = (rewards * (solved - p)).mean()
    variance = {}
    for kind in ("length_weighted_loo", "rloo"):
        a = np.array(
            [advantages_of(r, w, kind) for r, w in zip(rewards, lengths, strict=True)]  # type: ignore[arg-type]
        )
        gradient = (a * score).mean(axis=1)
        error = gradient.std() / np.sqrt(num_groups)
        assert abs(gradient.mean() - truth) < 3.5 * error
        variance[kind] = gradient.var()
    assert variance["length_weighted_loo"] < 0.95 * variance["rloo"]


def test_mismatch_of_identical_engines_is_zero_and_grows_with_the_gap() -> None:
    logp = np.log(np.random.default_rng(0).dirichlet(np.ones(8), 500).max(axis=1))
    assert mismatch(logp, logp).metrics() == {
        "mismatch/k1": 0.0,
        "mismatch/k3": 0.0,
        "mismatch/max_abs": 0.0,
        "mismatch/mean_abs": 0.0,
        "mismatch/truncated": 0.0,
        "mismatch/num_tokens": 500.0,
    }
    assert mismatch([-1.0, -2.0], [-1.5, -2.0]).max_abs == 0.5
    assert mismatch([], []).num_tokens == 0


def test_kl_estimators_agree_with_the_exact_divergence() -> None:
    rng = np.random.default_rng(1)
    mu, pi = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
    exact = float(np.sum(mu * np.log(mu / pi)))
    tokens = rng.choice(3, 400_000, p=mu)
    sampler, trainer = np.log(mu)[tokens], np.log(pi)[tokens]
    assert kl_k1(sampler, trainer) == pytest.approx(exact, abs=1.5e-3)
    assert kl_k3(sampler, trainer) == pytest.approx(exact, abs=5e-4)


def test_importance_weights_are_truncated_and_finite() -> None:
    weights = importance_weights([-1.0, -50.0, -1.0], [-1.0, -1.0, -3.0], cap=2.0)
    np.testing.assert_allclose(weights, [1.0, 2.0, np.exp(-2.0)])
    assert np.isfinite(importance_weights([-1e4], [-1.0])).all()
    with pytest.raises(ValueError, match="equal length"):
        importance_weights([-1.0], [-1.0, -2.0])
