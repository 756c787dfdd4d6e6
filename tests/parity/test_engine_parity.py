"""Greedy answers equal those of transformers, whatever the engine does to be fast."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from frontrunner.engine.engine import LocalEngine
from frontrunner.engine.kv_cache import token_bytes
from frontrunner.engine.prefill_delayer import PrefillDelayer
from frontrunner.errors import UserError
from frontrunner.protocols import GenerateRequest, GenerateResult
from frontrunner.testing import FAMILIES, tiny_model

OTHERS = ("mistral", "olmo2", "granite", "gpt_neox", "starcoder2")
"""Families that are computed through their own modules, except the first."""

Ids = tuple[int, ...]


def prompts(number: int, low: int = 3, high: int = 60, seed: int = 0) -> list[Ids]:
    rng = random.Random(seed)
    return [
        tuple(rng.randrange(3, 259) for _ in range(rng.randint(low, high))) for _ in range(number)
    ]


def greedy(name: object, ids: Ids, num: int = 12) -> GenerateRequest:
    return GenerateRequest(str(name), ids, num, 0.0, 0, ())


def run(engine: LocalEngine, requests: list[GenerateRequest]) -> dict[str, GenerateResult]:
    for request in requests:
        engine.submit(request)
    results: dict[str, GenerateResult] = {}
    while engine.num_pending:
        results |= {r.request_id: r for r in engine.step()}
    return results


@cache
def plain(family: str, seed: int = 0) -> Any:
    return tiny_model(family, seed=seed)


def by_transformers(model: Any, ids: Ids, num: int = 12) -> Ids:
    output = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=num,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return tuple(output[0, len(ids) :].tolist())


def check(engine: LocalEngine, asked: list[Ids], model: Any, num: int = 12) -> None:
    results = run(engine, [greedy(n, ids, num) for n, ids in enumerate(asked)])
    for number, ids in enumerate(asked):
        assert results[str(number)].token_ids == by_transformers(model, ids, num)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_batch_of_odd_sizes(family: str, direct: bool) -> None:
    engine = LocalEngine(
        tiny_model(family), max_batch=5, max_context=128, page_size=16, direct=direct
    )
    check(engine, prompts(9), plain(family))


@pytest.mark.parametrize("family", OTHERS)
def test_other_families(family: str) -> None:
    engine = LocalEngine(tiny_model(family, **extra(family)), max_batch=4, max_context=96)
    check(engine, prompts(4), tiny_model(family, **extra(family)))


def extra(family: str) -> dict[str, Any]:
    """Settings without which a tiny model of the family would not be a plain one."""
    if family in ("mistral", "starcoder2"):
        return {"sliding_window": None}
    return {"num_key_value_heads": 4} if family == "gpt_neox" else {}


@pytest.mark.parametrize("page_size", [1, 7, 128])
def test_any_page_size(page_size: int) -> None:
    engine = LocalEngine(tiny_model(), max_batch=4, max_context=96, page_size=page_size)
    check(engine, prompts(6), plain("llama"))


@pytest.mark.parametrize("direct", [True, False])
def test_chunked_prefill(direct: bool) -> None:
    engine = LocalEngine(
        tiny_model(), max_batch=4, max_context=700, prefill_tokens=37, page_size=32, direct=direct
    )
    check(engine, prompts(4, 150, 600), plain("llama"), num=6)


def test_passes_of_one_kind() -> None:
    engine = LocalEngine(
        tiny_model(), max_batch=4, max_context=96, prefill_tokens=16, page_size=16, mixed=False
    )
    check(engine, prompts(9), plain("llama"))


@pytest.mark.parametrize("direct", [True, False])
def test_prefix_hit_of_the_next_turn_and_of_siblings(direct: bool) -> None:
    engine = LocalEngine(tiny_model(), max_batch=6, max_context=256, page_size=16, direct=direct)
    shared = prompts(1, 50, 50)[0]
    asked = [shared + ids for ids in prompts(6, 3, 20, seed=4)] + [shared] * 3
    results = run(engine, [greedy(n, ids) for n, ids in enumerate(asked)])
    assert engine.num_reused >= 8 * 48  # one computes the shared prompt, eight copy it
    again = [ids + results[str(n)].token_ids + (9, 8, 7) for n, ids in enumerate(asked)]
    before = engine.num_reused
    check(engine, again, plain("llama"))
    assert engine.num_reused - before == sum(len(ids) - 4 for ids in again)


@pytest.mark.parametrize("direct", [True, False])
def test_preemption_loses_nothing(direct: bool) -> None:
    model = tiny_model()
    budget = 10 * 8 * token_bytes(model.config, 4)  # ten pages of eight tokens
    engine = LocalEngine(
        model, max_batch=8, max_context=80, kv_bytes=budget, page_size=8, reserve=0.0, direct=direct
    )
    check(engine, prompts(8, 3, 20), plain("llama"), num=40)
    assert engine.metrics()["engine/preempted"] > 0
    assert engine.scheduler.pool.num_free + engine.scheduler.prefix.num_pages == 10


def test_a_budget_of_a_third_finishes_everything_without_preemption() -> None:
    model = tiny_model()
    budget = 8 * 80 * token_bytes(model.config, 4) // 3
    engine = LocalEngine(model, max_batch=8, max_context=80, kv_bytes=budget, page_size=8)
    check(engine, prompts(12, 3, 40), plain("llama"), num=30)
    metrics = engine.metrics()
    assert "engine/preempted" not in metrics
    assert metrics["engine/blocked_by_kv"] > 0


def test_held_prefills() -> None:
    ticks = iter(range(10**6))
    delayer = PrefillDelayer(max_passes=4, max_seconds=1e9, queue_ratio=0.5)
    engine = LocalEngine(
        tiny_model(), max_batch=4, max_context=96, delayer=delayer, clock=lambda: float(next(ticks))
    )
    asked = dict(enumerate(prompts(12)))
    results = run(engine, [greedy(n, ids, 5 + n) for n, ids in asked.items()])
    for number, ids in asked.items():
        expected = by_transformers(plain("llama"), ids, 5 + number)
        assert results[str(number)].token_ids == expected
    assert delayer.outcomes["held"] > 0


def start_then(engine: LocalEngine, asked: list[Ids], steps: int, num: int) -> None:
    for number, ids in enumerate(asked):
        engine.submit(greedy(number, ids, num))
    for _ in range(steps):
        assert not engine.step()


def drain(engine: LocalEngine) -> dict[str, GenerateResult]:
    results: dict[str, GenerateResult] = {}
    while engine.num_pending:
        results |= {r.request_id: r for r in engine.step()}
    return results


def test_update_in_flight_with_recomputed_keys() -> None:
    asked = prompts(4)
    engine = LocalEngine(tiny_model(), max_batch=4, max_context=96, page_size=16)
    start_then(engine, asked, steps=5, num=12)
    engine.pause("recompute")
    engine.load_weights(tiny_model(seed=1).state_dict(), 3)
    engine.resume()
    for name, result in drain(engine).items():
        old = by_transformers(plain("llama"), asked[int(name)], 5)
        new = by_transformers(plain("llama", seed=1), asked[int(name)] + old, 7)
        assert result.token_ids == old + new
        assert [(s.version, s.start, s.stop) for s in result.spans] == [(0, 0, 5), (3, 5, 12)]
        assert result.version == 0


def test_update_in_flight_that_keeps_old_keys() -> None:
    asked = prompts(4)
    engine = LocalEngine(tiny_model(), max_batch=4, max_context=96, page_size=16)
    start_then(engine, asked, steps=5, num=12)
    engine.pause("keep")
    assert engine.step() == []
    engine.load_weights(tiny_model(seed=1).state_dict(), 3)
    engine.resume()
    results = drain(engine)
    for name, result in results.items():
        held = DynamicCache()
        expected: list[int] = []
        feed = torch.tensor([asked[int(name)]])
        for number in range(12):
            model = plain("llama", seed=0 if number < 5 else 1)
            with torch.no_grad():
                logits = model(input_ids=feed, cache=held, use_cache=True).logits[0, -1]
            expected.append(int(logits.argmax()))
            feed = torch.tensor([[expected[-1]]])
        assert list(result.token_ids) == expected
    # what old weights computed is not found by new requests
    before = engine.num_reused
    check(
        engine, [ids + results[str(n)].token_ids for n, ids in enumerate(asked)], plain("llama", 1)
    )
    assert engine.num_reused == before


def test_attention_that_is_not_standard_is_refused() -> None:
    with pytest.raises(UserError, match="Gemma2Attention"):
        LocalEngine(
            tiny_model("gemma2", sliding_window=None, use_sliding_window=False),
            max_batch=1,
            max_context=64,
        )
