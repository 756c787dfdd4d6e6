"""The trainer sees the distribution that the engine sampled from, cut or not."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch

from frontrunner.config import AlgoSection, TrainSection
from frontrunner.engine.engine import LocalEngine
from frontrunner.protocols import GenerateRequest
from frontrunner.rollout.samples import to_sample
from frontrunner.testing import FAMILIES, tiny_model
from frontrunner.train.batch import collate
from frontrunner.train.replay import restrict
from frontrunner.train.score import score
from frontrunner.train.trainer import TOKENS_PER_ROLLOUT, LocalTrainer
from frontrunner.types import Rollout, Sample, Turn, Usage, Verdict, dump, load

TEMPERATURE = 0.7
CUTS: list[dict[str, Any]] = [{}, {"top_p": 0.6}, {"top_k": 7, "min_p": 0.1}]


def rollouts(model: Any, cuts: dict[str, Any], number: int = 6) -> list[Rollout]:
    """One-turn rollouts sampled by the engine."""
    engine = LocalEngine(copy.deepcopy(model), max_batch=4, max_context=64, page_size=16)
    prompts = _prompts(number)
    for n, ids in enumerate(prompts):
        engine.submit(GenerateRequest(str(n), ids, 14, TEMPERATURE, n, (), **cuts))
    made = []
    while engine.num_pending:
        made += engine.step()
    return [
        Rollout(
            task_id="t",
            effort="low",
            seed=0,
            turns=(
                Turn(
                    prompts[int(r.request_id)],
                    r.token_ids,
                    r.logprobs,
                    0,
                    "",
                    "test",
                    "",
                    Usage(),
                    kept=r.kept,
                ),
            ),
            status="submitted",
            submission={},
            verdict=Verdict("graded", 1.0, "solved"),
        )
        for r in sorted(made, key=lambda r: int(r.request_id))
    ]


def _prompts(number: int) -> list[tuple[int, ...]]:
    rng = random.Random(0)
    return [tuple(rng.randrange(3, 259) for _ in range(rng.randint(3, 20))) for _ in range(number)]


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_engine_and_trainer_agree_on_every_log_probability(
    family: str, cuts: dict[str, Any]
) -> None:
    model = tiny_model(family)
    samples = [to_sample(r, 0.5) for r in rollouts(model, cuts)]
    assert any(s.kept for s in samples) is bool(cuts)
    trainer = LocalTrainer(model, AlgoSection(), TrainSection(), TEMPERATURE)
    metrics = trainer.train_step(samples).metrics
    assert metrics["mismatch/max_abs"] < 1e-4


@pytest.mark.parametrize("cuts", CUTS[1:])
def test_gradients_are_those_of_the_cut_distribution(cuts: dict[str, Any]) -> None:
    model = tiny_model()
    samples = [to_sample(r, (-1.0) ** n) for n, r in enumerate(rollouts(model, cuts))]
    plain = copy.deepcopy(model)
    for sample in samples:
        loss = -sample.advantage * torch.stack(own_logprobs(plain, sample)).sum()
        (loss / (TOKENS_PER_ROLLOUT * len(samples))).backward()
    config = TrainSection(max_grad_norm=1e9, learning_rate=1e-9)
    trainer = LocalTrainer(model, AlgoSection(), config, TEMPERATURE)
    seen: dict[str, torch.Tensor] = {}
    step = trainer.optimizer.step

    def note(*args: Any, **kwargs: Any) -> Any:
        seen.update({k: p.grad.clone() for k, p in model.named_parameters()})
        return step(*args, **kwargs)

    trainer.optimizer.step = note  # type: ignore[method-assign]
    trainer.train_step(samples)
    for name, parameter in plain.named_parameters():
        assert torch.allclose(seen[name], parameter.grad, atol=1e-5), name


def own_logprobs(model: Any, sample: Sample) -> list[torch.Tensor]:
    """Of the trained tokens, one at a time, over the recorded ids alone."""
    logits = model(input_ids=torch.tensor([sample.token_ids])).logits[0] / TEMPERATURE
    found = []
    for t, on in enumerate(sample.loss_mask):
        if on:
            row = logits[t - 1]
            among = row[list(sample.kept[t])] if sample.kept and sample.kept[t] else row
            found.append(row[sample.token_ids[t]] - torch.logsumexp(among, 0))
    return found


def test_a_forced_token_is_no_choice() -> None:
    made = rollouts(tiny_model(), {"top_p": 0.3})
    forced = [sum(len(k) == 1 for k in r.turns[0].kept) for r in made]
    assert sum(forced) > 0
    for rollout, number in zip(made, forced, strict=True):
        assert rollout.num_tokens == 14 - number
        sample = to_sample(rollout, 1.0)
        assert sum(sample.loss_mask) == rollout.num_tokens
        assert load(Rollout, dump(rollout)) == rollout


def test_restricting_keeps_whole_rows_and_gives_no_gradient_to_what_is_removed() -> None:
    logits = torch.randn(3, 6, requires_grad=True)
    cut = restrict(logits, [(), (1, 4), (2,)])
    logprobs = torch.log_softmax(cut, -1)
    assert torch.equal(cut[0], logits[0])
    assert float(logprobs[2, 2].detach()) == 0.0
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    assert torch.isfinite(entropy).all()
    logprobs[1, 1].backward()
    assert logits.grad is not None
    assert logits.grad[1].nonzero()[:, 0].tolist() == [1, 4]
    assert not logits.grad[2].any()
    assert restrict(logits, ()) is logits


def test_predictions_that_were_cut_differently_are_not_shared() -> None:
    cuts: list[tuple[int, ...]] = [(1, 7), (7, 9), (1, 7), ()]
    opening = (5,) * 9
    samples = [
        Sample(
            (*opening, 7, n),
            (*[False] * 9, True, False),
            (0.0,) * 11,
            1.0,
            "low",
            0,
            (*[()] * 9, ids, ()),
        )
        for n, ids in enumerate(cuts)
    ]
    trainer = LocalTrainer(tiny_model(), AlgoSection(), TrainSection(), TEMPERATURE)
    (pack,) = trainer.packs(samples)
    batch = collate(samples, pack, "token_sum")
    assert sorted(batch.kept) == [(), (1, 7), (7, 9)]
    assert batch.targets.tolist() == [7, 7, 7]
    logprobs, _ = score(trainer.model, batch, TEMPERATURE, trainer.ways)
    members = [samples[i] for i in pack.members]
    expected = torch.stack([own_logprobs(trainer.model, s)[0] for s in members])
    assert torch.allclose(logprobs, expected, atol=1e-5)
