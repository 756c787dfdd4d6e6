"""`frontrunner frontier fit RUN|ROLLOUTS`: the price of cost at every effort level."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.errors import UserError

if TYPE_CHECKING:
    from frontrunner.config import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    fit = verbs.add_parser("fit", help="fit lambda to stored base rollouts")
    fit.add_argument("source", type=Path, help="run directory, or a .jsonl file of rollouts")
    fit.add_argument("--levels", nargs="+", help="levels, lowest effort first (default: the run's)")
    fit.add_argument("--bootstrap", type=int, help="resamples (default: the run's)")
    fit.add_argument("--seed", type=int, help="of the bootstrap (default: the run's)")
    fit.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    from frontrunner.config import Config
    from frontrunner.effort.frontier import fit
    from frontrunner.evals.frontier import outcomes
    from frontrunner.rollout.store import RolloutFile

    source: Path = args.source
    file = source / "eval" / "base.jsonl" if source.is_dir() else source
    if not file.is_file():
        raise UserError(f"{file}: no rollouts there; measure a model first: frontrunner eval")
    config = _config(source)
    if args.levels is None and config is None:
        raise UserError(f"{source}: name the levels, e.g. --levels low medium high")
    config = config or Config()
    if args.bootstrap is not None and args.bootstrap < 100:
        raise UserError("--bootstrap must be at least 100")
    fitted = fit(
        outcomes(RolloutFile(file).read()),
        args.levels or config.effort.levels,
        num_bootstrap=args.bootstrap or config.eval.num_bootstrap,
        seed=config.eval.seed if args.seed is None else args.seed,
        ratio=config.effort.min_ratio,
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


def _config(source: Path) -> Config | None:
    """Settings of the run that the rollouts belong to, if they belong to one."""
    from frontrunner.config import load

    marker = source / "config.json"
    return load(marker) if marker.is_file() else None
