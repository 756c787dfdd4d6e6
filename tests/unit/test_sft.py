"""Supervised training of the small base policy: masks, batches, and going on after a kill."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from frontrunner.envs import expert
from frontrunner.envs.chat import ChatFormat
from frontrunner.errors import UserError
from frontrunner.testing import byte_tokenizer
from frontrunner.train import sft

TINY = sft.SftConfig(
    vocab_size=400,
    hidden_size=32,
    intermediate_size=64,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    drills=12,
    trajectories=8,
    batch_tokens=1024,
    max_tokens=900,
    warmup_steps=2,
    packages=("toolz",),
    held_out=(),
)


def test_only_right_answers_are_learned() -> None:
    chat = ChatFormat(byte_tokenizer())
    turns = (
        expert.Turn("edit a => b", "error: no", learn=False),
        expert.Turn("edit b => a", "1 a", learn=True),
        expert.Turn("submit", "", learn=True),
    )
    ids, mask = sft.encode(chat, {"low": "Effort: low"}, expert.Trajectory("low", "fix", turns))
    learned = chat.decode(tuple(i for i, m in zip(ids, mask, strict=True) if m))
    assert "edit b => a" in learned
    assert "submit" in learned
    assert "edit a => b" not in learned
    assert "error" not in learned


def test_batches_hold_every_example_once_within_their_size() -> None:
    examples = [([0] * (10 + 7 * n % 90), []) for n in range(50)]
    assert sft.batches([], 200, seed=1) == []
    groups = sft.batches(examples, 200, seed=1)
    assert sorted(i for g in groups for i in g) == list(range(50))
    assert all(max(len(examples[i][0]) for i in g) * len(g) <= 200 for g in groups)


def test_training_goes_on_where_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sft, "SAVE_EVERY", 2)
    whole = sft.train_base(TINY, tmp_path / "whole", lambda _: None)
    weights = (tmp_path / "whole" / "model.safetensors").read_bytes()
    pad, calls = sft._pad, []

    def killed(*args: object) -> object:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return pad(*args)

    monkeypatch.setattr(sft, "_pad", killed)
    with pytest.raises(KeyboardInterrupt):
        sft.train_base(TINY, tmp_path / "killed", lambda _: None)
    monkeypatch.setattr(sft, "_pad", pad)
    with pytest.raises(UserError, match="other settings"):
        sft.train_base(replace(TINY, learning_rate=1.0), tmp_path / "killed", lambda _: None)
    resumed = sft.train_base(TINY, tmp_path / "killed", lambda _: None)
    assert (tmp_path / "killed" / "model.safetensors").read_bytes() == weights
    assert resumed["sha256"] == whole["sha256"]
    assert resumed["final_answer_loss"] == whole["final_answer_loss"]
    assert not (tmp_path / "killed" / "training.pt").exists()
    (recorded,) = json.loads((tmp_path / "whole" / "recipe.json").read_text())["passes"]
    assert recorded["num_tokens"][0] > 0


def test_a_model_with_an_unknown_recipe_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert sft.earlier_passes(str(tmp_path)) == []
    (tmp_path / "recipe.json").write_text('{"passes": [{"seed": 0}]}')
    assert sft.earlier_passes(str(tmp_path)) == [{"seed": 0}]
    for text in ("{}", "[]", "{", '{"passes": 1}'):
        (tmp_path / "recipe.json").write_text(text)
        with pytest.raises(UserError, match=r"recipe.json: no list of passes"):
            sft.earlier_passes(str(tmp_path))
