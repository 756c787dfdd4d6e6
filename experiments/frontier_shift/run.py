"""Does one run move the whole frontier? Several training seeds, hierarchical intervals.

    python experiments/frontier_shift/run.py --seeds 5

The base model is measured once. Every seed trains from it with the same recipe and is measured on
the same held-out tasks with the same sampling seeds. The endpoint, fixed beforehand, is
delta J_e = delta S - lambda_e * delta C at the lambda fitted to the base, per effort level, with
an interval that resamples training seeds and, within them, tasks. Interrupted work is resumed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from frontrunner.config import load
from frontrunner.evals.statistics import seeds_interval
from frontrunner.rollout.store import RolloutFile, machine
from frontrunner.run import train

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "frontier_shift")
    parser.add_argument("--recipe", type=Path, default=HERE / "recipe.toml")
    args = parser.parse_args()
    runs = []
    for seed in range(args.seeds):
        directory = args.out / f"seed-{seed}"
        overrides = [f"run.seed={seed}", f"run.directory={directory}"]
        if seed:
            overrides.append(f"eval.base_run={args.out / 'seed-0'}")
        config = load(args.recipe, overrides)
        if not (directory / "report.html").is_file():
            print(f"seed {seed}", file=sys.stderr)
            train(config, directory, resume=(directory / "config.json").is_file())
        runs.append(directory)
    result = endpoints(runs)
    (HERE / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    for row in result:
        print(f"{row['endpoint']}: {row['estimate']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]")


def endpoints(runs: list[Path]) -> list[dict]:
    """One row per level and quantity, in the form of docs/reference."""
    frontiers = [json.loads((run / "frontier.json").read_text()) for run in runs]
    base = [r for r in RolloutFile(runs[0] / "eval" / "base.jsonl").read() if r.valid]
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


def means(rollouts: list, level: str, value) -> dict[str, float]:
    """Mean of `value` per task at one level."""
    found: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.effort == level:
            found.setdefault(rollout.task_id, []).append(value(rollout))
    return {task: sum(v) / len(v) for task, v in found.items()}


if __name__ == "__main__":
    main()
