"""The stated memory of a step is what a step takes."""

from __future__ import annotations

import pytest
import torch

from frontrunner.config import AlgoSection, TrainSection
from frontrunner.testing import FAMILIES, tiny_model
from frontrunner.train.memory import peak_bytes, step_memory
from frontrunner.train.trainer import LocalTrainer
from frontrunner.types import Sample


def make_trainer(family: str = "llama", checkpointing: bool = False) -> LocalTrainer:
    train = TrainSection(micro_tokens=4096, gradient_checkpointing=checkpointing)
    model = tiny_model(family, num_hidden_layers=4)
    return LocalTrainer(model, AlgoSection(), train, 1.0)


def sample_of(num_tokens: int) -> Sample:
    mask = (*(False,) * (num_tokens - 8), *(True,) * 8)
    return Sample((5,) * num_tokens, mask, (-5.0,) * num_tokens, 1.0, "low", 0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_price_of_a_token_predicts_a_longer_step(family: str, checkpointing: bool) -> None:
    trainer = make_trainer(family, checkpointing)
    stated = step_memory(trainer)
    trainer.train_step([sample_of(64)])  # gradients and moments exist from here on
    peaks = [
        peak_bytes(lambda n=n: trainer.train_step([sample_of(n)]), torch.device("cpu"))
        for n in (1000, 2000)
    ]
    measured = (peaks[1] - peaks[0]) / 1000
    assert measured == pytest.approx(stated.per_token, rel=0.05)


def test_checkpointing_lowers_the_price_of_a_token() -> None:
    assert step_memory(make_trainer(checkpointing=True)).per_token < (
        0.5 * step_memory(make_trainer()).per_token
    )


def test_measuring_changes_nothing() -> None:
    trainer = make_trainer()
    before = trainer.weights()
    step_memory(trainer)
    assert all(torch.equal(v, trainer.model.state_dict()[k]) for k, v in before.items())
    assert all(p.grad is None for p in trainer.model.parameters())
    assert trainer.step == 0


def test_a_step_peaks_where_stated() -> None:
    trainer = make_trainer()
    stated = step_memory(trainer)
    held = sum(p.nbytes for p in trainer.model.parameters())
    peak = held + peak_bytes(lambda: trainer.train_step([sample_of(2000)]), torch.device("cpu"))
    chunk = stated.fixed - 4 * held  # logits of a whole chunk, of which this step has eight rows
    assert peak == pytest.approx(stated.peak(2000) - chunk, rel=0.1)
