"""Log-probabilities in chunks against those from all logits at once."""

from __future__ import annotations

import pytest
import torch

from frontrunner.train import logprobs
from frontrunner.train.logprobs import projected_logprobs, token_logprobs

POSITIONS, WIDTH, VOCABULARY = 23, 8, 31


def inputs(bias: bool, dtype: torch.dtype = torch.float32) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    hidden = torch.randn(POSITIONS, WIDTH, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, dtype=dtype, requires_grad=True)
    offset = torch.randn(VOCABULARY, dtype=dtype, requires_grad=True) if bias else None
    return [hidden, weight, offset]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 5 * VOCABULARY)
    monkeypatch.setattr(logprobs, "MIN_POSITIONS", 1)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunks_give_the_values_and_gradients_of_the_whole(bias: bool, temperature: float) -> None:
    hidden, weight, offset = inputs(bias)
    targets = torch.randint(VOCABULARY, (POSITIONS,))
    grad = torch.randn(POSITIONS)
    wanted = [x for x in (hidden, weight, offset) if x is not None]
    logits = torch.nn.functional.linear(hidden, weight, offset)
    expected, entropies = token_logprobs(logits, targets, temperature)
    found, entropy = projected_logprobs(hidden, weight, offset, targets, temperature)
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(entropy, entropies, atol=1e-5)
    for ours, exact in zip(
        torch.autograd.grad(found, wanted, grad),
        torch.autograd.grad(expected, wanted, grad),
        strict=True,
    ):
        assert torch.allclose(ours, exact, atol=1e-5)


@pytest.mark.usefixtures("small_chunks")
def test_bfloat16_sums_over_chunks_in_float32() -> None:
    hidden, weight, _ = inputs(False, torch.bfloat16)
    assert hidden is not None and weight is not None
    targets = torch.randint(VOCABULARY, (POSITIONS,))
    found, _ = projected_logprobs(hidden, weight, None, targets, 1.0)
    (ours,) = torch.autograd.grad(found.sum(), weight)
    exact_hidden, exact_weight = hidden.detach().float(), weight.detach().float().requires_grad_()
    expected, _ = token_logprobs(exact_hidden @ exact_weight.T, targets, 1.0)
    (exact,) = torch.autograd.grad(expected.sum(), exact_weight)
    assert found.dtype == torch.float32
    assert ours.dtype == torch.bfloat16
    assert float((ours.float() - exact).norm() / exact.norm()) < 0.02


def test_entropy_carries_no_gradient() -> None:
    hidden, weight, _ = inputs(False)
    _, entropy = projected_logprobs(hidden, weight, None, torch.zeros(POSITIONS).long(), 1.0)
    assert not entropy.requires_grad


def test_nothing_to_predict_is_no_error() -> None:
    hidden, weight, _ = inputs(False)
    assert hidden is not None
    found, _ = projected_logprobs(hidden[:0], weight, None, torch.zeros(0).long(), 1.0)
    found.sum().backward()
    assert float(weight.grad.abs().max()) == 0.0


def test_logits_of_all_positions_are_never_kept() -> None:
    """What the backward pass needs is the hidden states, the weights and the targets."""
    torch.manual_seed(0)
    hidden = torch.randn(4000, 4, requires_grad=True)
    weight = torch.randn(20_000, 4, requires_grad=True)
    kept = 0

    def note(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        projected_logprobs(hidden, weight, None, torch.zeros(4000, dtype=torch.long), 1.0)
    assert kept == hidden.numel() + weight.numel() + 4000
