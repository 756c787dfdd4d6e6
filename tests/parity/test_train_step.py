"""The training step against one sample at a time, with full logits, no packing and no sharing."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch

from frontrunner.algo.advantage import advantages_of
from frontrunner.algo.baseline import BASELINES, Baseline
from frontrunner.config import AlgoSection, TrainSection
from frontrunner.testing import FAMILIES, tiny_model
from frontrunner.train.attention import NAME
from frontrunner.train.model import load_policy
from frontrunner.train.trainer import TOKENS_PER_ROLLOUT, LocalTrainer
from frontrunner.types import Sample

TEMPERATURE = 0.8


def make_groups(
    groups: int = 3, size: int = 4, seed: int = 0, kind: Baseline = "length_weighted"
) -> list[Sample]:
    """Groups as agents make them: one opening, a first turn that some share, turns of all lengths,
    observations that are not trained on, and two rollouts that are equal."""
    rng = random.Random(seed)

    def tokens(low: int, high: int) -> list[int]:
        return [rng.randrange(3, 259) for _ in range(rng.randint(low, high))]

    samples = []
    for group in range(groups):
        opening, first, seen = tokens(10, 24), tokens(9, 12), tokens(4, 9)
        drafts = []
        for member in range(size):
            ids, mask = list(opening), [False] * len(opening)
            turns = [tokens(1, 9) for _ in range(rng.randint(1, 3))]
            for number, turn in enumerate([first, *turns] if member % 2 else turns):
                answer = seen if number == 0 else tokens(1, 5)
                ids += turn + answer
                mask += [True] * len(turn) + [False] * len(answer)
            drafts.append((tuple(ids), tuple(mask)))
        drafts[-1] = drafts[0]
        rewards = [rng.uniform(0, 1) for _ in drafts]
        for (ids, mask), a in zip(
            drafts, advantages_of(rewards, [sum(m) for _, m in drafts], kind), strict=True
        ):
            logprobs = tuple(m * rng.uniform(-8, -3) for m in mask)
            samples.append(Sample(ids, mask, logprobs, a, ("low", "high")[group % 2], 0))
    return samples


def reference_step(
    model: Any, base: Any, samples: list[Sample], algo: AlgoSection
) -> tuple[float, dict[str, torch.Tensor], float]:
    """Loss, gradients and mean entropy: the definition, token by token."""
    model.zero_grad()
    mean = algo.loss == "sequence_mean"
    constant = len(samples) * (1.0 if mean else TOKENS_PER_ROLLOUT)
    total, entropies = torch.zeros(()), []
    for s in samples:
        ids = torch.tensor([s.token_ids])
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0].float() / TEMPERATURE, -1)
        with torch.no_grad():
            known = torch.log_softmax(base(input_ids=ids).logits[0].float() / TEMPERATURE, -1)
        trained = [t for t in range(1, len(s.token_ids)) if s.loss_mask[t]]
        for t in trained:
            value, far = (x[t - 1, s.token_ids[t]] for x in (logprobs, known))
            weight = (value.detach() - s.logprobs[t]).exp().clamp(max=algo.is_cap)
            term = -weight * s.advantage * value
            term = term + algo.kl_coef * weight * 0.5 * (value - far) ** 2
            total = total + term / constant / (len(trained) if mean else 1)
            row = logprobs[t - 1].detach()
            entropies.append(float(-(row.exp() * row).sum()))
    total.backward()
    grads = {k: p.grad.clone() for k, p in model.named_parameters()}
    model.zero_grad()
    return float(total.detach()), grads, sum(entropies) / len(entropies)


def trainer_step(
    trainer: LocalTrainer, samples: list[Sample]
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Metrics and gradients of a step; the gradients before they are used."""
    seen = {}

    def capture() -> float:
        names = [k for k, p in trainer.model.named_parameters() if p.requires_grad]
        for name, master in zip(names, trainer._masters, strict=True):
            seen[name] = master.grad.clone()
            master.grad = None
        return 0.0

    trainer._update = capture  # type: ignore[method-assign]
    return trainer.train_step(samples).metrics, seen


def assert_parity(model: Any, algo: AlgoSection, train: TrainSection, samples: list[Sample]) -> Any:
    """The trainer of a model whose step equals the reference."""
    base = copy.deepcopy(model)
    trainer = LocalTrainer(model, algo, train, TEMPERATURE)
    if algo.kl_coef:  # away from the reference model, where the penalty has no gradient
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.02 * torch.randn_like(parameter)
    plain = copy.deepcopy(model).eval()
    plain.set_attn_implementation("eager")
    loss, grads, entropy = reference_step(plain, base, samples, algo)
    metrics, found = trainer_step(trainer, samples)
    assert metrics["train/loss"] == pytest.approx(loss, rel=1e-4, abs=1e-5)
    assert metrics["train/entropy"] == pytest.approx(entropy, rel=1e-4)
    for name, grad in grads.items():
        scale = float(grad.abs().max())
        assert torch.allclose(found[name], grad, rtol=1e-3, atol=1e-5 * scale + 1e-7), name
    return trainer


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("micro_tokens", [64, 4096])
def test_every_family_equals_the_reference(family: str, micro_tokens: int) -> None:
    trainer = assert_parity(
        tiny_model(family), AlgoSection(), TrainSection(micro_tokens=micro_tokens), make_groups()
    )
    assert trainer.ways.packing and trainer.ways.projection


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kl_term_equals_the_reference(family: str) -> None:
    algo = AlgoSection(kl_coef=0.3)
    assert_parity(tiny_model(family), algo, TrainSection(), make_groups(2))


