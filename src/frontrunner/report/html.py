"""report.html: the whole run on one page, from the JSON in its directory.

Self-contained: inline CSS and SVG, no script, no request to anywhere. Text of rollouts is model
output and is always escaped. The same files give the same bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from frontrunner.report.page import TEMPLATE
from frontrunner.report.plots import curve_svg, frontier_svg, write_frontier_png
from frontrunner.report.run_files import RunFiles, read_run
from frontrunner.report.style import CSS
from frontrunner.report.summary import headline
from frontrunner.types import Rollout, Turn

SAMPLES_PER_KIND = 2
"""Rollouts shown per level and outcome (solved, unsolved) of each measurement."""

MAX_TEXT = 6000
"""Characters of one output or observation that are shown."""

_CURVES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("Success S", "success", "percent", ()),
    ("Cost C per rollout", "cost", "usd", ()),
    ("Reward R", "reward", "number", ()),
    ("Length in tokens", "length", "number", ()),
    ("Entropy", "entropy", "number", ("entropy", "train/entropy")),
    ("KL, sampler to trainer", "kl", "number", ("kl", "train/kl", "mismatch/k3", "train/kl_k3")),
)
"""Title, metric under `effort/<level>/`, form, and names under which it may be logged globally."""


def write_report(run_dir: Path) -> Path:
    """Writes report.html and frontier.png into the run directory; returns the path of the page.

    Works on runs that are not finished. Raises `UserError` naming a file that is missing or broken.
    """
    run = read_run(run_dir)
    write_frontier_png(run.frontier, run_dir / "frontier.png")
    path = run_dir / "report.html"
    path.write_text(render(run), encoding="utf-8")
    return path


def render(run: RunFiles) -> str:
    """The page as text."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "usd": usd,
        "percent": percent,
        "points": points,
        "number": lambda x: f"{x:,.3g}",
    }
    frontier = run.frontier
    names = [level["name"] for level in frontier["levels"]]
    return environment.from_string(TEMPLATE).render(
        css=CSS,
        name=run.name,
        headline=headline(frontier),
        frontier=frontier,
        finished=run.final is not None,
        levels=frontier["levels"],
        fit=frontier.get("fit"),
        alarms=frontier.get("alarms") or [],
        facts=_facts(run),
        figure_wide=frontier_svg(frontier, (8.4, 4.7), "wide"),
        figure_narrow=frontier_svg(frontier, (4.3, 4.1), "narrow"),
        curves=_curves(run.rows, names),
        endings=_endings(run, names),
        samples=_samples(run, names),
        config=json.dumps(run.config, indent=2, sort_keys=True),
    )


def usd(x: float, sign: bool = False) -> str:
    """Three significant digits and never an exponent: `$0.00215`, `$12.8`."""
    digits = 2 if x == 0.0 else max(0, 2 - _exponent(x))
    text = f"${abs(x):,.{digits}f}"
    if x < 0.0:
        return "\N{MINUS SIGN}" + text
    return "+" + text if sign else text


def percent(x: float) -> str:
    return f"{100 * x:.1f}%"


def points(x: float) -> str:
    """A difference of shares in points with its sign: `+4.1`."""
    return f"{100 * x:+.1f}".replace("-", "\N{MINUS SIGN}")


def _exponent(x: float) -> int:
    return int(f"{abs(x):e}".rsplit("e", 1)[1])


def _facts(run: RunFiles) -> list[tuple[str, str]]:
    frontier = run.frontier
    base = frontier["levels"][0]["base"]
    hours, rest = divmod(int(frontier["wall_seconds"]), 3600)
    facts = [
        ("steps", str(run.rows[-1]["step"]) if run.rows else "0"),
        ("held-out tasks", f"{base['num_tasks']:,}"),
        ("rollouts per level", f"{base['num_rollouts']:,}"),
        ("wall time", f"{hours} h {rest // 60:02d} min" if hours else f"{rest / 60:.1f} min"),
        ("seed", str(frontier["seed"])),
        ("config", str(frontier["config_hash"])[:12]),
    ]
    return [(key, value) for key, value in facts if value]


