"""`frontrunner sft`: the base policy from scratch, with its tokenizer."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from frontrunner.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("runs/base"), help="model folder to write")
    parser.add_argument("--trajectories", type=int, help="expert trajectories (default: recipe)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packages", nargs="+", help="corpus packages (default: recipe)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: all cores")


def run(args: argparse.Namespace) -> int:
    import dataclasses
    import os

    if args.out.exists() and any(args.out.iterdir()):
        raise UserError(f"{args.out}: already there; choose another folder with --out")
    import torch

    from frontrunner.train.sft import SftConfig, train_base

    torch.set_num_threads(args.threads or os.cpu_count() or 1)
    config = SftConfig(seed=args.seed)
    if args.trajectories:
        config = dataclasses.replace(config, trajectories=args.trajectories)
    if args.packages:
        config = dataclasses.replace(config, packages=tuple(args.packages))
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - start:6.0f} s  {text}", file=sys.stderr, flush=True)

    summary = train_base(config, args.out, say)
    print(json.dumps({k: v for k, v in summary.items() if k != "config"}, indent=1))
    print(f"model: {args.out}")
    return 0
