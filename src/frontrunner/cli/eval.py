"""`frontrunner eval RECIPE [section.key=value ...] [--model PATH]`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="TOML recipe, or the config.json of a run")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--model", metavar="PATH", help="model folder or checkpoint to measure")
    parser.add_argument("--out", type=Path, help="folder for the rollouts (default: runs/eval-...)")
    parser.add_argument("--resume", action="store_true", help="continue in --out")
    parser.add_argument("--json", action="store_true", help="print the points as JSON")


def run(args: argparse.Namespace) -> int:
    from frontrunner.cli.train import default_directory
    from frontrunner.config import load
    from frontrunner.evals.frontier import points
    from frontrunner.run import measure, open_work

    source = Path(args.recipe)
    overrides = list(args.overrides)
    if args.model:
        overrides.append(f"model.path={json.dumps(args.model)}")
    config = load(source / "config.json" if source.is_dir() else source, overrides)
    out = args.out or Path(default_directory(Path(f"eval-{source.stem}")))
    with open_work(config, out, resume=args.resume) as work:
        rollouts = measure(work, "base")
        ladder = work.ladder
    measured = points(rollouts, ladder, num_bootstrap=config.eval.num_bootstrap)
    if args.json:
        from dataclasses import asdict

        print(json.dumps({"points": [asdict(p) for p in measured], "rollouts": str(out)}))
        return 0
    for p in measured:
        print(
            f"{p.effort:<10} success {p.success:.1%} [{p.success_low:.1%}, {p.success_high:.1%}]  "
            f"cost ${p.cost:.3g} [{p.cost_low:.3g}, {p.cost_high:.3g}]  "
            f"{p.num_tasks} tasks, {p.num_rollouts} rollouts"
        )
    print(f"rollouts: {out / 'eval' / 'base.jsonl'}")
    return 0
