"""Every mistake a user can make gets one sentence and exit code 2."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from frontrunner.envs import taskset

ROOT = Path(__file__).parents[2]
RECIPE = "recipes/quickstart.toml"


def frontrunner(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "frontrunner.cli.main", *args],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        env={**os.environ, **(env or {})},
    )


def refused(*args: str, env: dict[str, str] | None = None) -> str:
    done = frontrunner(*args, env=env)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("frontrunner: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trian.steps=3", ["trian", "train"]),
        ("train.stepz=3", ["train.stepz", "train.steps"]),
        ("train.steps=many", ["train.steps", "many"]),
        ("train.steps", ["section.key=value"]),
        ("algo.loss=sequence_mean", ["length_weighted", "token_sum"]),
        ("effort.lambdas=[10, 20, 30]", ["low", "medium"]),
        ("effort.lambdas=[10]", ["lambdas", "3 levels"]),
        ('effort.levels=["low", "low", "high"]', ["low", "twice"]),
        ("cost.price=gpt-77", ["gpt-77", "Kimi"]),
        ("model.path=/no/such/model", ["/no/such/model", "config.json"]),
        ("model.device=cuda", ["cuda", "cpu"]),
        ("env.tasks=/no/such/tasks.jsonl", ["/no/such/tasks.jsonl"]),
        ("rollout.max_new_tokens=99999", ["max_new_tokens", "max_context"]),
    ],
)
def test_settings(override: str, words: list[str], tmp_path: Path) -> None:
    sentence = refused("train", RECIPE, override, f"run.directory={tmp_path / 'r'}")
    for word in words:
        assert word in sentence
    assert not (tmp_path / "r" / "eval").exists()


def test_files(tmp_path: Path) -> None:
    assert "no such recipe" in refused("train", str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("[train\nsteps = 3")
    assert "bad.toml" in refused("train", str(tmp_path / "bad.toml"))
    assert "no run" in refused("train", "--resume", str(tmp_path / "none")).lower()
    assert "none" in refused("report", str(tmp_path / "none"))
    assert "recipe" in refused("train")
    assert "unknown verb" in refused("trane")


def test_corrupt_and_empty_task_sets(tmp_path: Path) -> None:
    source = taskset.manifest_path("quickstart").read_text().splitlines()
    corrupt = tmp_path / "corrupt.jsonl"
    corrupt.write_text("\n".join([*source[:3], source[3][:40]]) + "\n")
    sentence = refused("train", RECIPE, f"env.tasks={corrupt}", f"run.directory={tmp_path / 'r'}")
    assert "corrupt.jsonl" in sentence
    empty = tmp_path / "empty.jsonl"
    empty.write_text(source[0] + "\n")
    assert "empty.jsonl" in refused(
        "train", RECIPE, f"env.tasks={empty}", f"run.directory={tmp_path / 'r2'}"
    )


def test_truncated_model(tmp_path: Path) -> None:
    import shutil

    from frontrunner.train.model import base_directory

    shutil.copytree(base_directory(), tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    sentence = refused(
        "train", RECIPE, f"model.path={tmp_path / 'model'}", f"run.directory={tmp_path / 'r'}"
    )
    assert "cannot be loaded" in sentence


def test_no_sandbox_is_said_and_nothing_runs_unprotected(tmp_path: Path) -> None:
    hook = tmp_path / "sitecustomize.py"
    hook.write_text("import frontrunner.envs.box_mounts as m\nm.bwrap_candidates = lambda: []\n")
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    sentence = refused("train", RECIPE, f"run.directory={tmp_path / 'r'}", env=env)
    assert "bubblewrap" in sentence
    assert "install" in sentence
    done = frontrunner("doctor", "--json", env=env)
    assert done.returncode == 2
    checks = {c["name"]: c for c in json.loads(done.stdout)["checks"]}
    assert not checks["sandbox"]["ok"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        sentence = refused(
            "train",
            RECIPE,
            f"run.directory={disk / 'r'}",
            "eval.tasks=30",
            "eval.samples=4",
            "effort.lambdas=[120, 60, 20]",
            "train.steps=1",
        )
        assert "space" in sentence
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_help_is_instant() -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        done = frontrunner("--help")
        times.append(time.perf_counter() - start)
        assert done.returncode == 0
        assert "train" in done.stdout
    print(f"frontrunner --help: {min(times):.3f} s")
