"""`frontrunner train RECIPE [section.key=value ...]`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from frontrunner.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", help="TOML recipe, e.g. recipes/quickstart.toml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue a killed run")
    parser.add_argument("--dry-run", action="store_true", help="check everything, train nothing")


def run(args: argparse.Namespace) -> int:
    from frontrunner.config import load

    recipe, overrides = args.recipe, list(args.overrides)
    if args.resume and recipe and "=" in recipe:
        overrides.insert(0, recipe)
        recipe = None
    if recipe is None and args.resume is None:
        raise UserError("train: give a recipe, e.g. frontrunner train recipes/quickstart.toml")
    source = Path(recipe) if recipe else args.resume / "config.json"
    if not recipe and not source.is_file():
        raise UserError(f"{args.resume}: no run to resume there (config.json is missing)")
    config = load(source, overrides)
    directory = args.resume or Path(config.run.directory or default_directory(source))
    if args.dry_run:
        return _dry_run(source, config)
    from frontrunner.report.summary import headline, read_summary
    from frontrunner.run import train

    report = train(config, directory, resume=args.resume is not None)
    print(headline(read_summary(directory)))
    print(f"report: {report}")
    return 0


def default_directory(recipe: Path) -> str:
    return f"runs/{recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def _dry_run(source: Path, config: object) -> int:
    """Build every part once, so that whatever is missing is said before hours are spent."""
    from frontrunner.backends.local import open_system
    from frontrunner.config import Config
    from frontrunner.run import check_ready, cost_model_of, ladder_of
    from frontrunner.train.memory import step_memory

    assert isinstance(config, Config)
    ladder_of(config)
    cost_model_of(config)
    with open_system(config) as system:
        check_ready(config, system)
        tasks = system.tasks
        print(
            f"{source}: ready to run: {len(tasks.split('train'))} training and "
            f"{len(tasks.split('heldout'))} held-out tasks, "
            f"{sum(p.numel() for p in system.policy.model.parameters()):,} parameters, "
            f"{config.train.steps} steps of "
            f"{config.rollout.groups * config.rollout.group_size} rollouts"
        )
        memory = step_memory(system.trainer)
        tokens, ways = config.train.micro_tokens, system.trainer.ways
        print(
            f"samples are {'packed' if ways.packing else 'padded'}, logits are computed "
            f"{'in chunks' if ways.projection else 'by the model, all trained tokens at once'}"
        )
        print(
            f"memory of a training step: {memory.fixed / 1e6:,.0f} MB, and "
            f"{memory.per_token / 1e3:,.1f} KB for each of the {tokens:,} tokens of "
            f"train.micro_tokens; {memory.peak(tokens) / 1e9:,.2f} GB in all"
        )
    return 0
