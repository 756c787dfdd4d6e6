"""The whole run through the command line: files, resume after SIGKILL, clear refusals."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from frontrunner.config import config_hash, load

ROOT = Path(__file__).parents[2]
SMALL = [
    "run.threads=1",
    "run.checkpoint_every=2",
    "eval.tasks=6",
    "eval.samples=1",
    "eval.num_bootstrap=200",
    "train.steps=4",
    "rollout.groups=3",
    "rollout.group_size=4",
    "rollout.concurrency=6",
    "effort.lambdas=[120, 60, 20]",
]


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "frontrunner.cli.main", *args]


def frontrunner(*args: str, **kwargs: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(*args), capture_output=True, text=True, cwd=ROOT, timeout=600, **kwargs
    )


def train(directory: Path, *extra: str) -> list[str]:
    return ["train", "recipes/quickstart.toml", *SMALL, f"run.directory={directory}", *extra]


def facts(directory: Path) -> dict:
    """Everything of a run that must not depend on how often it was killed."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    tree = json.loads((directory / "frontier.json").read_text())
    tree.pop("wall_seconds")
    rollouts = []
    for name in ("eval/base", "rollouts", "eval/final"):
        for line in (directory / f"{name}.jsonl").read_text().splitlines():
            record = json.loads(line)
            rollouts.append(
                (
                    record["seed"],
                    [t["output"] for t in record["turns"]],
                    record["verdict"]["value"],
                    record["cost"],
                )
            )
    return {
        "metrics": [{k: v for k, v in r.items() if not k.startswith("time/")} for r in rows],
        "frontier": tree,
        "rollouts": rollouts,
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "undisturbed"
    done = frontrunner(*train(directory))
    assert done.returncode == 0, done.stderr
    return directory


def test_a_run_leaves_what_the_documentation_says(undisturbed: Path) -> None:
    for name in (
        "config.json",
        "run.json",
        "metrics.jsonl",
        "rollouts.jsonl",
        "frontier.json",
        "frontier.png",
        "report.html",
        "eval/base.jsonl",
        "eval/final.jsonl",
        "checkpoints/step-4/state.json",
        "model/model.safetensors",
    ):
        assert (undisturbed / name).stat().st_size > 0, name
    rows = facts(undisturbed)["metrics"]
    assert [r["step"] for r in rows] == [1, 2, 3, 4]
    assert all(r["train/staleness"] == 0 for r in rows)
    assert all(r["mismatch/max_abs"] < 1e-4 for r in rows)
    config = load(undisturbed / "config.json")
    assert facts(undisturbed)["frontier"]["config_hash"] == config_hash(config)


def test_report_json_has_the_promised_shape(undisturbed: Path) -> None:
    done = frontrunner("report", str(undisturbed), "--json")
    assert done.returncode == 0, done.stderr
    tree = json.loads(done.stdout)
    assert tree.keys() == {"levels", "wall_seconds", "seed", "config_hash"}
    for level in tree["levels"]:
        assert level.keys() == {
            "name",
            "lambda",
            "base",
            "final",
            "delta_success",
            "delta_cost_usd",
            "delta_j",
        }
        for point in ("base", "final"):
            assert level[point].keys() == {"success", "cost_usd", "num_tasks", "num_rollouts"}
        for delta in ("delta_success", "delta_cost_usd", "delta_j"):
            assert level[delta]["low"] <= level[delta]["mean"] <= level[delta]["high"]


def kill_and_resume(directory: Path, delays: list[float]) -> int:
    """Run with SIGKILL after each delay, then to the end; returns how many kills hit."""
    hits = 0
    for delay in delays:
        resume = ["--resume", str(directory)] if (directory / "config.json").is_file() else []
        process = subprocess.Popen(
            command(*train(directory, *resume)),
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            hits += 1
        if (directory / "report.html").is_file():
            return hits
    resume = ["--resume", str(directory)] if (directory / "config.json").is_file() else []
    done = frontrunner(*train(directory, *resume))
    assert done.returncode == 0, done.stderr
    return hits


def test_a_killed_run_resumes_to_the_same_result(undisturbed: Path, tmp_path: Path) -> None:
    start = time.monotonic()
    done = frontrunner(*train(tmp_path / "timed", "--dry-run"))
    assert done.returncode == 0, done.stderr
    begin = time.monotonic() - start  # time to get going on this machine
    total = json.loads((undisturbed / "run.json").read_text())["wall_seconds"]
    directory = tmp_path / "killed"
    assert kill_and_resume(directory, [begin + 0.5 * total]) == 1
    assert facts(directory) == facts(undisturbed)


@pytest.mark.slow
def test_five_random_kills_change_nothing(undisturbed: Path, tmp_path: Path) -> None:
    rng = random.Random(7)
    total = json.loads((undisturbed / "run.json").read_text())["wall_seconds"]
    delays = [4 + rng.random() * 0.5 * total for _ in range(5)]
    directory = tmp_path / "killed"
    assert kill_and_resume(directory, delays) >= 3
    assert facts(directory) == facts(undisturbed)


def test_staleness_one_runs_and_is_logged(tmp_path: Path) -> None:
    directory = tmp_path / "stale"
    done = frontrunner(*train(directory, "train.max_staleness=1", "eval.tasks=2"))
    assert done.returncode == 0, done.stderr
    assert [r["train/staleness"] for r in facts(directory)["metrics"]] == [0, 1, 1, 1]


def test_a_finished_run_is_not_overwritten(undisturbed: Path) -> None:
    before = facts(undisturbed)
    done = frontrunner(*train(undisturbed))
    assert done.returncode == 2
    assert "already there" in done.stderr
    again = frontrunner(*train(undisturbed, "--resume", str(undisturbed)))
    assert again.returncode == 0, again.stderr
    assert facts(undisturbed) == before


def test_resume_without_a_recipe_takes_the_runs_own_settings(undisturbed: Path) -> None:
    done = frontrunner("train", "--resume", str(undisturbed))
    assert done.returncode == 0, done.stderr


def test_frontier_fit_reads_a_run_or_refuses_with_a_reason(undisturbed: Path) -> None:
    done = frontrunner("frontier", "fit", str(undisturbed))
    assert done.returncode == 2
    assert "6 tasks" in done.stderr or "task" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dual", "std_normalised"])
def test_a_killed_run_resumes_with_the_state_of_its_reward(kind: str, tmp_path: Path) -> None:
    extra = [f"algo.reward={kind}", "eval.tasks=4", "run.checkpoint_every=1"]
    for name in ("whole", "killed"):
        done = frontrunner(*train(tmp_path / name, *extra))
        assert done.returncode == 0, done.stderr
    killed = tmp_path / "killed"  # as a kill before the last checkpoint leaves it
    shutil.rmtree(killed / "checkpoints" / "step-4")
    (killed / "report.html").unlink()
    (killed / "eval" / "final.jsonl").unlink()
    done = frontrunner("train", "--resume", str(killed))
    assert done.returncode == 0, done.stderr
    assert facts(killed) == facts(tmp_path / "whole")
    states = [
        json.loads((tmp_path / name / "checkpoints" / "step-4" / "state.json").read_text())["notes"]
        for name in ("whole", "killed")
    ]
    assert states[0] == states[1] and states[0]["step"] == 4
