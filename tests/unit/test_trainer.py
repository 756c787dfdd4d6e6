"""What a training step does to the weights, what it refuses, and its checkpoints.

That its loss and gradients are right is held by `tests/parity/test_train_step.py`.
"""

import json
import random
from pathlib import Path
from typing import Literal

import pytest
import torch

from frontrunner.config import AlgoSection, TrainSection
from frontrunner.errors import UserError
from frontrunner.testing import tiny_model
from frontrunner.train import checkpoint
from frontrunner.train.loss import kl_loss
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


def logprobs_of(model, sample: Sample) -> torch.Tensor:
    """log pi of the trainable tokens, from the model's plain logits."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([sample.token_ids])).logits[0, :-1]
    trained = torch.tensor(sample.loss_mask[1:])
    chosen = torch.log_softmax(logits, -1).gather(-1, torch.tensor(sample.token_ids)[1:, None])
    return chosen[trained, 0]


def test_a_step_raises_good_and_lowers_bad_trajectories() -> None:
    model = tiny_model()
    good, bad = make_samples(2, logprob=-5.5)
    good = Sample(good.token_ids, good.loss_mask, good.logprobs, 1.0, "low", 0)
    bad = Sample(bad.token_ids, bad.loss_mask, bad.logprobs, -1.0, "low", 0)

    def score(sample: Sample) -> float:
        return float(logprobs_of(model, sample).sum())

    before = score(good), score(bad)
    trainer = LocalTrainer(model, AlgoSection(), TrainSection(learning_rate=1e-3), 1.0)
    trainer.train_step([good, bad])
    assert score(good) > before[0]
    assert score(bad) < before[1]


def test_sampler_equal_to_trainer_means_no_mismatch_and_unit_weights() -> None:
    model = tiny_model()
    (sample,) = make_samples(1)
    exact = logprobs_of(model, sample).tolist()
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


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("bf16", [False, True])
def test_restored_training_continues_to_the_bit(
    tmp_path: Path, bf16: bool, optimizer: Literal["adamw", "sgd"]
) -> None:
    def build() -> LocalTrainer:
        model = tiny_model()
        config = TrainSection(optimizer=optimizer)
        return LocalTrainer(model.bfloat16() if bf16 else model, AlgoSection(), config, 1.0)

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


def test_sgd_steps_along_the_gradient() -> None:
    moved = []
    for rate in (0.5, 1.0):
        config = TrainSection(optimizer="sgd", learning_rate=rate, warmup_steps=0)
        trainer = LocalTrainer(tiny_model(), AlgoSection(), config, 1.0)
        before = trainer.weights()
        norm = trainer.train_step(make_samples(4)).metrics["train/grad_norm"]
        change = {k: v - before[k] for k, v in trainer.weights().items()}
        length = sum(float(c.square().sum()) for c in change.values()) ** 0.5
        assert length == pytest.approx(rate * norm, rel=1e-3)
        moved.append(change)
    for name, change in moved[0].items():
        assert torch.allclose(2 * change, moved[1][name], atol=1e-6)


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


def test_a_batch_without_a_choice_is_refused_and_changes_nothing() -> None:
    trainer = LocalTrainer(tiny_model(), AlgoSection(), TrainSection(), 1.0)
    before = trainer.weights()
    forced = [Sample((5, 6, 7), (False,) * 3, (0.0,) * 3, 1.0, "low", 0)]
    with pytest.raises(UserError, match=r"step 1: no sampled token had an alternative.*top_k"):
        trainer.train_step(forced)
    assert all(torch.equal(before[k], v) for k, v in trainer.weights().items())
    assert trainer.step == 0
