"""E9 and E10: does the score norm grow with length, and does that cut the gradient's variance?

    python experiments/score_norm/run.py --run runs/frontier_shift/base --num 720 [--smollm2 RUN]

Endpoints, fixed beforehand. E9: Pearson correlation of L and the exact ||grad log pi||^2 over
rollouts (expected .8 to .95), log-log slope (.9 to 1.1), and the correlation of two other
estimates; intervals resample tasks. E10: tr Cov of the gradient estimate of groups of 8 with the
length-weighted leave-one-out baseline over that with RLOO, per bucket of solve rate and length
ratio; predicted from rewards and L alone against measured with exact gradients; the slope of
measured on predicted log ratios (expected 1). Groups are drawn from the stored rollouts of one
level at a chosen solve rate, over tasks, as a measurement has few rollouts per task; R is
S - lambda C at the fitted prices. E10's intervals: Student's t over 20 parts of the groups, and
buckets resampled for the slope; neither resamples rollouts, so they are too narrow for a claim
about other rollouts. `--smoke` takes 40 rollouts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from frontrunner.algo.baseline import weighted
from frontrunner.config import load
from frontrunner.effort.frontier import fit
from frontrunner.evals.frontier import outcomes
from frontrunner.rollout.samples import to_sample
from frontrunner.rollout.store import RolloutFile, machine
from frontrunner.train.model import load_policy
from frontrunner.train.norms import proxies, score_gradient

HERE = Path(__file__).parent
GROUP = 8
DIMENSION = 2048
"""Of the random projection of gradients: keeps squared norms within some 3 %."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, action="append", required=True, help="measured run(s)")
    parser.add_argument("--num", type=int, default=1000, help="rollouts per model at most")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "result.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for run in args.run:
        data = measure(run, 40 if args.smoke else args.num)
        found = norm_rows(data, 200 if args.smoke else 2000)
        if data["lambdas"] is not None:
            found += variance_rows(data, 200 if args.smoke else 4000)
        command = f"python experiments/score_norm/run.py --num {args.num}"
        rows += [
            {**row, "model": data["model"], "num_rollouts": len(data["norm"]), "num_seeds": 1,
             "command": command, **machine()}
            for row in found
        ]  # fmt: skip
        for row in found:
            print(row["endpoint"], {k: row[k] for k in ("estimate", "low", "high", "holds")})
    args.out.write_text(json.dumps(rows, indent=1) + "\n")


def measure(run: Path, num: int) -> dict:
    """Lengths, norms and projected gradients of a run's base rollouts, levels and tasks mixed."""
    config = load(run / "config.json")
    model = load_policy(config.model.path, "float32").model
    rollouts = [r for r in RolloutFile(run / "eval" / "base.jsonl").read() if r.valid and r.turns]
    try:
        lambdas = fit(outcomes(rollouts), config.effort.levels).lambdas
    except Exception:  # the untrained model has no slope: E9 needs none
        lambdas = None
    order = np.random.default_rng(0).permutation(len(rollouts))[:num]
    rollouts = [rollouts[i] for i in order]
    size = sum(p.numel() for p in model.parameters())
    rng = np.random.default_rng(1)
    # Count sketch: every weight is added, with a random sign, to one of the places.
    place = torch.from_numpy(rng.integers(0, DIMENSION, size))
    sign = torch.from_numpy(rng.choice(np.array([-1.0, 1.0], np.float32), size))
    norms, sketches, estimates = [], [], []
    for rollout in rollouts:
        sample = to_sample(rollout, 0.0)
        z = score_gradient(model, sample, config.rollout.temperature)
        norms.append(float(z.double().square().sum()))
        sketches.append(torch.zeros(DIMENSION).index_add_(0, place, z * sign).numpy())
        estimates.append(proxies(model, sample, config.rollout.temperature))
    return {
        "model": config.model.path, "lambdas": lambdas, "norm": np.array(norms),
        "sketch": np.array(sketches, np.float64),
        **{k: np.array([e[k] for e in estimates]) for k in estimates[0]},
        "task": np.array([r.task_id for r in rollouts]),
        "effort": np.array([r.effort for r in rollouts]),
        "success": np.array([r.success for r in rollouts]),
        "cost": np.array([r.cost for r in rollouts]),
    }  # fmt: skip


