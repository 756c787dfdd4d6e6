import numpy as np
import pytest
import torch

from frontrunner.algo.baseline import History, aggregated, effective_size, shrunk, weighted
from frontrunner.algo.score_norm import (
    effective_length,
    entropies,
    last_layer_norm,
    logit_norms,
)


def test_norms_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(7, 5, dtype=torch.float64)
    layer = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(0, 11, (7,))
    logits = hidden @ layer.T
    logits.retain_grad()
    logprobs = torch.log_softmax(logits, -1)
    logprobs[torch.arange(7), tokens].sum().backward()
    assert layer.grad is not None and logits.grad is not None
    rows, y = logprobs.detach().numpy(), tokens.numpy()
    np.testing.assert_allclose(logit_norms(rows, y), (logits.grad**2).sum(-1).numpy())
    exact = float((layer.grad**2).sum())
    assert last_layer_norm(rows, y, hidden.numpy()) == pytest.approx(exact)
    one = last_layer_norm(rows[:1], y[:1], hidden[:1].numpy())
    assert one == pytest.approx(logit_norms(rows[:1], y[:1])[0] * float((hidden[0] ** 2).sum()))


def test_expected_logit_norm_is_one_less_collision_probability() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(6))
    each = logit_norms(np.log(np.repeat(p[None], 6, 0)), np.arange(6))
    assert p @ each == pytest.approx(1.0 - (p**2).sum())


def test_tokens_without_alternative_count_nothing() -> None:
    assert effective_length([1, 5, 2, 1]) == 2
    sure = np.array([[0.0, -np.inf]])
    assert entropies(sure)[0] == 0.0 == logit_norms(sure, np.array([0]))[0]


def test_weights_follow_the_aggregation_of_the_loss() -> None:
    lengths = np.array([10.0, 40.0])
    np.testing.assert_allclose(aggregated(lengths, np.ones(2)), lengths)
    np.testing.assert_allclose(aggregated(lengths, lengths**-0.5), [1.0, 1.0])
    np.testing.assert_allclose(aggregated(lengths, 1.0 / lengths), 1.0 / lengths)


def best_constant(rewards: np.ndarray, scores: np.ndarray) -> float:
    """Minimiser over b of the variance of (R - b) z, by grid."""
    grid = np.linspace(-1.0, 2.0, 3001)
    spread = [((rewards - b) * scores).var() for b in grid]
    return float(grid[int(np.argmin(spread))])


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_aggregated_weights_give_the_best_constant(beta: float) -> None:
    rng = np.random.default_rng(1)
    lengths = rng.lognormal(4.0, 0.7, 200_000)
    rewards = (rng.random(len(lengths)) < 60.0 / (60.0 + lengths)).astype(float)
    scales = lengths**-beta
    scores = scales * np.sqrt(lengths) * rng.standard_normal(len(lengths))
    b = weighted(rewards, aggregated(lengths, scales))[0]
    assert b == pytest.approx(best_constant(rewards, scores), abs=0.03)


def test_shrinkage_by_hand_and_at_its_ends() -> None:
    r, w = [1.0, 0.0, 0.5], [1.0, 1.0, 2.0]
    loo = weighted(r, w, leave_one_out=True)
    np.testing.assert_allclose(shrunk(r, w, History(0.3, 0.0, 1.0)), loo)
    np.testing.assert_allclose(shrunk(r, w, History(0.3, 1.0, 0.0)), [0.3] * 3)
    half = shrunk([1.0, 0.0], [1.0, 1.0], History(0.4, 0.2, 0.2))
    np.testing.assert_allclose(half, [0.5 * 0.0 + 0.2, 0.5 * 1.0 + 0.2])
    assert shrunk([1.0], [3.0], History(0.4, 0.2, 0.2))[0] == 0.4
    assert effective_size(np.array([2.0, 2.0, 2.0])) == pytest.approx(3.0)


def test_variance_components_are_recovered_and_shrinkage_pays_in_small_groups() -> None:
    rng = np.random.default_rng(2)

    def groups(num: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        true = 0.5 + 0.1 * rng.standard_normal((num, 1))
        return true + 0.4 * rng.standard_normal((num, n)), true

    past, _ = groups(3000, 4)
    ones = np.ones(4)
    found = History.of([(list(r), list(ones)) for r in past])
    assert found.mean == pytest.approx(0.5, abs=0.02)
    assert found.within == pytest.approx(0.16, rel=0.05)
    assert found.between == pytest.approx(0.01, rel=0.35)
    new, _ = groups(4000, 4)
    score = rng.standard_normal(new.shape)
    pairs = list(zip(new, score, strict=True))
    estimates = {
        "loo": [((r - weighted(r, ones, leave_one_out=True)) * z).mean() for r, z in pairs],
        "shrunk": [((r - shrunk(r, ones, found)) * z).mean() for r, z in pairs],
    }
    error = np.std(estimates["shrunk"]) / np.sqrt(len(new))
    assert abs(np.mean(estimates["shrunk"])) < 3.5 * error
    assert np.var(estimates["shrunk"]) < 0.9 * np.var(estimates["loo"])
    with pytest.raises(ValueError, match="2 groups"):
        History.of([([1.0, 0.0], [1.0, 1.0])])
