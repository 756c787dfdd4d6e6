import json
from pathlib import Path

import pytest
from report_run import write_run

from frontrunner.cli.main import main
from frontrunner.config import Config


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main(["frontier", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_plan_says_what_a_claim_needs(capsys: pytest.CaptureFixture[str]) -> None:
    designs = printed(capsys, "plan", "0.05", "--seeds", "1", "5")["designs"]
    assert [d["num_seeds"] for d in designs] == [1, 5]
    assert all(d["power"] >= 0.8 for d in designs)
    small = printed(capsys, "plan", "0.05", "--tasks", "100", "--runs", "3", "--seeds", "1")
    assert small["designs"][0]["power"] < 0.4
    assert main(["frontier", "plan", "0.02", "--seeds", "3"]) == 0
    assert "no number of tasks suffices" in capsys.readouterr().out
    assert main(["frontier", "plan", "0"]) == 2


def test_lint_passes_the_linear_reward_and_shows_what_is_wrong_with_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = printed(capsys, "lint", "S - lam * C")
    assert good["affine"] and max(m["largest"] for m in good["evidence"].values()) < 1e-6
    bad = printed(capsys, "lint", "S - lam * maximum(2 * p - 1, 0) * C")
    assert not bad["affine"] and bad["evidence"]["with hopeless tasks"]["largest"] > 0.01
    assert main(["frontier", "lint", "S - x"]) == 2
    assert "'x'" in capsys.readouterr().err


def test_compare_needs_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frontier", "compare", str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err


def test_compare_and_plan_read_a_finished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run", num_tasks=30, num_steps=2)
    (tmp_path / "run" / "config.json").write_text(Config().model_dump_json())
    run = str(tmp_path / "run")
    found = printed(capsys, "compare", run)
    assert [m["effort"] for m in found["levels"]] == ["low", "medium", "high"]
    assert found["num_tasks"] == 30
    assert main(["frontier", "compare", run]) == 0
    assert "hypervolume" in capsys.readouterr().out
    noise = printed(capsys, "plan", "0.1", "--from", run, "--seeds", "1")["noise"]
    assert noise["run"] > 0.0
    loss = printed(capsys, "lint", "S - lam * C", "--rollouts", run)["stored"]
    assert loss["largest"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    "wrong",
    [["nan"], ["0.03", "--tasks", "0", "--runs", "1"], ["0.03", "--seed-sd", "-1"],
     ["0.03", "--from", "no-run"]],
)  # fmt: skip
def test_a_plan_of_impossible_numbers_is_refused(wrong: list[str]) -> None:
    assert main(["frontier", "plan", *wrong]) == 2
