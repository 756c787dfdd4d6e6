"""The numbers of a finished or running run, as `report RUN --json` prints them.

    {"levels": [{"name", "lambda",
                 "base":  {"success", "cost_usd", "num_tasks", "num_rollouts"},
                 "final": the same,
                 "delta_success":  {"mean", "low", "high"},
                 "delta_cost_usd": {...}, "delta_j": {...}}],
     "wall_seconds", "seed", "config_hash"}

While a run has no final measurement, `final` and the deltas are null.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frontrunner.errors import UserError
from frontrunner.rollout import store

_RUN_KEYS = ("wall_seconds", "seed", "config_hash")
_LEVEL_KEYS = (
    "name",
    "lambda",
    "base",
    "final",
    "delta_success",
    "delta_cost_usd",
    "delta_j",
)


def summary(frontier: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of frontier.json's content. Raises `UserError` for a key that is missing."""
    levels = [_pick(level, _LEVEL_KEYS) for level in frontier.get("levels", [])]
    if not levels:
        raise UserError("frontier.json has no effort levels; measure the base frontier first.")
    return {"levels": levels, **_pick(frontier, _RUN_KEYS)}


def read_summary(run_dir: Path) -> dict[str, Any]:
    """The summary of a run directory. Raises `UserError` without a usable frontier.json."""
    return summary(read_json(run_dir, "frontier.json"))


def read_json(run_dir: Path, name: str) -> dict[str, Any]:
    """A JSON object from the run directory. Raises `UserError` if it is missing or broken."""
    path = run_dir / name
    if not run_dir.is_dir():
        raise UserError(f"There is no run directory {run_dir}.")
    if not path.is_file():
        raise UserError(
            f"{name} is missing in {run_dir}; it is written once the base frontier is measured."
        )
    return store.read_json(path)


def headline(data: Mapping[str, Any]) -> str:
    """One sentence: what moved, at how many levels, and whether the intervals exclude 0."""
    levels = data["levels"]
    if any(level["delta_j"] is None for level in levels):
        names = ", ".join(level["name"] for level in levels)
        return f"The base frontier is measured at {names}; the trained model is not yet."
    count = len(levels)
    up = sum(level["delta_j"]["low"] > 0.0 for level in levels)
    down = sum(level["delta_j"]["high"] < 0.0 for level in levels)
    moves = ", ".join(f"{e['name']} {100 * e['delta_j']['mean']:+.1f}" for e in levels)
    noun = "effort level" if count == 1 else "effort levels"
    if up == count:
        head = f"The frontier moved up at {'the' if count == 1 else f'all {count}'} {noun}"
    elif down:
        head = f"The frontier moved up at {up} and down at {down} of {count} {noun}"
    elif up:
        head = f"The frontier moved up at {up} of {count} {noun}"
    else:
        head = f"No clear move at any of {count} {noun}"
    return f"{head}: reward at fixed \N{GREEK SMALL LETTER LAMDA} changed by {moves} points."


def _pick(data: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    missing = [key for key in keys if key not in data]
    if missing:
        raise UserError(f"frontier.json lacks {', '.join(missing)}; was it written by hand?")
    return {key: data[key] for key in keys}