@pytest.mark.parametrize("kind", BASELINES)
@pytest.mark.parametrize("loss", ["token_sum", "sequence_mean"])
def test_every_baseline_and_loss_equals_the_reference(kind: Baseline, loss: Any) -> None:
    if loss == "sequence_mean" and kind.startswith("length_weighted"):
        pytest.skip("the configuration refuses this pair")
    algo = AlgoSection(baseline=kind, loss=loss, kl_coef=0.1, is_cap=1.5)
    assert_parity(tiny_model(), algo, TrainSection(micro_tokens=100), make_groups(2, kind=kind))


@pytest.mark.parametrize("family", FAMILIES)
def test_activation_checkpointing_changes_no_gradient(family: str) -> None:
    train = TrainSection(micro_tokens=128, gradient_checkpointing=True)
    assert_parity(tiny_model(family), AlgoSection(), train, make_groups(2))


def test_an_untied_projection_gets_its_gradient() -> None:
    model = tiny_model(tie_word_embeddings=False)
    assert_parity(model, AlgoSection(), TrainSection(), make_groups(2))


OTHERS = {
    # family: (extra settings, whether packing and projection are right for it)
    "gpt2": ({"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}, True, True),
    "gpt_neox": ({}, True, True),
    "olmo2": ({}, True, True),
    "granite": ({"logits_scaling": 3.0}, True, False),
    "mistral": ({"sliding_window": 16}, False, True),
    "gemma2": ({"sliding_window": 16, "query_pre_attn_scalar": 8}, False, False),
    "llama4_text": (
        {
            "attention_chunk_size": 16,
            "num_local_experts": 2,
            "intermediate_size_mlp": 64,
            "num_hidden_layers": 4,
        },
        False,
        False,
    ),
    "qwen3_moe": (
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        True,
        True,
    ),
    "bloom": ({"n_layer": 2, "n_head": 4}, False, True),
    "mamba": ({"state_size": 4}, False, True),
}


@pytest.mark.parametrize("family", OTHERS)
def test_other_architectures_equal_the_reference_by_the_way_that_is_right_for_them(
    family: str,
) -> None:
    settings, packing, projection = OTHERS[family]
    trainer = assert_parity(
        tiny_model(family, **settings),
        AlgoSection(),
        TrainSection(micro_tokens=128),
        make_groups(2),
    )
    assert (trainer.ways.packing, trainer.ways.projection) == (packing, projection)
    assert (trainer.model.config._attn_implementation == NAME) == packing


def test_the_shipped_policy_equals_the_reference() -> None:
    policy = load_policy("base")
    samples = make_groups(1)
    trainer = assert_parity(policy.model, AlgoSection(), TrainSection(), samples)
    assert trainer.ways.packing and trainer.ways.projection


def test_shared_beginnings_are_computed_once() -> None:
    samples = make_groups()
    metrics, _ = trainer_step(
        LocalTrainer(tiny_model(), AlgoSection(), TrainSection(), 1.0), samples
    )
    distinct = {s.token_ids[:n] for s in samples for n in range(1, len(s.token_ids) + 1)}
    assert metrics["train/sample_tokens"] == sum(len(s.token_ids) for s in samples)
    assert metrics["train/computed_tokens"] == len(distinct)


def test_bfloat16_stays_near_the_reference_in_float32() -> None:
    samples = make_groups()
    model = tiny_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 0.3  # as far from uniform as real models, not further
    loss, grads, _ = reference_step(model, model, samples, AlgoSection())
    trainer = LocalTrainer(model.bfloat16(), AlgoSection(), TrainSection(), TEMPERATURE)
    metrics, found = trainer_step(trainer, samples)
    assert trainer.ways.packing and trainer.ways.projection
    assert metrics["train/loss"] == pytest.approx(loss, rel=0.05, abs=0.01)
    for name, grad in grads.items():
        assert found[name].dtype == torch.float32
        error = (found[name] - grad).norm() / grad.norm()
        assert float(error) < 0.1, name


def test_a_prepared_model_serves_other_calls_as_before() -> None:
    model = tiny_model()
    ids = torch.tensor([[5, 6, 7, 8, 0, 0], [9, 10, 11, 12, 13, 14]])
    mask = (ids > 0).long()
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=mask).logits
        LocalTrainer(model, AlgoSection(), TrainSection(), 1.0)
        after = model.eval()(input_ids=ids, attention_mask=mask).logits
    assert torch.equal(before, after)
    assert NAME not in model.config.to_json_string()
