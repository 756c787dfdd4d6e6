import argparse
import json
from pathlib import Path
from typing import Self

import pytest
from tiny_package import InProcessSandbox, site

from frontrunner.cli import tasks as command
from frontrunner.errors import UserError

__all__ = ["site"]


class PooledSandbox(InProcessSandbox):
    """Takes the arguments of `LocalSandbox` and ignores them."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def manifest(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("frontrunner.envs.sandbox.LocalSandbox", PooledSandbox)
    out = tmp_path / "tiny.jsonl"
    assert run("build", "tiny", "--out", str(out), "--train", "3", "--heldout", "0") == 0
    return str(out)


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))


def test_build_prints_yields_and_plain_progress(
    capsys: pytest.CaptureFixture[str], manifest: str
) -> None:
    printed = capsys.readouterr()
    assert "package:tiny" in printed.out
    assert "kind:comparison" in printed.out
    assert "3 train and 0 held-out tasks" in printed.out
    assert "tiny: running its tests" in printed.err


def test_build_that_falls_short_says_so(manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("build", "tiny", "--out", manifest, "--train", "99", "--heldout", "99") == 1
    assert "fewer than asked for" in capsys.readouterr().err


def test_build_refuses_senseless_numbers(site: Path) -> None:
    with pytest.raises(UserError, match="--jobs must be at least 1"):
        run("build", "tiny", "--jobs", "0")


def test_list_and_show(manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("list", manifest, "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["split"] for row in rows] == ["train"] * 3
    run("list", manifest, "--split", "heldout")
    assert capsys.readouterr().out == ""
    run("show", rows[0]["id"], "--set", manifest)
    shown = capsys.readouterr().out
    assert rows[0]["instruction"] in shown
    assert "+++ with the bug" in shown


def test_materialise_names_the_trees(manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("materialise", manifest, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["tasks"] == 3
    assert all(Path(tree).is_dir() for tree in facts["trees"])


def test_check_counts_and_exits_by_validity(
    manifest: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capsys.readouterr()
    assert run("check", manifest, "--json") == 0
    assert json.loads(capsys.readouterr().out)["valid"] == 3
    monkeypatch.setattr("frontrunner.envs.taskset.TaskSet.base_files", lambda *_: {})
    assert run("check", manifest, "--sample", "2") == 1
    printed = capsys.readouterr().out
    assert "0 of 2 tasks are valid" in printed
    assert "the bug does not fail its tests" in printed
