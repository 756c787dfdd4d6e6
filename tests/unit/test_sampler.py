"""Sampling is exact: checked by enumeration, against transformers' own cuts, and by counting."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from frontrunner.engine.sampler import pick, sample, uniforms
from frontrunner.protocols import GenerateRequest

MASK = (1 << 64) - 1


def request(seed: int = 0, temperature: float = 1.0, **cuts: Any) -> GenerateRequest:
    return GenerateRequest("r", (1,), 8, temperature, seed, (), **cuts)


def uniform(seed: int, position: int) -> float:
    """The generator, one number at a time."""
    x = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return ((x ^ (x >> 31)) >> 11) / (1 << 53)


def test_draws_of_a_batch_equal_draws_one_by_one() -> None:
    rng = random.Random(0)
    seeds = [rng.getrandbits(62) for _ in range(50)]
    positions = [rng.randrange(10_000) for _ in range(50)]
    expected = [uniform(s, p) for s, p in zip(seeds, positions, strict=True)]
    assert uniforms(seeds, positions).tolist() == expected


def test_draws_are_uniform_over_seeds_and_over_positions() -> None:
    for draws in (uniforms(range(20_000), [0] * 20_000), uniforms([7] * 20_000, range(20_000))):
        counts = np.histogram(draws, 20, (0.0, 1.0))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # 99.9 % point at 19 degrees


@pytest.mark.parametrize("size", [1, 5, 127, 128, 129, 1000])
def test_inverse_of_the_distribution_by_enumeration(size: int) -> None:
    """Every token's share of [0, 1) is its probability: its ends map to it and to no other."""
    generator = torch.Generator().manual_seed(size)
    probs = torch.rand(size, generator=generator) ** 4
    probs[torch.rand(size, generator=generator) < 0.3] = 0.0
    probs[size // 2] = 0.5
    probs /= probs.sum()
    ends = probs.double().cumsum(0) / probs.double().sum()
    starts = torch.cat([torch.zeros(1, dtype=torch.float64), ends[:-1]])
    wide = (ends - starts) > 1e-5
    tokens = torch.arange(size)[wide]
    for draws in (starts[wide] + 2e-7, ends[wide] - 2e-7):
        assert torch.equal(pick(probs.expand(len(draws), -1), draws), tokens)


def test_a_token_without_probability_is_never_picked() -> None:
    probs = torch.zeros(3, 300)
    probs[0, 0], probs[1, 299], probs[2, 140] = 1.0, 1.0, 1e-30
    for draw in (0.0, 1e-17, 0.5, 1 - 2**-53):
        picked = pick(probs, torch.full((3,), draw, dtype=torch.float64))
        assert picked.tolist() == [0, 299, 140]


def test_sampled_tokens_follow_the_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -3.0]])
    n = 8_000
    drawn = sample(logits.expand(n, -1), [request(s, 0.7) for s in range(n)], [0] * n)
    expected = torch.softmax(logits[0] / 0.7, -1)
    counts = Counter(drawn.tokens)
    chi2 = sum((counts[i] - n * p) ** 2 / (n * p) for i, p in enumerate(expected.tolist()))
    assert chi2 < 18.47  # 99.9 % point at 4 degrees of freedom
    assert torch.allclose(torch.tensor(drawn.logprobs), expected[drawn.tokens].log(), atol=1e-5)
    assert not any(drawn.kept)


CUTS = [
    {"top_k": 3},
    {"top_p": 0.6},
    {"min_p": 0.2},
    {"top_k": 12, "top_p": 0.9},
    {"top_k": 10, "top_p": 0.95, "min_p": 0.05},
    {"top_p": 0.98},
    {"top_k": 1},
    {"top_p": 1e-9},
]


def by_transformers(logits: torch.Tensor, cuts: dict[str, Any]) -> torch.Tensor:
    if cuts.get("top_k"):
        logits = TopKLogitsWarper(cuts["top_k"])(None, logits)
    if cuts.get("top_p", 1.0) < 1:
        logits = TopPLogitsWarper(cuts["top_p"])(None, logits)
    if cuts.get("min_p"):
        logits = MinPLogitsWarper(cuts["min_p"])(None, logits)
    return torch.softmax(logits, -1)


@pytest.mark.parametrize("size", [24, 3000])
@pytest.mark.parametrize("cuts", CUTS)
def test_cuts_keep_what_transformers_keeps(cuts: dict[str, Any], size: int) -> None:
    logits = torch.randn(40, size, generator=torch.Generator().manual_seed(1)) * 2
    expected = by_transformers(logits / 0.8, cuts)
    drawn = sample(logits, [request(n, 0.8, **cuts) for n in range(40)], [3] * 40)
    for row, (token, logprob, kept) in enumerate(
        zip(drawn.tokens, drawn.logprobs, drawn.kept, strict=True)
    ):
        support = expected[row].nonzero()[:, 0].tolist()
        assert list(kept) == (support if len(support) < size else [])
        assert token in support
        assert logprob == pytest.approx(float(expected[row, token].log()), abs=1e-5)
        # what a trainer computes from logits and the recorded set
        chosen = torch.log_softmax(logits[row, support] / 0.8, -1)[support.index(token)]
        assert logprob == pytest.approx(float(chosen), abs=1e-5)


def test_a_cut_distribution_is_followed() -> None:
    logits = torch.tensor([[1.0, 0.5, 0.0, -0.5, -1.0, -9.0]])
    n = 6_000
    drawn = sample(logits.expand(n, -1), [request(s, 1.0, top_p=0.8) for s in range(n)], [0] * n)
    expected = by_transformers(logits, {"top_p": 0.8})[0].tolist()
    counts = Counter(drawn.tokens)
    held = {i: p for i, p in enumerate(expected) if p}
    assert counts.keys() <= held.keys()
    chi2 = sum((counts[i] - n * p) ** 2 / (n * p) for i, p in held.items())
    assert chi2 < 16.27  # 99.9 % point at 3 degrees of freedom


def test_greedy_is_the_first_of_equals_with_log_probability_zero() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]])
    drawn = sample(logits, [request(temperature=0.0)], [0])
    assert (drawn.tokens, drawn.logprobs, drawn.kept) == ([1], [0.0], [(1,)])


def test_equally_likely_tokens_are_kept_together() -> None:
    logits = torch.tensor([[3.0, 1.0, 1.0, 1.0, -2.0]])
    drawn = sample(logits, [request(top_k=2)], [0])
    assert drawn.kept == [(0, 1, 2, 3)]


def test_rows_do_not_influence_each_other() -> None:
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(0)) * 3
    asked = [
        request(1),
        request(2, 0.5),
        request(3, 1.0, top_k=4),
        request(4, 0.0),
        request(5, 2.0, top_p=0.5),
        request(6, 1.0, min_p=0.3),
    ]
    together = sample(logits, asked, [0, 5, 9, 2, 7, 1])
    for n, position in enumerate([0, 5, 9, 2, 7, 1]):
        alone = sample(logits[n : n + 1], [asked[n]], [position])
        assert alone.tokens == [together.tokens[n]]
        assert alone.kept == [together.kept[n]]
        assert alone.logprobs == pytest.approx([together.logprobs[n]], abs=1e-6)
