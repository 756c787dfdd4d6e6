"""A step of the quickstart, now and before the paged engine and the packed training step.

    python benchmarks/bench_quickstart.py [--before COMMIT] [--runs 5]

Both versions of the project do the quickstart's rollouts (144 a step) and training with the weights
that ship today and a learning rate too small to change them, in processes of their own that take
turns. A run gives the median over its steps of the seconds of collecting and of training. The older
version is checked out beside this one for the time being. Writes `results/quickstart_step.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from record import summary, write

ROOT = Path(__file__).parents[1]
STEPS = 3


def step_seconds(source: Path, directory: Path) -> dict[str, float]:
    """Median seconds of collecting and of training in one run of the version at `source`."""
    command = [
        sys.executable, "-m", "frontrunner.cli.main", "train",
        str(source / "recipes" / "quickstart.toml"), f"run.directory={directory}",
        f"model.path={ROOT / 'src' / 'frontrunner' / 'data' / 'base'}", f"train.steps={STEPS}",
        "train.learning_rate=1e-12", "rollout.groups=18", "effort.lambdas=[96,64,12]",
        "eval.tasks=2",
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(source / "src")}
    subprocess.run(command, cwd=source, env=env, check=True, capture_output=True)
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    parts = {p: [r[f"time/{p}_seconds"] for r in rows] for p in ("collect", "train")}
    parts["step"] = [a + b for a, b in zip(*parts.values(), strict=True)]
    return {part: statistics.median(seconds) for part, seconds in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--before", default="3525151", help="commit of the older version")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        older = Path(folder) / "older"
        subprocess.run(
            ["git", "worktree", "add", "--detach", older, given.before], cwd=ROOT, check=True
        )
        try:
            pairs = []
            for n in range(given.runs):
                now = step_seconds(ROOT, Path(folder) / f"now-{n}")
                before = step_seconds(older, Path(folder) / f"before-{n}")
                pairs.append((now, before))
                print(now, before, flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", older], cwd=ROOT, check=True)
    parts = {
        part: {
            "ours": summary([a[part] for a, _ in pairs]),
            "peer": summary([b[part] for _, b in pairs]),
            "ratio": summary([b[part] / a[part] for a, b in pairs]),
        }
        for part in ("step", "collect", "train")
    }
    record = {
        "name": "quickstart_step",
        **parts["step"],
        "peer_name": f"this project at {given.before}",
        "unit": "seconds per step of 144 rollouts",
        "parts": parts,
    }
    write(record, f"bench_quickstart.py --before {given.before} --runs {given.runs}")
    print(json.dumps(record["ratio"]))


if __name__ == "__main__":
    main()
