"""Attention along a prefix tree: every way of computing it gives what the mask says."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from frontrunner.algo.packing import pack
from frontrunner.testing import tiny_model
from frontrunner.train.attention import BLOCK, PrefixTree, _cpu, _masked, install, tree_attention

QUERY_HEADS, KEY_HEADS, WIDTH = 6, 2, 16


def random_tree(seed: int, longest: int = 60, shortest: int = 1) -> PrefixTree:
    """A tree of sequences that branch off one another at random depths."""
    rng = random.Random(seed)
    sequences: list[list[int]] = []
    for _ in range(rng.randint(1, 10)):
        base = rng.choice([[], *sequences])
        fresh = [rng.randrange(1000) for _ in range(rng.randint(shortest, longest))]
        sequences.append(base[: rng.randint(0, len(base))] + fresh)
    (plan,) = pack(sequences, 10**6)
    assert plan.ends is not None
    return PrefixTree(plan.ends)


def random_inputs(tree: PrefixTree, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Queries, keys and values laid out as a model's projections leave them."""
    torch.manual_seed(0)
    size = len(tree.ends)
    shapes = [(1, size, heads, WIDTH) for heads in (QUERY_HEADS, KEY_HEADS, KEY_HEADS)]
    return [torch.randn(s, dtype=dtype).transpose(1, 2).detach().requires_grad_() for s in shapes]


@pytest.mark.parametrize("seed", range(20))
def test_the_kernels_compute_what_the_mask_says(seed: int) -> None:
    tree = random_tree(seed)
    inputs = random_inputs(tree)
    expected = _masked(*inputs, tree, 0.3)
    found = _cpu(*inputs, tree, 0.3)
    assert torch.allclose(found, expected, atol=1e-5)
    grad = torch.randn_like(expected)
    for ours, exact in zip(
        torch.autograd.grad(found, inputs, grad),
        torch.autograd.grad(expected, inputs, grad),
        strict=True,
    ):
        assert torch.allclose(ours, exact, atol=2e-5)


def test_bfloat16_rounds_once_however_many_parts_there_are() -> None:
    tree = random_tree(3)
    exact = [x.detach().float() for x in random_inputs(tree, torch.bfloat16)]
    expected = _masked(*exact, tree, 0.3)
    found = _cpu(*(x.bfloat16() for x in exact), tree, 0.3)
    assert found.dtype == torch.bfloat16
    assert float((found.float() - expected).abs().max()) < 0.03


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_the_block_mask_covers_the_pattern_and_nothing_empty(seed: int) -> None:
    tree = random_tree(seed, longest=400, shortest=100)
    size = len(tree.ends)
    number = -(-size // BLOCK)
    assert number > 2
    padded = torch.zeros(number * BLOCK, number * BLOCK, dtype=torch.bool)
    padded[:size, :size] = tree.dense()
    tiles = padded.view(number, BLOCK, number, BLOCK).any(3).any(1)
    assert torch.equal(tree.blocks.to_dense()[0, 0].bool(), tiles)
    query, key, value = (x.detach() for x in random_inputs(tree))
    with torch.no_grad():
        found = flex_attention(
            query, key, value, block_mask=tree.blocks, scale=0.3, enable_gqa=True
        )
    assert torch.allclose(found, _masked(query, key, value, tree, 0.3), atol=1e-5)


def test_no_call_sees_more_than_a_chain_or_a_shared_piece() -> None:
    opening = list(range(500))
    (plan,) = pack([[*opening, *range(1000 * n, 1000 * n + 50)] for n in range(1, 9)], 10**6)
    assert plan.ends is not None
    tree = PrefixTree(plan.ends)
    assert tree.chains == [(0, 550), *((550 + 50 * n, 600 + 50 * n) for n in range(7))]
    assert tree.spans == [(0, 500, 550, 900)]


def test_what_is_not_computed_is_refused() -> None:
    tree = random_tree(0)
    inputs = random_inputs(tree)
    with pytest.raises(NotImplementedError, match="softcap"):
        tree_attention(None, *inputs, None, prefix_tree=tree, softcap=50.0)


def test_no_mask_of_all_pairs_is_built() -> None:
    """Bytes that a forward pass keeps grow with the number of tokens, not with its square."""
    model = tiny_model()
    install(model)
    kept = []
    for size in (1000, 2000):
        tree = PrefixTree(torch.full((size,), size).numpy())
        total = 0

        def note(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal total
            total += tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            model.base_model(
                input_ids=torch.ones(1, size, dtype=torch.long),
                position_ids=torch.arange(size)[None],
                attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool),
                prefix_tree=tree,
                use_cache=False,
            )
        kept.append(total)
    assert kept[1] < 2.01 * kept[0]
