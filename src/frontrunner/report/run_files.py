"""What a run directory holds, read back for a report.

config.json         the configuration of the run
frontier.json       levels, points, fit, alarms (see `report.summary`)
metrics.jsonl       one row per training step
eval/base.jsonl     rollouts of the base model on held-out tasks, one `Rollout` a line
eval/final.jsonl    the same of the trained model; absent while the run goes on
rollouts.jsonl      training rollouts; only the last few are read
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frontrunner.errors import UserError
from frontrunner.report.summary import read_json, summary
from frontrunner.report.tracker import complete_lines, read_rows
from frontrunner.types import Rollout, load

LAST_TRAINING_ROLLOUTS = 24


@dataclass(frozen=True, slots=True)
class RunFiles:
    """One run directory in memory."""

    name: str
    config: dict[str, Any]
    frontier: dict[str, Any]
    rows: list[dict[str, Any]]
    base: list[Rollout]
    final: list[Rollout] | None
    """None while the run has no final measurement."""
    training: list[Rollout]
    """The last few training rollouts, oldest first."""


def read_run(run_dir: Path) -> RunFiles:
    """Reads a finished or running run. Raises `UserError` naming the file that is missing."""
    config = read_json(run_dir, "config.json")
    frontier = read_json(run_dir, "frontier.json")
    summary(frontier)  # raises where a key is missing
    if "points" not in frontier:
        raise UserError(f"{run_dir / 'frontier.json'} lacks points; was it written by hand?")
    finished = frontier["points"]["final"] is not None
    metrics = run_dir / "metrics.jsonl"
    if finished:
        for name in ("metrics.jsonl", "eval/final.jsonl"):
            _require(run_dir, name)
    _require(run_dir, "eval/base.jsonl")
    training = run_dir / "rollouts.jsonl"
    return RunFiles(
        name=run_dir.resolve().name,
        config=config,
        frontier=frontier,
        rows=read_rows(metrics) if metrics.is_file() else [],
        base=_rollouts(run_dir / "eval/base.jsonl"),
        final=_rollouts(run_dir / "eval/final.jsonl") if finished else None,
        training=_last_rollouts(training) if training.is_file() else [],
    )


def _require(run_dir: Path, name: str) -> None:
    if not (run_dir / name).is_file():
        raise UserError(
            f"{name} is missing in {run_dir}; the report is made from the files of a whole run."
        )


def _rollouts(path: Path) -> list[Rollout]:
    return [_parse(path, line, i) for i, line in enumerate(complete_lines(path), start=1)]


def _last_rollouts(path: Path) -> list[Rollout]:
    # Streamed: a long run's training rollouts do not fit in memory.
    tail: deque[tuple[int, str]] = deque(maxlen=LAST_TRAINING_ROLLOUTS)
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith("\n") and line.strip():
                tail.append((number, line))
    return [_parse(path, line, number) for number, line in tail]


def _parse(path: Path, line: str, number: int) -> Rollout:
    try:
        return load(Rollout, line)
    except ValueError as error:  # pydantic's ValidationError is one
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}, line {number}, is not a rollout: {reason}.") from None
