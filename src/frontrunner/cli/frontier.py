"""`frontrunner frontier fit RUN|ROLLOUTS`: the price of cost at every effort level."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from frontrunner.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    fit = verbs.add_parser("fit", help="fit lambda to stored base rollouts")
    fit.add_argument("source", type=Path, help="run directory, or a .jsonl file of rollouts")
    fit.add_argument("--levels", nargs="+", help="levels, lowest effort first (default: the run's)")
    fit.add_argument("--bootstrap", type=int, default=2000, help="resamples (%(default)s)")
    fit.add_argument("--seed", type=int, default=0)
    fit.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    from frontrunner.effort.frontier import fit
    from frontrunner.evals.frontier import outcomes
    from frontrunner.rollout.store import RolloutFile

    source: Path = args.source
    file = source / "eval" / "base.jsonl" if source.is_dir() else source
    if not file.is_file():
        raise UserError(f"{file}: no rollouts there; measure a model first: frontrunner eval")
    levels = args.levels or _levels(source)
    fitted = fit(
        outcomes(RolloutFile(file).read()), levels, num_bootstrap=args.bootstrap, seed=args.seed
    )
    if args.json:
        print(json.dumps(fitted.to_json(), indent=1))
        return 0
    for level in fitted.levels:
        print(
            f"{level.effort:<10} success {level.success:.1%}  cost ${level.cost:.3g}  "
            f"slope {level.slope:.4g} [{level.slope_low:.4g}, {level.slope_high:.4g}]  "
            f"lambda {level.lambda_:.4g} per USD"
        )
    print()
    for sentence in fitted.explanations:
        print(sentence)
    return 0


def _levels(source: Path) -> tuple[str, ...]:
    from frontrunner.config import load

    marker = source / "config.json"
    if not marker.is_file():
        raise UserError(f"{source}: name the levels, e.g. --levels low medium high")
    return load(marker).effort.levels
