"""The training step against the plain one-sample-at-a-time reference, and its checkpoints."""

import json
import random
from pathlib import Path

import pytest
import torch

from frontrunner.algo.packing import pack
from frontrunner.config import AlgoSection, TrainSection
from frontrunner.errors import UserError
from frontrunner.testing import FAMILIES, tiny_model
from frontrunner.train import checkpoint
from frontrunner.train.batch import collate, token_logits
from frontrunner.train.loss import kl_loss, token_logprobs
from frontrunner.train.trainer import TOKENS_PER_ROLLOUT, LocalTrainer
from frontrunner.types import Sample


def make_samples(number: int, seed: int = 0, logprob: float | None = None) -> list[Sample]:
    rng = random.Random(seed)
    samples = []
    for n in range(number):
        length = rng.randint(4, 30)
        ids = tuple(rng.randrange(3, 259) for _ in range(length))
        mask = tuple(i > 1 and rng.random() < 0.6 for i in range(length))
        logprobs = tuple((-5.0 if logprob is None else logprob) * m for m in mask)
        samples.append(Sample(ids, mask, logprobs, rng.uniform(-1, 1), ("low", "high")[n % 2], 0))
    return samples


def reference(model, samples: list[Sample], cap: float, temperature: float) -> dict:
    """Loss and gradients one sample at a time, with full logits and no packing."""
    model.zero_grad()
    constant = TOKENS_PER_ROLLOUT * len(samples)
    total = 0.0
    for s in samples:
        logits = model(input_ids=torch.tensor([s.token_ids])).logits[0].float() / temperature
        logprobs = torch.log_softmax(logits, -1)
        for t in range(1, len(s.token_ids)):
            if s.loss_mask[t]:
                value = logprobs[t - 1, s.token_ids[t]]
                weight = min(float((value.detach() - s.logprobs[t]).exp()), cap)
                term = -weight * s.advantage * value / constant
                term.backward(retain_graph=True)
                total += float(term.detach())
    grads = {k: p.grad.clone() for k, p in model.named_parameters()}
    model.zero_grad()
    return {"loss": total, "grads": grads}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("micro_tokens", [40, 4096])
def test_packed_step_equals_the_plain_reference(family: str, micro_tokens: int) -> None:
    model = tiny_model(family)
    samples = make_samples(7)
    expected = reference(model, samples, 2.0, 0.8)
    config = TrainSection(micro_tokens=max(64, micro_tokens), max_grad_norm=1e9)
    trainer = LocalTrainer(model, AlgoSection(is_cap=2.0), config, 0.8)
    seen = {}

    def capture() -> float:
        seen.update({k: p.grad.clone() for k, p in model.named_parameters()})
        return 0.0

    trainer._update = capture  # the gradients, before they are used
    step = trainer.train_step(samples)
    assert step.metrics["train/loss"] == pytest.approx(expected["loss"], rel=1e-4)
    for name, grad in expected["grads"].items():
        assert torch.allclose(seen[name], grad, rtol=1e-3, atol=1e-6), name


def test_packed_sequences_do_not_see_each_other() -> None:
    model = tiny_model()
    samples = make_samples(6)
    plan = pack([len(s.token_ids) for s in samples], 4096)
    assert any(len(row) > 1 for micro in plan for row in micro.rows)
    with torch.no_grad():
        for micro in plan:
            batch = collate(samples, micro, "token_sum")
            packed, _ = token_logprobs(token_logits(model, batch), batch.targets, 1.0)
            alone = []
            for index in (i for row in micro.rows for i in row):
                plan_of_one = pack([len(samples[index].token_ids)], 64)[0]
                single = collate([samples[index]], plan_of_one, "token_sum")
                alone.append(token_logprobs(token_logits(model, single), single.targets, 1.0)[0])
            assert torch.allclose(packed, torch.cat(alone), atol=1e-5)


def test_a_step_raises_good_and_lowers_bad_trajectories() -> None:
    model = tiny_model()
    good, bad = make_samples(2, logprob=-5.5)
    good = Sample(good.token_ids, good.loss_mask, good.logprobs, 1.0, "low", 0)
    bad = Sample(bad.token_ids, bad.loss_mask, bad.logprobs, -1.0, "low", 0)

    def score(sample: Sample) -> float:
        batch = collate([sample], pack([len(sample.token_ids)], 64)[0], "token_sum")
        with torch.no_grad():
            return float(token_logprobs(token_logits(model, batch), batch.targets, 1.0)[0].sum())

    before = score(good), score(bad)
    trainer = LocalTrainer(model, AlgoSection(), TrainSection(learning_rate=1e-3), 1.0)
    trainer.train_step([good, bad])
    assert score(good) > before[0]
    assert score(bad) < before[1]


def test_sampler_equal_to_trainer_means_no_mismatch_and_unit_weights() -> None:
    model = tiny_model()
    (sample,) = make_samples(1)
    batch = collate([sample], pack([len(sample.token_ids)], 64)[0], "token_sum")
    with torch.no_grad():
        exact = token_logprobs(token_logits(model, batch), batch.targets, 1.0)[0].tolist()
    values = iter(exact)
    logprobs = tuple(next(values) if m else 0.0 for m in sample.loss_mask)
    same = Sample(sample.token_ids, sample.loss_mask, logprobs, 0.5, "low", 0)
    trainer = LocalTrainer(model, AlgoSection(), TrainSection(), 1.0)
    metrics = trainer.train_step([same]).metrics
    assert metrics["mismatch/max_abs"] < 1e-5
    assert metrics["mismatch/k3"] < 1e-9
    assert metrics["train/loss"] == pytest.approx(-0.5 * sum(exact) / TOKENS_PER_ROLLOUT, rel=1e-5)


