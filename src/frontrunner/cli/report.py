"""`frontrunner report RUN [--json]`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--json", action="store_true", help="print the numbers instead")


def run(args: argparse.Namespace) -> int:
    from frontrunner.report.summary import headline, read_summary

    summary = read_summary(args.run)
    if args.json:
        print(json.dumps(summary, indent=1))
        return 0
    from frontrunner.report.html import write_report

    report = write_report(args.run)
    print(headline(summary))
    print(f"report: {report}")
    return 0
