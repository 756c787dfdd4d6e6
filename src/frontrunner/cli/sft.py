"""`frontrunner sft [key=value ...]`: the small base policy, from scratch or continued."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.errors import UserError

if TYPE_CHECKING:
    from frontrunner.train.sft import SftConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="fields of SftConfig")
    parser.add_argument("--out", type=Path, default=Path("runs/base"), help="model folder to write")
    parser.add_argument("--resume", action="store_true", help="continue in --out")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: all cores")


def run(args: argparse.Namespace) -> int:
    if args.out.exists() and not args.out.is_dir():
        raise UserError(f"--out {args.out}: is a file; name a folder")
    if args.threads < 0:
        raise UserError(f"--threads {args.threads}: expected 1 or more, or 0 for all cores")
    there = args.out.exists() and any(args.out.iterdir())
    if there and (args.out / "recipe.json").is_file():
        raise UserError(f"{args.out}: a finished model; choose another folder with --out")
    if there and not args.resume:
        raise UserError(f"{args.out}: already there; --resume continues, --out makes another one")
    import torch

    from frontrunner.train.sft import train_base

    torch.set_num_threads(args.threads or os.cpu_count() or 1)
    config = _config(args.overrides)
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - start:6.0f} s  {text}", file=sys.stderr, flush=True)

    summary = train_base(config, args.out, say)
    print(json.dumps({k: v for k, v in summary.items() if k != "config"}, indent=1))
    print(f"model: {args.out}")
    return 0


def _config(overrides: list[str]) -> SftConfig:
    """The default recipe with some fields changed; a wrong name or type is a `UserError`."""
    import dataclasses

    from pydantic import TypeAdapter, ValidationError

    from frontrunner.config import parse_override
    from frontrunner.train.sft import SftConfig

    tree = {f.name: getattr(SftConfig(), f.name) for f in dataclasses.fields(SftConfig)}
    for override in overrides:
        if "=" not in override:
            raise UserError(f"{override!r}: write fields as key=value, e.g. trajectories=1000")
        _, key, value = parse_override(f"sft.{override}")
        if key not in tree:
            raise UserError(f"{key}: no such field; one of: {', '.join(tree)}")
        tree[key] = value
    try:
        config = TypeAdapter(SftConfig).validate_python(tree)
    except ValidationError as error:
        problem = error.errors()[0]
        raise UserError(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']} (got {problem['input']!r})"
        ) from None
    for key, part in (("hidden_size", "num_heads"), ("num_heads", "num_kv_heads")):
        whole, divisor = getattr(config, key), getattr(config, part)
        if divisor < 1 or whole < 1 or whole % divisor:
            raise UserError(f"{key} = {whole}: expected a multiple of {part} ({divisor})")
    return config