def test_bfloat16_keeps_float32_masters() -> None:
    model = tiny_model().bfloat16()
    trainer = LocalTrainer(model, AlgoSection(), TrainSection(learning_rate=1e-5), 1.0)
    for _ in range(3):
        trainer.train_step(make_samples(4))
    moved = [
        (m - p.float()).abs().max()
        for m, p in zip(trainer._masters, trainer._parameters, strict=True)
    ]
    assert any(float(d) > 0 for d in moved)  # finer than bfloat16 can hold
    assert all(
        torch.equal(m.bfloat16(), p)
        for m, p in zip(trainer._masters, trainer._parameters, strict=True)
    )


def test_kl_term_pulls_back_to_the_base() -> None:
    samples = make_samples(4)
    distances = []
    for coefficient in (0.0, 10.0):
        torch.manual_seed(0)
        model = tiny_model()
        algo = AlgoSection(kl_coef=coefficient)
        start = {k: v.clone() for k, v in model.state_dict().items()}
        trainer = LocalTrainer(model, algo, TrainSection(learning_rate=3e-3), 1.0)
        for _ in range(8):
            metrics = trainer.train_step(samples).metrics
        distances.append(sum(float((v - start[k]).norm()) for k, v in model.state_dict().items()))
        assert ("train/kl_reference" in metrics) == (coefficient > 0)
    assert distances[1] < distances[0]


@pytest.mark.parametrize("bf16", [False, True])
def test_restored_training_continues_to_the_bit(tmp_path: Path, bf16: bool) -> None:
    def build() -> LocalTrainer:
        model = tiny_model()
        return LocalTrainer(model.bfloat16() if bf16 else model, AlgoSection(), TrainSection(), 1.0)

    straight = build()
    for n in range(4):
        straight.train_step(make_samples(4, seed=n))
    first = build()
    for n in range(2):
        first.train_step(make_samples(4, seed=n))
    first.save(tmp_path / "step-2")
    second = build()
    second.restore(tmp_path / "step-2")
    assert second.step == 2
    for n in range(2, 4):
        second.train_step(make_samples(4, seed=n))
    assert all(
        torch.equal(v, second.model.state_dict()[k]) for k, v in straight.model.state_dict().items()
    )


def test_truncated_checkpoint_is_named(tmp_path: Path) -> None:
    trainer = LocalTrainer(tiny_model(), AlgoSection(), TrainSection(), 1.0)
    trainer.train_step(make_samples(2))
    trainer.save(tmp_path / "step-1")
    file = tmp_path / "step-1" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"model.safetensors: the file is truncated"):
        trainer.restore(tmp_path / "step-1")
    (tmp_path / "step-1" / "state.json").unlink()
    with pytest.raises(UserError, match="not a complete checkpoint"):
        trainer.restore(tmp_path / "step-1")


def test_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    LocalTrainer(tiny_model("qwen2"), AlgoSection(), TrainSection(), 1.0).save(tmp_path / "step-1")
    with pytest.raises(UserError, match="another model"):
        LocalTrainer(tiny_model("llama"), AlgoSection(), TrainSection(), 1.0).restore(
            tmp_path / "step-1"
        )


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        (tmp_path / f"step-{step}").mkdir()
        (tmp_path / f"step-{step}" / "state.json").write_text(json.dumps({"step": step}))
    (tmp_path / ".step-11.99").mkdir()
    checkpoint.prune(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-10", "step-9"]
    assert checkpoint.latest(tmp_path) == tmp_path / "step-10"


def test_the_kl_term_has_the_gradient_of_the_kl() -> None:
    """Summed over all outcomes with their probability, it equals d KL(pi || reference)."""
    torch.manual_seed(0)
    logits = torch.randn(5, requires_grad=True)
    reference = torch.log_softmax(torch.randn(5), -1)
    logprobs = torch.log_softmax(logits, -1)
    exact = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), logits)[0]
    logprobs = torch.log_softmax(logits, -1)
    weights = logprobs.detach().exp()
    loss = kl_loss(logprobs, logprobs.detach(), reference, weights, cap=2.0)
    assert torch.allclose(torch.autograd.grad(loss, logits)[0], exact, atol=1e-6)


def test_nothing_to_learn_from_is_said() -> None:
    trainer = LocalTrainer(tiny_model(), AlgoSection(), TrainSection(), 1.0)
    with pytest.raises(UserError, match="no rollout could be graded"):
        trainer.train_step([])
    assert trainer.step == 0


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    model = tiny_model()
    trainer = LocalTrainer(model, AlgoSection(), TrainSection(), 1.0)
    before = trainer.weights()
    (sample,) = make_samples(1)
    broken = Sample(sample.token_ids, sample.loss_mask, sample.logprobs, float("nan"), "low", 0)
    with pytest.raises(UserError, match="not finite"):
        trainer.train_step([broken])
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())
    assert trainer.step == 0
