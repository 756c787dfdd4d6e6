"""Paged attention equals dense attention, row by row, wherever the pages lie."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from frontrunner.engine.attention import (
    MASK_ROWS,
    attend,
    layout_of,
    page_attention,
    plain_page_attention,
)
from frontrunner.engine.kv_cache import KVCache, PagePool, pages_of_budget, token_bytes
from frontrunner.engine.request import Row
from frontrunner.engine.scheduler import Plan
from frontrunner.errors import UserError
from frontrunner.protocols import GenerateRequest

HEADS, KV_HEADS, DIM, PAGE = 6, 2, 16, 8
CONFIG = SimpleNamespace(
    num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=DIM
)


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """`[n, Hq, D]` of the last n tokens, from `[T, H, D]`, one head and query at a time."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    for n in range(q.shape[0]):
        seen = k.shape[0] - q.shape[0] + n + 1
        for head in range(HEADS):
            own = head // (HEADS // KV_HEADS)
            scores = k[:seen, own].double() @ q[n, head].double() * 0.3
            out[n, head] = torch.softmax(scores, 0) @ v[:seen, own].double()
    return out


def case(
    cache: KVCache, lengths: list[tuple[int, int]], spread: bool
) -> tuple[Plan, list[torch.Tensor], list[torch.Tensor]]:
    """Rows of (tokens before, tokens now) with random contents and pages; their keys, values."""
    rng = random.Random(len(lengths))
    used = sum(before // PAGE + 1 for before, now in lengths if now == 1)
    others = sum(-(-(b + n) // PAGE) for b, n in lengths if n > 1)
    near = list(range(400 if spread else 2 * used))
    far = list(range(2 * used, 2 * used + others))
    rng.shuffle(near)
    plan, keys, values = Plan(), [], []
    for before, now in lengths:
        total = before + now
        row = Row(GenerateRequest("r", (1,) * total, 1, 1.0, 0, ()), 0, 0.0, [1] * total)
        free = near if now == 1 or spread else far
        row.pages = [free.pop() for _ in range(-(-total // PAGE))]
        row.num_computed = before
        k, v = torch.randn(2, total, KV_HEADS, DIM).to(cache.store.dtype)
        for t in range(before):
            cache.keys[1][row.pages[t // PAGE], :, t % PAGE] = k[t]
            cache.values[1][row.pages[t // PAGE], :, t % PAGE] = v[t]
        keys.append(k)
        values.append(v)
        if now == 1:
            plan.singles.append(row)
        else:
            plan.chunks.append((row, now))
    return plan, keys, values


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize(
    "lengths",
    [
        [(0, 1)],
        [(7, 1), (8, 1), (3, 1)],
        [(50, 1), (0, 1), (7, 1), (23, 1), (31, 1)],
        [(15, 1), (0, 5), (9, 4), (16, 20)],
        [(0, 30)],
        [(5, 2), (0, 9)],
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_equals_dense_attention(
    lengths: list[tuple[int, int]], spread: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    cache = KVCache(CONFIG, 400, PAGE, torch.zeros(1, dtype=dtype))
    plan, keys, values = case(cache, lengths, spread)
    layout = layout_of(plan, cache)
    assert (layout.gather is not None) is (spread and bool(plan.singles))
    counts = [now for _, now in lengths]
    q = torch.randn(sum(counts), HEADS, DIM).to(dtype)
    k = torch.cat([k[-n:] for k, n in zip(keys, counts, strict=True)])
    v = torch.cat([v[-n:] for v, n in zip(values, counts, strict=True)])
    cache.write(1, layout.places, torch.stack([k, v], 1))
    out = attend(q, k, v, cache, 1, layout, 0.3)
    start = 0
    for number, n in enumerate(counts):
        expected = dense(q[start : start + n], keys[number], values[number])
        gap = (out[start : start + n].double() - expected).abs().max()
        assert float(gap) < (1e-5 if dtype == torch.float32 else 0.03)
        start += n
    assert not cache.store[0].any()  # the other layer is untouched


def test_a_long_later_chunk_is_masked_in_pieces() -> None:
    torch.manual_seed(0)
    cache = KVCache(CONFIG, 400, PAGE, torch.zeros(1))
    plan, keys, values = case(cache, [(20, MASK_ROWS + 30)], spread=True)
    layout = layout_of(plan, cache)
    assert len(layout.chunks) == 2
    n = MASK_ROWS + 30
    q, k, v = torch.randn(n, HEADS, DIM), keys[0][-n:], values[0][-n:]
    cache.write(1, layout.places, torch.stack([k, v], 1))
    gap = attend(q, k, v, cache, 1, layout, 0.3).double() - dense(q, keys[0], values[0])
    assert float(gap.abs().max()) < 1e-5


def test_the_kernel_and_the_plain_form_agree() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(5, 2, 3, 16), torch.randn(5, 2, 8, 16), torch.randn(5, 2, 8, 16)
    mask = torch.zeros(5, 1, 1, 8)
    mask[2, :, :, 3:] = -torch.inf
    out, lse = page_attention(q, k, v, mask, 0.3)
    plain_out, plain_lse = plain_page_attention(q, k, v, mask, 0.3)
    assert torch.allclose(out, plain_out, atol=1e-6)
    assert torch.allclose(lse, plain_lse, atol=1e-6)


def test_copied_pages_hold_the_same_in_all_layers() -> None:
    cache = KVCache(CONFIG, 10, PAGE, torch.zeros(1))
    cache.store.copy_(torch.randn(cache.store.shape))
    before = cache.store.clone()
    cache.copy([3, 1], [7, 9])
    assert torch.equal(cache.store[:, :, [7, 9]], before[:, :, [3, 1]])
    others = [p for p in range(10) if p not in (7, 9)]
    assert torch.equal(cache.store[:, :, others], before[:, :, others])


def test_the_lowest_pages_come_first_and_no_page_is_freed_twice() -> None:
    pool = PagePool(6, 4)
    assert pool.allocate(3) == [0, 1, 2]
    pool.release([1, 0])
    assert pool.allocate(2) == [0, 1]
    assert pool.pages_for(8) == 2
    assert pool.pages_for(9) == 3
    with pytest.raises(AssertionError, match="free already"):
        pool.release([5])
    with pytest.raises(AssertionError, match="4 pages wanted"):
        pool.allocate(4)


def test_a_budget_in_bytes_is_kept() -> None:
    size = token_bytes(CONFIG, 4)
    assert size == 2 * 2 * KV_HEADS * DIM * 4
    pages = pages_of_budget(CONFIG, 4, 10 * PAGE * size + 5, PAGE)
    assert pages == 10
    assert KVCache(CONFIG, pages, PAGE, torch.zeros(1)).store.nbytes == 10 * PAGE * size
    with pytest.raises(UserError, match=r"engine\.kv_mib"):
        pages_of_budget(CONFIG, 4, PAGE * size - 1, PAGE)
