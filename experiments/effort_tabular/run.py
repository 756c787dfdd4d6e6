"""Which part of the recipe moves the frontier, and what breaks it: tabular policies on Evidence.

    python experiments/effort_tabular/run.py --seeds 20

Endpoints, fixed beforehand: exact delta J per effort level at the base's tangents (E1, E2, E6, E7,
E8), the ratio of high to low cost (E3), the change of high-effort cost (E4), the difference of mean
delta J between one run and separate runs (E5, margin 0.01), KL(sampler || trainer) against the
plain mean at staleness 8 (E11), high-effort cost against a run without crashes (E15). Intervals are
Student's t over training seeds, 95 %; differences are paired by seed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.special import stdtrit
from tabular import (
    LEVELS,
    MAX_LOOKS,
    Arm,
    Trainer,
    chance_pass_rate,
    composer,
    correct_only,
    dual,
    hard_budget,
    linear,
    pass_rate,
    retangent,
    task_budget,
    toggle,
)

from frontrunner.envs.evidence import Evidence, kinds
from frontrunner.rollout.store import machine

HERE = Path(__file__).parent
HOPELESS = kinds((0.505, 0.65, 0.9), (1.0, 4.0))
"""One kind in three cannot be told from a coin toss."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", nargs="+", help="experiments, e.g. E1 E11")
    args = parser.parse_args()
    studies = {
        "E1": prices_and_baselines, "E4": wrong_prices, "E5": one_run, "E6": other_rewards,
        "E8": hopeless, "E11": kl, "E15": crashes,
    }  # fmt: skip
    file = HERE / "result.json"
    rows = json.loads(file.read_text()) if args.only and file.is_file() else []
    for name, study in studies.items():
        if args.only and name not in args.only:
            continue
        rows = [r for r in rows if r["study"] != name]
        for row in study(args.seeds):
            command = f"python experiments/effort_tabular/run.py --seeds {args.seeds} --only {name}"
            rows.append({**row, "study": name, "num_seeds": args.seeds, "command": command,
                         **machine()})  # fmt: skip
            spread = f"{row['estimate']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"
            print(row["experiment"], row["arm"], row["endpoint"], spread, row["holds"], flush=True)
        file.write_text(json.dumps(rows, indent=1) + "\n")


def row(experiment, claim, arm, endpoint, values, holds) -> dict:
    """`holds` decides from (low, high), or is None where nothing was claimed."""
    values = np.asarray(values, dtype=float)
    half = stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values))
    low, high = float(values.mean() - half), float(values.mean() + half)
    return {
        "experiment": experiment, "claim": claim, "arm": arm, "endpoint": endpoint,
        "estimate": float(values.mean()), "low": low, "high": high,
        "seed_sd": float(values.std(ddof=1)), "holds": None if holds is None else holds(low, high),
    }  # fmt: skip


def positive(low, high):
    return bool(low > 0.0)


def negative(low, high):
    return bool(high < 0.0)


def train(arm: Arm, num_seeds: int, env: Evidence | None = None) -> Trainer:
    return Trainer(arm, num_seeds, *(() if env is None else (env,))).train()


def levels(experiment, claim, arm, trainer, holds, reference=None) -> list[dict]:
    """Delta J per level (less that of `reference`), with the exact cost and success."""
    delta, (cost, success) = trainer.delta_j(), trainer.result()
    less = 0.0 if reference is None else reference.delta_j()
    name = "delta_j" if reference is None else "delta_j less reference"
    return [
        {
            **row(experiment, claim, arm, f"{name} at {level}", (delta - less)[:, e], holds),
            "cost": float(cost[:, e].mean()), "success": float(success[:, e].mean()),
            "base": {"cost": float(trainer.base[0][e]), "success": float(trainer.base[1][e])},
        }
        for e, level in enumerate(LEVELS)
    ]  # fmt: skip


def ratio_row(experiment, claim, arm, trainer, holds) -> dict:
    cost = trainer.result()[0]
    return row(experiment, claim, arm, "cost at high / cost at low", cost[:, 2] / cost[:, 0], holds)


def prices_and_baselines(n):
    one_run = "one run moves every effort level above its base tangent"
    for name in ("length_weighted", "length_weighted_loo", "mean", "rloo"):
        trainer = train(Arm(linear(), name), n)
        yield from levels("E1", one_run, name, trainer, positive)
        yield ratio_row("E3", "levels keep apart", name, trainer, lambda a, b: bool(a > 5.0))
        if name == "length_weighted":
            best = np.array([reachable(trainer, p)[e] for e, p in enumerate(trainer.prices)])
            for e, level in enumerate(LEVELS):
                share = trainer.delta_j()[:, e] / best[e]
                yield row("E1", "share of the achievable", name, f"share at {level}", share, None)
    std = train(Arm(linear(), "mean", normalise=True), n)
    claim = "dividing by the standard deviation costs high effort its gain"
    yield from levels("E2", claim, "std-normalised", std, None)
    reference = train(Arm(linear(), "mean"), n)
    gap = std.delta_j()[:, 2] - reference.delta_j()[:, 2]
    yield row("E2", claim, "std-normalised", "delta_j less mean at high", gap, negative)
    mean = np.full(3, std.prices.mean())
    one = train(Arm(linear(prices=mean)), n)
    yield from levels("E3", "one lambda merges levels", "one lambda", one, None)
    claim = "one lambda for all merges levels: the ratio falls below the base's 5.7"
    yield ratio_row("E3", claim, "one lambda", one, lambda a, b: bool(b < 5.0))


