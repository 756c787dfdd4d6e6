"""Does one run move the whole frontier? Several training seeds, hierarchical intervals.

    python experiments/frontier_shift/run.py --seeds 5

The base model is measured once. Every seed trains from it with the same recipe and is measured on
the same held-out tasks with the same sampling seeds. The endpoint, fixed beforehand, is
delta J_e = delta S - lambda_e * delta C at the lambda fitted to the base, per effort level, with
an interval that resamples training seeds and, within them, tasks. Interrupted work is resumed.
Seeds are processes of their own; `--parallel` of them share the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from frontrunner.evals.statistics import seeds_interval
from frontrunner.report.plots import level_color
from frontrunner.rollout.store import RolloutFile, machine

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--parallel", type=int, default=2, help="seeds at the same time")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "frontier_shift")
    parser.add_argument("--recipe", type=Path, default=HERE / "recipe.toml")
    args = parser.parse_args()
    base = args.out / "base"
    again = ["--resume"] if (base / "config.json").is_file() else []
    frontrunner("eval", args.recipe, "--out", base, *again)
    threads = max(1, (os.cpu_count() or 1) // args.parallel)
    runs = [args.out / f"seed-{seed}" for seed in range(args.seeds)]

    def train(seed: int) -> None:
        run = runs[seed]
        if (run / "report.html").is_file():
            return
        if (run / "config.json").is_file():
            frontrunner("train", "--resume", run)
            return
        frontrunner(
            "train", args.recipe, f"run.seed={seed}", f"run.directory={run}",
            f"eval.base_run={base}", f"run.threads={threads}", f"env.workers={threads}",
        )  # fmt: skip

    with ThreadPoolExecutor(args.parallel) as pool:
        list(pool.map(train, range(args.seeds)))
    result = endpoints(base, runs)
    (HERE / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(runs, HERE / "frontier.png")
    for row in result:
        print(f"{row['endpoint']}: {row['estimate']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]")


def frontrunner(*arguments: object) -> None:
    """Run one command; its failure ends this script with the same exit code."""
    command = [sys.executable, "-m", "frontrunner.cli.main", *map(str, arguments)]
    code = subprocess.run(command, cwd=ROOT).returncode
    if code:
        sys.exit(code)


def endpoints(base_run: Path, runs: list[Path]) -> list[dict]:
    """One row per level and quantity, in the form of docs/reference."""
    frontiers = [json.loads((run / "frontier.json").read_text()) for run in runs]
    base = [r for r in RolloutFile(base_run / "eval" / "base.jsonl").read() if r.valid]
    finals = [RolloutFile(run / "eval" / "final.jsonl").read() for run in runs]
    rows = []
    for k, level in enumerate(frontiers[0]["levels"]):
        name, lambda_ = level["name"], level["lambda"]
        for quantity, value in {
            "delta_j": lambda r, price=lambda_: r.success - price * r.cost,
            "delta_success": lambda r: r.success,
            "delta_cost_usd": lambda r: r.cost,
        }.items():
            before = means(base, name, value)
            per_seed = [
                {t: after[t] - before[t] for t in before.keys() & after.keys()}
                for after in (means([r for r in f if r.valid], name, value) for f in finals)
            ]
            interval = seeds_interval(per_seed)
            rows.append(
                {
                    "claim": "one run moves the frontier up and left at every effort level",
                    "endpoint": f"{quantity} at {name}",
                    "estimate": interval.mean,
                    "low": interval.low,
                    "high": interval.high,
                    "per_seed": [f["levels"][k][quantity]["mean"] for f in frontiers],
                    "num_seeds": len(runs),
                    "num_tasks": len(before),
                    "lambda": lambda_,
                    "base": {q: level["base"][q] for q in ("success", "cost_usd")},
                    "holds": interval.low > 0 if quantity == "delta_j" else None,
                    "command": f"python experiments/frontier_shift/run.py --seeds {len(runs)}",
                    "wall_seconds": [f["wall_seconds"] for f in frontiers],
                    **machine(),
                }
            )
    return rows


def draw(runs: list[Path], path: Path) -> None:
    """Base points with their intervals, and where every seed took them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.6, 4.6), layout="constrained")
    frontiers = [json.loads((run / "frontier.json").read_text()) for run in runs]
    base = frontiers[0]["levels"]
    for k, level in enumerate(base):
        color, start = level_color(k), level["base"]
        after = [f["levels"][k]["final"] for f in frontiers]
        mean = [sum(p[axis] for p in after) / len(after) for axis in ("cost_usd", "success")]
        axes.annotate(
            "", xy=mean, xytext=(start["cost_usd"], start["success"]),
            arrowprops={"arrowstyle": "->", "color": color, "alpha": 0.6},
        )  # fmt: skip
        axes.plot(start["cost_usd"], start["success"], "o", mfc="white", mec=color, ms=8)
        axes.plot([p["cost_usd"] for p in after], [p["success"] for p in after], ".", c=color)
        axes.plot(*mean, "o", c=color, ms=8, label=level["name"])
    axes.set(xlabel="cost per rollout (USD)", ylabel="success", ylim=(0, None))
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.legend(title="hollow: base; dots: seeds; full: their mean", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)


def means(rollouts: list, level: str, value) -> dict[str, float]:
    """Mean of `value` per task at one level."""
    found: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.effort == level:
            found.setdefault(rollout.task_id, []).append(value(rollout))
    return {task: sum(v) / len(v) for task, v in found.items()}


if __name__ == "__main__":
    main()
