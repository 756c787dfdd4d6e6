"""Exact score norms agree with a plain backward pass, and the estimates with their definitions."""

import pytest
import torch

from frontrunner.testing import tiny_model
from frontrunner.train.norms import proxies, squared_norms
from frontrunner.types import Sample

IDS = tuple(range(5, 17))
MASK = tuple(t % 3 != 0 for t in range(12))
SAMPLE = Sample(IDS, MASK, (0.0,) * 12, 0.0, "low", 0)


def test_squared_norm_is_that_of_a_plain_backward_pass() -> None:
    model = tiny_model()
    logits = model(input_ids=torch.tensor([IDS])).logits[0, :-1] / 0.7
    chosen = torch.log_softmax(logits, -1).gather(-1, torch.tensor(IDS)[1:, None])[:, 0]
    chosen[torch.tensor(MASK[1:])].sum().backward()
    expected = sum(float(p.grad.square().sum()) for p in model.parameters())
    model.zero_grad()
    (found,) = squared_norms(model, [SAMPLE], 0.7)
    assert found == pytest.approx(expected, rel=1e-4)
    assert all(p.grad is None for p in model.parameters())


def test_a_rollout_without_trained_tokens_has_no_score() -> None:
    silent = Sample(IDS, (False,) * 12, (0.0,) * 12, 0.0, "low", 0)
    assert list(squared_norms(tiny_model(), [silent], 1.0)) == [0.0]


def test_estimates_count_the_trained_tokens() -> None:
    found = proxies(tiny_model(), SAMPLE, 1.0)
    assert found["length"] == sum(MASK[1:])
    assert 0.0 < found["logit_norm"] <= 2.0 * found["length"] and found["entropy"] > 0.0