def reachable(trainer: Trainer, price: float) -> np.ndarray:
    """Delta J of the optimum at this price against each base point."""
    cost, success = (trainer.env.mean(x) for x in trainer.env.linear(price))
    return (success - trainer.base[1]) - price * (cost - trainer.base[0])


def wrong_prices(n):
    claim = "too high a price shifts and merges levels, too low a one only slows learning"
    for scale in (0.25, 0.5, 2.0, 4.0):
        trainer = train(Arm(linear(scale)), n)
        yield from levels("E4", claim, f"lambda x {scale:g}", trainer, None)
        change = trainer.result()[0][:, 2] / trainer.base[0][2] - 1.0
        expected = (lambda a, b: bool(b < -0.2)) if scale == 4.0 else None
        if scale < 1.0:
            expected = lambda a, b: bool(abs(a) < 0.1 and abs(b) < 0.1)  # noqa: E731
        yield row("E4", claim, f"lambda x {scale:g}", "relative change of cost at high", change,
                  expected)  # fmt: skip
    low = np.full(3, trainer.prices[0])
    trainer = train(Arm(linear(prices=low)), n)
    yield from levels("E4", claim, "lambda of low for all", trainer, None)
    yield ratio_row("E4", claim, "lambda of low for all", trainer, lambda a, b: bool(b < 2.0))


def one_run(n):
    claim = "one run is not worse than a run per effort by 0.01, at equal rollouts"
    together = train(Arm(linear(), shared=True), n)
    apart = np.stack(
        [
            train(Arm(linear(), shared=True, groups=32, efforts=(e,)), n).delta_j()[:, e]
            for e in range(3)
        ],
        axis=1,
    )
    gap = (together.delta_j() - apart).mean(axis=1)
    yield row("E5", claim, "shared logits", "mean delta_j, one run less separate", gap,
              lambda a, b: bool(a > -0.01))  # fmt: skip


def other_rewards(n):
    reference = train(Arm(linear()), n)
    claim = "linear is not worse than {} by more than 0.005"
    arms = {
        "hard budget": hard_budget, "budget per kind, tau 2 to 1": task_budget,
        "composer k=.2 q=.5": composer(0.2, 0.5), "composer k=.5 q=.9": composer(0.5, 0.9),
        "pass-rate": pass_rate, "correct only": correct_only, "toggle": toggle,
    }  # fmt: skip
    for name, reward in arms.items():
        trainer = train(Arm(reward), n)
        experiment = "E6" if "budget" in name else "E8" if name == "pass-rate" else "E7"
        yield from levels(experiment, claim.format(name), name, trainer,
                          lambda a, b: bool(b < 0.005), reference)  # fmt: skip
    for name, hook in (("dual ascent to base cost", dual), ("re-fitted tangent", retangent)):
        trainer = train(Arm(linear(), after_step=hook), n)
        yield from levels("E7", f"schedule of lambda: {name}", name, trainer, None, reference)


def hopeless(n):
    env = Evidence(HOPELESS, MAX_LOOKS)
    reference = train(Arm(linear()), n, env)
    claim = "where a third of tasks is hopeless, pass-rate scaling loses to linear"
    yield from levels("E8", "linear with hopeless tasks", "linear", reference, positive)
    share = hopeless_share(reference)
    yield row("E8", claim, "linear", "cost share of hopeless tasks at low", share, None)
    for name, reward in (("pass-rate", pass_rate), ("pass-rate above chance", chance_pass_rate)):
        trainer = train(Arm(reward), n, env)
        yield from levels("E8", claim, name, trainer, negative, reference)
        share = hopeless_share(trainer)
        yield row("E8", claim, name, "cost share of hopeless tasks at low", share, None)


def hopeless_share(trainer: Trainer) -> np.ndarray:
    from tabular import outcome

    cost = outcome(trainer.env, trainer.logits)[0][:, 0]
    return cost[:, :2].sum(axis=1) / cost.sum(axis=1)


def kl(n):
    claim = "the level of the baseline sets the distance to a stale sampler (reference: mean)"
    settings = {"staleness": 8, "steps": 150}
    reference = train(Arm(linear(), "mean", **settings), n)
    expected = {
        ("length_weighted", 0.0): None, ("length_weighted_loo", 0.0): None, ("rloo", 0.0): None,
        ("mean", -0.05): lambda a, b: bool(b < 0.9), ("mean", 0.05): lambda a, b: bool(a > 1.0),
    }  # fmt: skip
    for (name, offset), holds in expected.items():
        arm = f"{name} {offset:+.2f}" if offset else name
        trainer = train(Arm(linear(), name, offset=offset, **settings), n)
        yield row("E11", claim, arm, "KL over that of mean", trainer.kl / reference.kl, holds)
        yield from levels("E11", claim, arm, trainer, None, reference)


def crashes(n):
    claim = "crashes that hit long rollouts, scored as failures, push effort down; masked, not"
    reference = train(Arm(linear()), n)
    for name, mask in (("scored 0", False), ("masked", True)):
        trainer = train(Arm(linear(), crash=0.01, mask_crashes=mask), n)
        change = trainer.result()[0][:, 2] / reference.result()[0][:, 2] - 1.0
        holds = (lambda a, b: bool(a > -0.05)) if mask else (lambda a, b: bool(b < -0.05))
        yield row("E15", claim, name, "relative change of cost at high", change, holds)


if __name__ == "__main__":
    main()