def _curves(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[tuple[str, str]]:
    """(title, SVG) of every curve that has data."""
    curves = []
    for title, metric, form, global_names in _CURVES:
        wanted = [(i, f"effort/{name}/{metric}") for i, name in enumerate(names)]
        series = [s for i, key in wanted if (s := _series(rows, i, key))]
        for key in global_names if not series else ():
            if not series and (found := _series(rows, -1, key)):
                series = [found]
        if series:
            curves.append((title, curve_svg(series, title, form)))
    return curves


def _series(
    rows: Sequence[Mapping[str, Any]], index: int, key: str
) -> tuple[int, list[int], list[float]] | None:
    pairs = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
    if not pairs:
        return None
    return index, [step for step, _ in pairs], [value for _, value in pairs]


def ending(rollout: Rollout) -> str:
    """How a rollout ended, in the few words that failures are counted by."""
    if not rollout.valid:
        return f"{rollout.verdict.kind} (not counted)"
    if rollout.success >= 1.0:
        return "solved"
    reason = rollout.verdict.reason.split(":", 1)[0].strip() or "unsolved"
    if rollout.status == "submitted":
        return reason
    return f"{rollout.status.replace('_', ' ')}, {reason}"


def _endings(run: RunFiles, names: Sequence[str]) -> list[tuple[str, list[tuple[int, int | None]]]]:
    """Per ending, the counts (before, after) at every level; the most frequent first."""
    before = Counter((ending(r), r.effort) for r in run.base)
    after = Counter((ending(r), r.effort) for r in run.final or [])
    totals: Counter[str] = Counter()
    for (what, _), count in [*before.items(), *after.items()]:
        totals[what] += count
    ordered = sorted(totals, key=lambda what: (what != "solved", -totals[what], what))
    return [
        (
            what,
            [(before[what, n], after[what, n] if run.final is not None else None) for n in names],
        )
        for what in ordered
    ]


def _samples(run: RunFiles, names: Sequence[str]) -> list[tuple[str, list[dict[str, Any]]]]:
    """(heading, rollouts to browse): after training, before it, and the latest in training."""
    groups = [
        ("After training", _pick(run.final or [], names)),
        ("Before training", _pick(run.base, names)),
        ("Latest training rollouts", run.training[-6:] if run.final is None else []),
    ]
    return [
        (title, [_rollout_view(r, names) for r in chosen]) for title, chosen in groups if chosen
    ]


def _pick(rollouts: Sequence[Rollout], names: Sequence[str]) -> list[Rollout]:
    """The first few solved and unsolved ones per level: fixed by the file, not cherry-picked."""
    chosen: list[Rollout] = []
    for name in names:
        mine = [r for r in rollouts if r.effort == name and r.valid]
        chosen += [r for r in mine if r.success >= 1.0][:SAMPLES_PER_KIND]
        chosen += [r for r in mine if r.success < 1.0][:SAMPLES_PER_KIND]
    return chosen


def _rollout_view(rollout: Rollout, names: Sequence[str]) -> dict[str, Any]:
    return {
        "effort": rollout.effort,
        "index": names.index(rollout.effort) % 6 if rollout.effort in names else 0,
        "task": rollout.task_id,
        "solved": rollout.success >= 1.0,
        "ending": ending(rollout),
        "reason": rollout.verdict.reason,
        "cost": None if rollout.cost is None else usd(rollout.cost),
        "reward": None if rollout.reward is None else f"{rollout.reward:+.3f}",
        "num_tokens": rollout.num_tokens,
        "files": sorted(rollout.submission),
        "turns": [_turn_view(turn) for turn in rollout.turns],
    }


def _turn_view(turn: Turn) -> dict[str, Any]:
    u = turn.usage
    ledger = f"{u.fresh:,} fresh, {u.cached:,} cached, {u.output:,} output tokens"
    if u.tool_seconds:
        ledger += f", tool {u.tool_seconds:.1f} s"
    return {
        "action": turn.action,
        "ledger": ledger,
        "text": _shorten(turn.text),
        "observation": _shorten(turn.observation),
    }


def _shorten(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}\n... {len(text) - MAX_TEXT:,} more characters"
