"""Pausing, aborting and new weights: nothing is lost, nothing leaks, nothing stale is used."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from frontrunner.engine import weights
from frontrunner.engine.engine import LocalEngine
from frontrunner.protocols import GenerateRequest, GenerateResult
from frontrunner.testing import tiny_model


def engine(**settings: Any) -> LocalEngine:
    return LocalEngine(
        tiny_model(), **{"max_batch": 4, "max_context": 128, "page_size": 16, **settings}
    )


def requests(number: int, seed: int = 0, num: int = 12) -> list[GenerateRequest]:
    rng = random.Random(seed)
    return [
        GenerateRequest(
            str(n), tuple(rng.randrange(3, 259) for _ in range(rng.randint(3, 40))), num, 1.0, n, ()
        )
        for n in range(number)
    ]


def drain(engine: LocalEngine) -> dict[str, GenerateResult]:
    results: dict[str, GenerateResult] = {}
    while engine.num_pending:
        results |= {r.request_id: r for r in engine.step()}
    return results


def run(engine: LocalEngine, asked: list[GenerateRequest]) -> dict[str, GenerateResult]:
    for request in asked:
        engine.submit(request)
    return drain(engine)


def started(asked: list[GenerateRequest], steps: int, **settings: Any) -> LocalEngine:
    busy = engine(**settings)
    for request in asked:
        busy.submit(request)
    for _ in range(steps):
        assert busy.step() == []
    return busy


def all_pages_are_back(engine: LocalEngine) -> bool:
    pool, prefix = engine.scheduler.pool, engine.scheduler.prefix
    return pool.num_free + prefix.num_pages == pool.num_pages


def test_abort_returns_what_there_is_and_frees_the_memory() -> None:
    asked = requests(6)
    whole = run(engine(), asked)
    busy = started(asked, steps=5)
    busy.pause("abort")
    results = drain(busy)
    assert [len(results[str(n)].token_ids) for n in range(6)] == [5, 5, 5, 5, 0, 0]
    for name, result in results.items():
        assert result.finish == "abort"
        assert result.token_ids == whole[name].token_ids[: len(result.token_ids)]
        assert len(result.logprobs) == len(result.token_ids)
    assert all_pages_are_back(busy)
    busy.load_weights(tiny_model(seed=1).state_dict(), 1)
    busy.resume()
    cold = LocalEngine(tiny_model(seed=1), max_batch=4, max_context=128, page_size=16)
    assert tokens(run(busy, asked)) == tokens(run(cold, asked))


def tokens(results: dict[str, GenerateResult]) -> dict[str, tuple[int, ...]]:
    return {name: result.token_ids for name, result in results.items()}


def test_wait_finishes_what_runs_and_starts_nothing() -> None:
    asked = requests(6)
    busy = started(asked, steps=5)
    busy.pause("wait")
    with pytest.raises(RuntimeError, match="in flight"):
        busy.load_weights(tiny_model(seed=1).state_dict(), 1)
    first: dict[str, GenerateResult] = {}
    while busy.num_running:
        first |= {r.request_id: r for r in busy.step()}
    assert sorted(first) == ["0", "1", "2", "3"]
    assert busy.num_pending == 2
    busy.load_weights(tiny_model(seed=1).state_dict(), 1)
    busy.resume()
    rest = drain(busy)
    assert {r.version for r in first.values()} == {0}
    assert {r.version for r in rest.values()} == {1}
    cold = LocalEngine(tiny_model(seed=1), max_batch=4, max_context=128, page_size=16)
    assert tokens(rest) == tokens(run(cold, asked[4:]))


@pytest.mark.parametrize("mode", ["keep", "recompute"])
def test_a_pause_without_an_update_changes_nothing(mode: Any) -> None:
    asked = requests(6)
    busy = started(asked, steps=5)
    busy.pause(mode)
    assert busy.step() == []
    assert busy.num_pending == 6
    busy.resume()
    assert tokens(drain(busy)) == tokens(run(engine(), asked))


@pytest.mark.parametrize("mode", ["abort", "wait", "keep", "recompute"])
def test_after_an_update_it_equals_a_cold_engine(mode: Any) -> None:
    busy = started(requests(6), steps=5)
    busy.pause(mode)
    while mode == "wait" and busy.num_running:
        busy.step()
    busy.load_weights(tiny_model(seed=2).state_dict(), 9)
    busy.resume()
    drain(busy)
    asked = requests(8, seed=0)  # the same contexts: nothing of before may be found
    cold = LocalEngine(tiny_model(seed=2), max_batch=4, max_context=128, page_size=16)
    warm = run(busy, asked)
    fresh = run(cold, asked)
    assert warm == fresh or tokens(warm) == tokens(fresh)
    assert all(r.version == 9 and r.spans[0].version == 9 for r in warm.values())
    assert all_pages_are_back(busy)


def test_versions_are_noted_per_token() -> None:
    busy = started(requests(2, num=12), steps=4)
    for version in (3, 8):
        busy.pause("keep")
        busy.load_weights(tiny_model(seed=version).state_dict(), version)
        busy.resume()
        for _ in range(3):
            busy.step()
    for result in drain(busy).values():
        spans = [(s.version, s.start, s.stop) for s in result.spans]
        assert spans == [(0, 0, 4), (3, 4, 7), (8, 7, 12)]
        assert result.version == 0


def test_one_request_can_be_aborted() -> None:
    asked = requests(6)
    busy = started(asked, steps=3)
    assert busy.abort("1")
    assert busy.abort("5")
    assert not busy.abort("5")
    results = drain(busy)
    assert {n for n, r in results.items() if r.finish == "abort"} == {"1", "5"}
    whole = run(engine(), asked)
    assert results["0"].token_ids == whole["0"].token_ids
    assert all_pages_are_back(busy)


def test_a_wrong_checksum_or_a_torn_tie_changes_nothing() -> None:
    tied = {"tie_word_embeddings": True}
    served = LocalEngine(tiny_model(**tied), max_batch=1, max_context=64)
    before = {k: v.clone() for k, v in served.model.state_dict().items()}
    state = {k: v.clone() for k, v in tiny_model(seed=1, **tied).state_dict().items()}
    right = weights.checksum(state)
    damaged = {**state, "model.norm.weight": state["model.norm.weight"] + 1e-3}
    with pytest.raises(ValueError, match="checksum"):
        served.load_weights(damaged, 1, checksum=right)
    torn = {**state, "lm_head.weight": state["lm_head.weight"] * 2}
    with pytest.raises(ValueError, match="one weight here"):
        served.load_weights(torn, 1)
    assert all(torch.equal(v, served.model.state_dict()[k]) for k, v in before.items())
    assert served.version == 0
    served.load_weights(state, 1, checksum=right)
    assert all(torch.equal(v, served.model.state_dict()[k]) for k, v in state.items())


def test_the_checksum_sees_names_shapes_types_and_values() -> None:
    state = {"a": torch.arange(6.0), "b": torch.ones(2, dtype=torch.bfloat16)}
    same = {"b": state["b"].clone(), "a": state["a"].clone()}
    assert weights.checksum(state) == weights.checksum(same)
    for other in (
        {"a": state["a"], "c": state["b"]},
        {"a": state["a"].view(2, 3), "b": state["b"]},
        {"a": state["a"], "b": state["b"].float()},
        {"a": state["a"] + 1, "b": state["b"]},
    ):
        assert weights.checksum(other) != weights.checksum(state)


def test_fused_weights_are_the_models_own() -> None:
    served = engine()
    names = [n for n, _ in served.model.named_parameters()]
    assert any("q_proj" in n for n in names)
    plain = tiny_model()
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            served.model.state_dict().values(), plain.state_dict().values(), strict=True
        )
    )
    storages = {p.untyped_storage().data_ptr() for p in served.model.parameters()}
    total = sum(
        {
            p.untyped_storage().data_ptr(): p.untyped_storage().nbytes()
            for p in served.model.parameters()
        }.values()
    )
    assert len(storages) < len(names)
    assert total == sum(p.nbytes for p in plain.parameters())


def test_two_engines_on_one_model_see_the_same_update() -> None:
    model = tiny_model()
    first = LocalEngine(model, max_batch=4, max_context=128, page_size=16)
    second = LocalEngine(model, max_batch=4, max_context=128, page_size=16)
    first.load_weights(tiny_model(seed=1).state_dict(), 1)
    cold = LocalEngine(tiny_model(seed=1), max_batch=4, max_context=128, page_size=16)
    expected = tokens(run(cold, requests(3)))
    assert tokens(run(first, requests(3))) == expected
    assert tokens(run(second, requests(3))) == expected


def test_stop_strings_end_an_answer_with_the_token_that_completes_one() -> None:
    letters = "abcdefghij"

    def decode(ids: Any) -> str:
        return "".join(letters[i % 10] for i in ids)

    served = engine(decode_text=decode)
    (request,) = requests(1, num=40)
    free = run(served, [request])["0"].token_ids
    text = decode(free)
    for stop in (text[3:5], text[10:16], text[:1]):
        end = text.index(stop) + len(stop)
        asked = GenerateRequest(
            "s", request.token_ids, 40, 1.0, request.seed, (), stop_strings=("#never#", stop)
        )
        result = run(served, [asked])["s"]
        assert result.token_ids == free[:end]
        assert result.finish == "stop"


def test_no_memory_leaks_over_random_traffic() -> None:
    rng = random.Random(0)
    served = engine(max_batch=3, kv_bytes=64 * 1024, reserve=0.3, prefill_tokens=24)
    for number in range(60):
        for request in requests(rng.randint(0, 3), seed=number, num=rng.randint(1, 30)):
            served.submit(request)
        for _ in range(rng.randint(0, 6)):
            served.step()
        if rng.random() < 0.2:
            served.abort(str(rng.randint(0, 2)))
        if rng.random() < 0.1:
            served.pause(rng.choice(["abort", "keep", "recompute"]))
            served.load_weights(tiny_model(seed=number).state_dict(), number + 1)
            served.resume()
    drain(served)
    assert all_pages_are_back(served)
    served.forget()
    assert served.scheduler.pool.num_free == served.scheduler.pool.num_pages
