"""A synthetic run directory: rollouts drawn from known success rates and costs, no model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from frontrunner.effort.cost import CostModel
from frontrunner.effort.frontier import fit
from frontrunner.effort.ladder import Ladder, default_ladder
from frontrunner.effort.price import find_price
from frontrunner.effort.reward import price_and_reward, price_rollout
from frontrunner.evals.alarms import alarms
from frontrunner.evals.frontier import frontier_json, outcomes
from frontrunner.evals.history import effort_metrics
from frontrunner.report.tracker import JsonlTracker
from frontrunner.types import Rollout, Turn, Usage, Verdict, dump

COST_MODEL = CostModel(find_price("Kimi K3"), value_of_time_usd_per_hour=1.0)
BASE = {"low": (0.42, 4), "medium": (0.55, 8), "high": (0.62, 16)}
"""Success rate and mean number of turns per level."""
FINAL = {"low": (0.50, 3.4), "medium": (0.61, 7), "high": (0.64, 14.5)}


def make_rollout(
    rng: np.random.Generator, task: int, effort: str, rate: float, turns: float, text: str = ""
) -> Rollout:
    difficulty = np.random.default_rng(task).normal(0.0, 0.25)
    solved = bool(rng.random() < np.clip(rate + difficulty, 0.02, 0.98))
    num_turns = max(1, int(rng.poisson(turns * (1.0 if solved else 1.4))))
    context, steps = 900, []
    for k in range(num_turns):
        output = int(rng.integers(40, 160))
        fresh = 900 if k == 0 else 250
        usage = Usage(fresh=fresh, cached=context if k else 0, output=output, tool_seconds=0.8)
        context += output + 250
        last = k == num_turns - 1
        steps.append(
            Turn(
                prompt=(),
                output=tuple(range(output)),
                logprobs=(-0.1,) * output,
                version=0,
                text=text or f"<edit path='pkg/module.py'>step {k} of a & b</edit>",
                action="submit" if last else ("edit" if k % 3 == 2 else "view"),
                observation=""
                if last
                else "    def f(x):\n        return x < 2  # <b>not bold</b>",
                usage=usage,
            )
        )
    tampered = not solved and rng.random() < 0.05
    reason = "solved" if solved else "tampering: conftest.py" if tampered else "tests failed"
    status = "submitted" if solved or rng.random() < 0.8 else "max_turns"
    return Rollout(
        task_id=f"toolz-{task:012x}",
        effort=effort,
        seed=0,
        turns=tuple(steps),
        status=status,  # type: ignore[arg-type]
        submission={"pkg/module.py": "x = 1\n"} if solved else {},
        verdict=Verdict("graded", float(solved), reason),
    )


def measure(
    levels: dict[str, tuple[float, float]], num_tasks: int, seed: int, num_runs: int = 2
) -> list[Rollout]:
    rng = np.random.default_rng(seed)
    return [
        price_rollout(make_rollout(rng, task, effort, rate, turns), COST_MODEL)
        for task in range(num_tasks)
        for effort, (rate, turns) in levels.items()
        for _ in range(num_runs)
    ]


def write_run(
    run_dir: Path, *, num_tasks: int = 60, num_steps: int = 40, finished: bool = True
) -> Ladder:
    """Fills `run_dir` as a training run would; returns the fitted ladder."""
    base, final = measure(BASE, num_tasks, 1), measure(FINAL, num_tasks, 2)
    result = fit(outcomes(base), default_ladder().names, num_bootstrap=400)
    ladder = default_ladder().with_lambdas(result.lambdas)
    (run_dir / "eval").mkdir(parents=True)
    tracker = JsonlTracker(run_dir / "metrics.jsonl")
    rng = np.random.default_rng(3)
    history, training = [], []
    for step in range(1, num_steps + 1):
        share = step / num_steps
        rollouts = []
        for level in ladder:
            (s0, t0), (s1, t1) = BASE[level.name], FINAL[level.name]
            rate, turns = s0 + share * (s1 - s0), t0 + share * (t1 - t0)
            for task in rng.integers(0, num_tasks, 8):
                rollout = make_rollout(rng, int(task), level.name, rate, turns)
                rollouts.append(price_and_reward(rollout, COST_MODEL, level))
        row = effort_metrics(rollouts, ladder)
        row |= {"train/entropy": 0.8 - 0.3 * share, "train/kl": 0.002 + 0.001 * rng.random()}
        tracker.log(step, row)
        history.append({"step": step, **row})
        training = rollouts
    tracker.close()
    frontier = frontier_json(
        ladder,
        base,
        final if finished else None,
        fit=result,
        alarms=[a.to_json() for a in alarms(history, ladder.names)],
        wall_seconds=5025.0,
        seed=7,
        config_hash="3f9c2a71d0b4e8aa",
        num_bootstrap=400,
    )
    (run_dir / "frontier.json").write_text(json.dumps(frontier))
    (run_dir / "config.json").write_text(json.dumps({"seed": 7, "train": {"num_steps": 40}}))
    _write(run_dir / "eval/base.jsonl", base)
    if finished:
        _write(run_dir / "eval/final.jsonl", final)
    _write(run_dir / "rollouts.jsonl", training)
    return ladder


def _write(path: Path, rollouts: list[Rollout]) -> None:
    path.write_text("".join(dump(r) + "\n" for r in rollouts))
