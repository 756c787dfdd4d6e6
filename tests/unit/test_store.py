"""Run directories: nothing is overwritten, torn lines go, settings must match."""

from pathlib import Path

import pytest

from frontrunner.config import Config
from frontrunner.errors import UserError
from frontrunner.rollout.store import RolloutFile, RunDirectory, read_json
from frontrunner.types import Rollout, Verdict


def rollout(n: int) -> Rollout:
    return Rollout(f"t{n}", "low", n, (), "submitted", {}, Verdict("graded", 1.0, "solved"))


def test_appended_rollouts_come_back(tmp_path: Path) -> None:
    file = RolloutFile(tmp_path / "a" / "r.jsonl")
    file.append([rollout(0), rollout(1)])
    file.append([rollout(2)])
    assert file.read() == [rollout(n) for n in range(3)]


def test_a_torn_line_and_surplus_lines_are_cut(tmp_path: Path) -> None:
    file = RolloutFile(tmp_path / "r.jsonl")
    file.append([rollout(n) for n in range(5)])
    with file.path.open("a") as handle:
        handle.write('{"task_id": "t9", "eff')
    assert file.keep(lambda n: n // 2 * 2) == 4
    assert file.read() == [rollout(n) for n in range(4)]


def test_reading_leaves_out_a_torn_last_line_and_makes_no_folder(tmp_path: Path) -> None:
    file = RolloutFile(tmp_path / "r.jsonl")
    file.append([rollout(n) for n in range(2)])
    file.path.write_bytes(file.path.read_bytes()[:-9])
    assert file.read() == [rollout(0)]
    assert RolloutFile(tmp_path / "none" / "r.jsonl").read() == []
    assert not (tmp_path / "none").exists()


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    file = RolloutFile(tmp_path / "r.jsonl")
    file.append([rollout(0)])
    with file.path.open("a") as handle:
        handle.write("not json\n")
    with pytest.raises(UserError, match=r"r.jsonl, line 2: not a rollout"):
        file.read()


def test_a_run_does_not_start_in_a_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="already there"):
        RunDirectory.open(tmp_path, Config(), {}, resume=False)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


INPUTS = {"model": "aa", "tasks": "bb"}


def test_resume_needs_a_run_and_the_same_settings(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run to resume"):
        RunDirectory.open(tmp_path / "x", Config(), INPUTS, resume=True)
    del_me = RunDirectory.open(tmp_path / "x", Config(), INPUTS, resume=False)
    with pytest.raises(UserError, match="another process"):
        RunDirectory.open(tmp_path / "x", Config(), INPUTS, resume=True)
    del_me.close()
    changed = Config.model_validate({"train": {"steps": 7}})
    with pytest.raises(UserError, match=r"train.steps \(40 -> 7\)"):
        RunDirectory.open(tmp_path / "x", changed, INPUTS, resume=True)
    with pytest.raises(UserError, match="model changed"):
        RunDirectory.open(tmp_path / "x", Config(), {**INPUTS, "model": "cc"}, resume=True)
    elsewhere = Config.model_validate({"run": {"directory": "moved"}})
    assert RunDirectory.open(tmp_path / "x", elsewhere, INPUTS, resume=True).wall_seconds >= 0


def test_a_start_that_was_killed_early_can_start_again(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / ".config.json.77").write_text("{")
    RunDirectory.open(tmp_path, Config(), INPUTS, resume=False)
    assert (tmp_path / "config.json").is_file()


@pytest.mark.parametrize("content", [b"[1]", b"{", b"\xff", b'{"a": 1}'])
def test_a_damaged_json_file_is_named_with_what_it_should_hold(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"run.json: damaged.*inputs"):
        read_json(path, "inputs")