def norm_rows(data: dict, num_bootstrap: int) -> list[dict]:
    claim = "the squared score norm is proportional to the number of trained tokens"
    rng = np.random.default_rng(2)
    tasks = np.unique(data["task"])
    members = [np.flatnonzero(data["task"] == t) for t in tasks]
    draws = [
        np.concatenate([members[i] for i in rng.integers(0, len(tasks), len(tasks))])
        for _ in range(num_bootstrap)
    ]

    def row(endpoint, statistic, holds) -> dict:
        values = [statistic(d) for d in draws]
        low, high = (float(q) for q in np.quantile(values, [0.025, 0.975]))
        return {"claim": claim, "endpoint": endpoint, "estimate": float(statistic(slice(None))),
                "low": low, "high": high,
                "holds": None if holds is None else bool(holds(low, high))}  # fmt: skip

    y = data["norm"]

    def slope(d) -> float:
        return np.polyfit(np.log(data["length"][d]), np.log(y[d]), 1)[0]

    def spearman(d) -> float:
        ranks = [np.argsort(np.argsort(v[d])) for v in (data["length"], y)]
        return np.corrcoef(*ranks)[0, 1]

    rows = [
        row(f"correlation of ||z||^2 with {name}",
            lambda d, name=name: np.corrcoef(data[name][d], y[d])[0, 1],
            (lambda a, b: a > 0.8) if name == "length" else None)
        for name in ("length", "logit_norm", "entropy")
    ]  # fmt: skip
    rows.append(row("rank correlation of ||z||^2 with length", spearman, None))
    rows.append(row("log-log slope on length", slope, lambda a, b: b > 0.9 and a < 1.1))
    return rows


def variance_rows(data: dict, num_groups: int) -> list[dict]:
    """Per (level, solve rate) bucket: groups resampled to that solve rate."""
    claim = "length weights change the gradient's variance as predicted from rewards and lengths"
    rng = np.random.default_rng(3)
    rewards = (
        data["success"] - np.array([data["lambdas"][e] for e in data["effort"]]) * data["cost"]
    )
    rows, pairs = [], []
    for effort in data["lambdas"]:
        here = data["effort"] == effort
        solved, failed = (np.flatnonzero(here & (data["success"] == s)) for s in (1.0, 0.0))
        if min(len(solved), len(failed)) < 2:
            continue
        for p in (0.2, 0.5, 0.8):
            hit = rng.random((num_groups, GROUP)) < p
            index = np.where(hit, rng.choice(solved, hit.shape), rng.choice(failed, hit.shape))
            measured = ratio(index, rewards, data["length"], data["sketch"], None)
            predicted = ratio(index, rewards, data["length"], None, data["length"])
            halves = [
                ratio(part, rewards, data["length"], data["sketch"], None)
                for part in np.array_split(index, 20)
            ]
            half = 2.09 * np.std(np.log(halves), ddof=1) / np.sqrt(20)
            rho = data["length"][failed].mean() / data["length"][solved].mean()
            rows.append({
                "claim": claim, "endpoint": f"variance over RLOO, {effort}, solve rate {p:g}",
                "estimate": measured, "low": float(measured * np.exp(-half)),
                "high": float(measured * np.exp(half)), "predicted": predicted,
                "length_ratio": float(rho), "holds": None,
            })  # fmt: skip
            pairs.append((np.log(predicted), np.log(measured)))
    if len(pairs) > 3:
        x, y = np.array(pairs).T
        slopes = []
        for _ in range(2000):
            i = rng.integers(0, len(x), len(x))
            if np.ptp(x[i]) > 1e-6:
                slopes.append(float(np.polyfit(x[i], y[i], 1)[0]))
        low, high = (float(q) for q in np.quantile(slopes, [0.025, 0.975]))
        rows.append({
            "claim": claim, "endpoint": "slope of measured on predicted log ratio",
            "estimate": float(np.polyfit(x, y, 1)[0]), "low": low, "high": high,
            "holds": bool(low <= 1.0 <= high),
        })  # fmt: skip
    return rows


def ratio(index, rewards, length, sketch, norms) -> float:
    """tr Cov with length-weighted leave-one-out over RLOO; `norms`: gradients as orthogonal."""
    variances = []
    for weights in (length, np.ones_like(length)):
        total, mean = 0.0, 0.0
        for group in index:
            a = rewards[group] - weighted(rewards[group], weights[group], leave_one_out=True)
            if sketch is None:
                total += float((a**2 * norms[group]).sum()) / GROUP**2
            else:
                g = a @ sketch[group] / GROUP
                mean = mean + g / len(index)
                total += float(g @ g)
        count = len(index)
        square = float(np.dot(mean, mean)) if sketch is not None else 0.0
        variances.append((total - count * square) / (count - 1))
    return variances[0] / variances[1]


if __name__ == "__main__":
    main()
