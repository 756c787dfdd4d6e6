"""The local engine: exact log-probabilities, exact distribution, no trace of the company kept."""

import random
from collections import Counter

import pytest
import torch

from frontrunner.engine.engine import LocalEngine
from frontrunner.errors import UserError
from frontrunner.protocols import GenerateRequest, GenerateResult
from frontrunner.testing import FAMILIES, tiny_model


def run(engine: LocalEngine, requests: list[GenerateRequest]) -> dict[str, GenerateResult]:
    for request in requests:
        engine.submit(request)
    results = {}
    while engine.num_pending:
        results |= {r.request_id: r for r in engine.step()}
    return results


def request(name: str, ids: tuple[int, ...], seed: int = 0, num: int = 12) -> GenerateRequest:
    return GenerateRequest(name, ids, num, 1.0, seed, (2,))


def prompts(number: int, seed: int = 0) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(3, 259) for _ in range(rng.randint(3, 40))) for _ in range(number)]


def fresh_logprobs(model, prompt: tuple[int, ...], output: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + output])).logits.float()
    rows = torch.log_softmax(logits[0, len(prompt) - 1 : -1], -1)
    return rows.gather(1, torch.tensor(output)[:, None])[:, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_equal_a_fresh_forward_pass(family: str) -> None:
    model = tiny_model(family)
    engine = LocalEngine(model, max_batch=4, max_context=128, prefill_tokens=16)
    asked = {str(i): p for i, p in enumerate(prompts(9))}
    results = run(engine, [request(k, p, seed=int(k)) for k, p in asked.items()])
    assert results.keys() == asked.keys()
    for name, result in results.items():
        expected = fresh_logprobs(model, asked[name], result.token_ids)
        assert torch.allclose(torch.tensor(result.logprobs), expected, atol=1e-4)


def test_next_turn_reuses_the_prefix_and_stays_exact() -> None:
    model = tiny_model()
    engine = LocalEngine(model, max_batch=4, max_context=256)
    first = {str(i): 2 * (9, *p) + p[:9] for i, p in enumerate(prompts(4, seed=3))}
    results = run(engine, [request(k, p, seed=1) for k, p in first.items()])
    before = engine.num_reused
    extra = prompts(4, seed=9)
    second = {k: first[k] + results[k].token_ids + extra[int(k)] for k in first}
    again = run(engine, [request(k, p, seed=2) for k, p in second.items()])
    # the last sampled token was never fed, so all but one token of the first turn is found
    held = sum(len(first[k]) + len(results[k].token_ids) - 1 for k in first)
    assert engine.num_reused - before == held
    for name, result in again.items():
        expected = fresh_logprobs(model, second[name], result.token_ids)
        assert torch.allclose(torch.tensor(result.logprobs), expected, atol=1e-4)


def test_sampling_does_not_depend_on_the_batch() -> None:
    asked = prompts(12)
    together = run(
        LocalEngine(tiny_model(), max_batch=5, max_context=128),
        [request(str(i), p, seed=i) for i, p in enumerate(asked)],
    )
    for number, prompt in enumerate(asked):
        alone = run(
            LocalEngine(tiny_model(), max_batch=1, max_context=128),
            [request("x", prompt, seed=number)],
        )["x"]
        assert alone.token_ids == together[str(number)].token_ids


def test_two_token_sequences_follow_the_joint_distribution() -> None:
    model = tiny_model(vocab_size=5, pad_token_id=0)
    prompt = (3, 4, 3)
    with torch.no_grad():
        first = torch.softmax(model(input_ids=torch.tensor([prompt])).logits[0, -1], -1)
        joint = {}
        for a in range(5):
            rows = model(input_ids=torch.tensor([(*prompt, a)])).logits[0, -1]
            for b, p in enumerate(torch.softmax(rows, -1).tolist()):
                joint[(a, b)] = float(first[a]) * p
    engine = LocalEngine(model, max_batch=64, max_context=16)
    n = 3000
    asked = [GenerateRequest(str(i), prompt, 2, 1.0, i, ()) for i in range(n)]
    counts = Counter(r.token_ids for r in run(engine, asked).values())
    large = {k: p for k, p in joint.items() if n * p >= 5}
    chi2 = sum((counts[k] - n * p) ** 2 / (n * p) for k, p in large.items())
    assert chi2 < len(large) + 5 * (2 * len(large)) ** 0.5


def test_stop_token_and_length_end_a_request() -> None:
    model = tiny_model()
    engine = LocalEngine(model, max_batch=4, max_context=64)
    free = run(engine, [request("a", (5, 6, 7), num=20)])["a"]
    stop = free.token_ids[4]
    asked = GenerateRequest("b", (5, 6, 7), 20, 1.0, 0, (stop,))
    result = run(engine, [asked])["b"]
    assert result.finish == "stop"
    assert result.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert free.finish in ("stop", "length")


def test_new_weights_behave_like_a_cold_engine() -> None:
    engine = LocalEngine(tiny_model(seed=0), max_batch=4, max_context=128)
    asked = [request(str(i), p, seed=i) for i, p in enumerate(prompts(6))]
    run(engine, asked)
    other = tiny_model(seed=1)
    engine.load_weights(other.state_dict(), 7)
    warm = run(engine, asked)
    cold = run(LocalEngine(tiny_model(seed=1), max_batch=4, max_context=128), asked)
    assert {k: r.token_ids for k, r in warm.items()} == {k: r.token_ids for k, r in cold.items()}
    assert all(r.version == 7 for r in warm.values())


def test_wrong_weights_change_nothing() -> None:
    engine = LocalEngine(tiny_model(), max_batch=1, max_context=64)
    before = {k: v.clone() for k, v in engine.model.state_dict().items()}
    state = tiny_model(seed=1).state_dict()
    broken = {k: (v[:1] if k.endswith("norm.weight") else v) for k, v in state.items()}
    with pytest.raises(ValueError, match="shape"):
        engine.load_weights(broken, 1)
    with pytest.raises(ValueError, match="names"):
        engine.load_weights({k: v for k, v in state.items() if "norm" not in k}, 1)
    assert all(torch.equal(v, engine.model.state_dict()[k]) for k, v in before.items())
    assert engine.version == 0


def test_weights_are_refused_while_requests_run() -> None:
    engine = LocalEngine(tiny_model(), max_batch=1, max_context=64)
    engine.submit(request("a", (5, 6, 7)))
    engine.step()
    with pytest.raises(RuntimeError, match="in flight"):
        engine.load_weights(engine.model.state_dict(), 1)


def test_a_request_that_can_never_fit_is_refused() -> None:
    engine = LocalEngine(tiny_model(), max_batch=1, max_context=64)
    with pytest.raises(UserError, match="needs 70 tokens"):
        engine.submit(request("a", (5,) * 58))


def test_a_cleared_engine_repeats_itself_to_the_bit() -> None:
    asked = [request(str(i), p, seed=i) for i, p in enumerate(prompts(9))]
    engine = LocalEngine(tiny_model(), max_batch=4, max_context=128)
    cold = run(engine, asked)
    run(engine, [request("x", p, seed=3) for p in prompts(1, seed=5)])
    engine.forget()
    assert run(engine, asked) == cold
