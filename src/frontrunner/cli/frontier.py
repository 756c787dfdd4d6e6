"""`frontrunner frontier fit|compare|plan|lint`: prices of cost, and claims about frontiers."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrunner.errors import UserError

if TYPE_CHECKING:
    from frontrunner.config import Config
    from frontrunner.effort.bootstrap import Floats
    from frontrunner.effort.lint import Reward
    from frontrunner.evals.planner import Noise
    from frontrunner.types import Rollout

PLANNED_SEEDS = (1, 3, 5, 8, 10)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    fit = verbs.add_parser("fit", help="fit lambda to stored base rollouts")
    fit.add_argument("source", type=Path, help="run directory, or a .jsonl file of rollouts")
    fit.add_argument("--levels", nargs="+", help="levels, lowest effort first (default: the run's)")
    fit.add_argument("--bootstrap", type=int, help="resamples (default: the run's)")
    fit.add_argument("--seed", type=int, help="of the bootstrap (default: the run's)")
    compare = verbs.add_parser("compare", help="frontier metrics of a finished run")
    compare.add_argument("run", type=Path, help="run directory with base and final measurement")
    compare.add_argument("--budget", type=float, help="largest budget of the area, USD")
    plan = verbs.add_parser("plan", help="tasks, runs and seeds that a claim needs")
    plan.add_argument("delta", type=float, help="the Delta J to be found, e.g. 0.03")
    plan.add_argument("--seeds", type=int, nargs="+", default=PLANNED_SEEDS)
    plan.add_argument("--tasks", type=int, help="with --runs: the power of this design")
    plan.add_argument("--runs", type=int, help="rollouts per task, level and model")
    plan.add_argument("--levels", type=int, default=3, help="claims made at once (Holm)")
    plan.add_argument("--power", type=float, default=0.8)
    plan.add_argument("--from", dest="source", type=Path, help="take the noise from this run")
    plan.add_argument("--seed-sd", type=float, help="spread of Delta J between training seeds")
    lint = verbs.add_parser("lint", help="does a reward h(C, S) price effort?")
    lint.add_argument("reward", help="expression of C, S, lam, p and m: 'S - lam * C / m'")
    lint.add_argument("--rollouts", type=Path, help="run directory or .jsonl: loss predicted there")
    for verb in (fit, compare, plan, lint):
        verb.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    verbs = {"fit": _fit, "compare": _compare, "plan": _plan, "lint": _lint}
    data, lines = verbs[args.verb](args)
    print(json.dumps(data, indent=1) if args.json else "\n".join(lines))
    return 0


def _fit(args: argparse.Namespace) -> tuple[Any, list[str]]:
    from frontrunner.config import Config
    from frontrunner.effort.frontier import fit
    from frontrunner.evals.frontier import outcomes

    config = _config(args.source)
    rollouts = _rollouts(args.source)
    if args.levels is None and config is None:
        raise UserError(f"{args.source}: name the levels, e.g. --levels low medium high")
    config = config or Config()
    if args.bootstrap is not None and args.bootstrap < 100:
        raise UserError("--bootstrap must be at least 100")
    fitted = fit(
        outcomes(rollouts),
        args.levels or config.effort.levels,
        num_bootstrap=args.bootstrap or config.eval.num_bootstrap,
        seed=config.eval.seed if args.seed is None else args.seed,
        ratio=config.effort.min_ratio,
    )
    lines = [
        f"{level.effort:<10} success {level.success:.1%}  cost ${level.cost:.3g}  "
        f"slope {level.slope:.4g} [{level.slope_low:.4g}, {level.slope_high:.4g}]  "
        f"lambda {level.lambda_:.4g} per USD"
        for level in fitted.levels
    ]
    return fitted.to_json(), [*lines, "", *fitted.explanations]


def _compare(args: argparse.Namespace) -> tuple[Any, list[str]]:
    from frontrunner.effort.ladder import Ladder
    from frontrunner.evals.frontier_metrics import frontier_metrics
    from frontrunner.rollout.store import read_json

    config = _config(args.run)
    stored = args.run / "frontier.json"
    if config is None or not stored.is_file():
        raise UserError(f"{args.run}: not a run directory with a frontier.json")
    levels = read_json(stored, "levels")["levels"]
    if any(level["lambda"] is None for level in levels):
        raise UserError(f"{args.run}: lambda is not fitted yet; finish the run first")
    names = [level["name"] for level in levels]
    found = frontier_metrics(
        _rollouts(args.run),
        _rollouts(args.run, "final"),
        Ladder.build(names, [""] * len(names), [level["lambda"] for level in levels]),
        max_budget=args.budget,
        num_bootstrap=config.eval.num_bootstrap,
        seed=config.eval.seed,
    )
    lines = [
        f"{m.effort:<10} Delta J: p = {m.p_value:.3g} (Holm {m.p_holm:.3g})  "
        f"success at base cost {_signed(m.hull_gap)}  "
        f"cost at base success x{m.cost_ratio.mean:.2f} "
        f"[{m.cost_ratio.low:.2f}, {m.cost_ratio.high:.2f}]  "
        f"budget area {_signed(m.budget_auc)}"
        for m in found.levels
    ]
    lines += [
        f"hypervolume in log cost {_signed(found.hypervolume)}",
        f"above the base everywhere from ${found.costs[0]:.3g} to ${found.costs[-1]:.3g}: "
        f"p = {found.dominance_p_value:.3g}; simultaneous 95 % band of the gap "
        f"{min(found.band_low):+.3f} at its lowest",
        f"{found.num_tasks} tasks; budgets up to ${found.max_budget:.3g}",
    ]
    return found.to_json(), lines


def _signed(found: Any) -> str:
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def _plan(args: argparse.Namespace) -> tuple[Any, list[str]]:
    from dataclasses import asdict

    from frontrunner.evals.planner import plan, power

    if not args.delta or args.levels < 1 or not 0.0 < args.power < 1.0 or min(args.seeds) < 1:
        raise UserError("delta must not be 0, counts must be 1 or more, 0 < --power < 1")
    if (args.tasks is None) != (args.runs is None):
        raise UserError("--tasks and --runs go together")
    if args.tasks is not None and min(args.tasks, args.runs) < 1:
        raise UserError("--tasks and --runs must be 1 or more")
    if not math.isfinite(args.delta) or not 0.0 <= (args.seed_sd or 0.0) < math.inf:
        raise UserError("delta must be a finite number, and --seed-sd one of 0 or more")
    noise = _noise(args)
    data: dict[str, Any] = {"delta": args.delta, "noise": asdict(noise), "designs": []}
    lines = [
        f"Delta J {args.delta:g}; variance between tasks {noise.task:.3g}, within {noise.run:.3g}; "
        f"spread between seeds {noise.seed:g}; {args.levels} claims at 5 % by Holm"
    ]
    for seeds in args.seeds:
        if args.tasks is not None:
            found = power(args.delta, args.tasks, args.runs, seeds, noise=noise,
                          alpha=0.05 / args.levels)  # fmt: skip
            row = {"num_seeds": seeds, "num_tasks": args.tasks, "num_runs": args.runs}
            data["designs"].append({**row, "power": found})
            lines.append(f"{seeds:>3} seeds, {args.tasks} tasks x {args.runs}: power {found:.0%}")
            continue
        design = plan(args.delta, seeds, target=args.power, num_levels=args.levels, noise=noise)
        if design is None:
            lines.append(f"{seeds:>3} seeds: no number of tasks suffices")
            data["designs"].append({"num_seeds": seeds, "num_tasks": None})
            continue
        data["designs"].append({**asdict(design), "num_rollouts": design.num_rollouts})
        lines.append(
            f"{seeds:>3} seeds: {design.num_tasks} tasks x {design.num_runs} runs, power "
            f"{design.power:.0%}, {design.num_rollouts} rollouts per level"
        )
    lines.append("One seed compares two fixed models; a claim about the recipe needs several.")
    return data, lines


def _noise(args: argparse.Namespace) -> Noise:
    """Of a stored run, at the level where it is largest, or the default."""
    from frontrunner.evals.planner import Noise, noise_of
    from frontrunner.rollout.store import read_json

    seed = Noise().seed if args.seed_sd is None else args.seed_sd
    if args.source is None:
        return Noise(seed=seed)
    if not (args.source / "frontier.json").is_file():
        raise UserError(f"{args.source}: not a run directory with a frontier.json")
    stored = read_json(args.source / "frontier.json", "levels")
    sides = [_rollouts(args.source, kind) for kind in ("base", "final")]
    found = []
    for level in stored["levels"]:
        values: list[dict[str, list[float]]] = []
        for rollouts in sides:
            by_task: dict[str, list[float]] = {}
            for r in rollouts:
                if r.effort == level["name"] and r.valid and r.cost is not None:
                    j = r.success - level["lambda"] * r.cost
                    by_task.setdefault(r.task_id, []).append(j)
            values.append(by_task)
        try:
            found.append(noise_of(values[0], values[1], seed))
        except ValueError as error:
            raise UserError(f"{args.source}: {error}") from error
    return max(found, key=lambda n: n.task + n.run)


def _lint(args: argparse.Namespace) -> tuple[Any, list[str]]:
    from dataclasses import asdict
    from functools import partial

    import numpy as np

    from frontrunner.effort.lint import lint, parse_reward, stored_loss
    from frontrunner.envs.evidence import MIX_1, MIX_2, Evidence
    from frontrunner.evals.frontier import outcomes

    reward = parse_reward(args.reward)
    found = outcomes(_rollouts(args.rollouts)) if args.rollouts else []
    top = max((o.cost for o in found), default=60.0)
    costs = np.linspace(0.0, top, 21)
    example = lint(reward, costs.tolist(), ((0.3, top / 2.0), (0.9, top / 8.0)), 1.0 / top)
    data: dict[str, Any] = {
        "affine": example is None,
        "counter_example": None if example is None else asdict(example),
    }
    lines = [
        "Affine: expected reward is a function of mean cost and solve rate."
        if example is None
        else example.explain()
    ]
    prices = np.geomspace(1e-2, 1e2, 41) / top
    if found:
        stored = stored_loss(reward, found, prices.tolist())
        data["stored"] = asdict(stored)
        lines.append(
            f"On the stored rollouts, choosing a level per task: {stored.largest:.1%} of success "
            f"lost at most, {stored.mean:.1%} on average over lam ({stored.num_tasks} tasks)."
        )
    data["evidence"] = {}
    for name, mix in (("even", MIX_1), ("with hopeless tasks", MIX_2)):
        env = Evidence(mix)
        cost, success = env.linear(0.01)
        lam = np.geomspace(1e-4, 1.0, 65)[:, None, None]
        names = {"lam": lam, "p": success[:, None], "m": np.maximum(cost, 1.0)[:, None]}
        loss = env.loss(partial(_priced, reward, names))
        data["evidence"][name] = {"largest": float(loss.max()), "mean": float(loss.mean())}
        lines.append(
            f"On Evidence ({name}; C in looks): {loss.max():.1%} of success lost at most, "
            f"{loss.mean():.1%} on average over lam."
        )
    return data, lines


def _priced(reward: Reward, facts: dict[str, Any], cost: Floats, success: float) -> Floats:
    return reward({"C": cost, "S": success, **facts})


def _rollouts(source: Path, kind: str = "base") -> list[Rollout]:
    from frontrunner.rollout.store import RolloutFile

    file = source / "eval" / f"{kind}.jsonl" if source.is_dir() else source
    if not file.is_file():
        raise UserError(f"{file}: no rollouts there; measure a model first: frontrunner eval")
    rollouts = list(RolloutFile(file).read())
    if not rollouts:
        raise UserError(f"{file}: no whole rollout in it; measure a model first: frontrunner eval")
    return rollouts


def _config(source: Path) -> Config | None:
    """Settings of the run that the rollouts belong to, if they belong to one."""
    from frontrunner.config import load

    marker = source / "config.json"
    return load(marker) if marker.is_file() else None
