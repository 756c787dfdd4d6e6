"""ATIF documents of rollouts."""

import json
from pathlib import Path

import pytest

from frontrunner.cli.main import main
from frontrunner.envs import taskset
from frontrunner.rollout.atif import trajectory
from frontrunner.rollout.store import RolloutFile
from frontrunner.types import Rollout, Turn, Usage, Verdict


def rollout(task: str = "t-1") -> Rollout:
    turns = (
        Turn((1, 2), (3,), (-0.1,), 0, "view", "view", "1 x", Usage(fresh=2, output=1)),
        Turn((4,), (5, 6), (-0.2, -0.3), 1, "hm", "malformed", "?", Usage(1, 3, 0, 2)),
    )
    verdict = Verdict("graded", 1.0, "solved")
    return Rollout(task, "low", 7, turns, "submitted", {"m.py": "x"}, verdict, 0.5, 0.9)


def test_a_rollout_becomes_an_atif_document() -> None:
    document = trajectory(rollout(), instruction="fix it", system="be quick")
    assert [s["step_id"] for s in document["steps"]] == [1, 2, 3, 4]
    first, second = document["steps"][2:]
    assert first["metrics"]["prompt_token_ids"] == [1, 2]
    assert second["metrics"]["prompt_token_ids"] == [1, 2, 3, 4]
    assert first["reasoning_effort"] == "low"
    assert first["observation"]["results"][0]["source_call_id"] == "call-1"
    assert "tool_calls" not in second
    assert document["final_metrics"]["total_prompt_tokens"] == 6
    models = pytest.importorskip("atif")
    models.Trajectory.model_validate(document)


def test_stored_rollouts_are_exported_with_their_instruction(tmp_path: Path) -> None:
    task = taskset.load("quickstart").tasks[0]
    RolloutFile(tmp_path / "r.jsonl").append([rollout(task.id)])
    words = ["--rollouts", str(tmp_path / "r.jsonl"), "--out", str(tmp_path / "o")]
    assert main(["tasks", "export", *words]) == 0
    (file,) = (tmp_path / "o").iterdir()
    document = json.loads(file.read_text())
    assert document["steps"][0]["message"] == task.instruction
    assert document["schema_version"] == "ATIF-v1.8"


def test_a_damaged_file_of_rollouts_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.jsonl").write_text("{}\n")
    words = ["--rollouts", str(tmp_path / "r.jsonl"), "--out", str(tmp_path / "o")]
    assert main(["tasks", "export", *words]) == 2
    assert "r.jsonl, line 1: not a rollout" in capsys.readouterr().err
