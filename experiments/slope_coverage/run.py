"""Do the intervals of the slope estimators cover the true tangent of a base model's frontier?

    python experiments/slope_coverage/run.py

The base model is the soft stopping policy of the tabular study on Evidence (mix 1, 40 looks). Its
effort is one number, where it tends to stop, so its frontier is a curve whose slope at every level
is known by the exact forward pass. Each draw measures `--tasks` tasks with `--runs` rollouts at
every level and fits; an interval resamples tasks. Endpoint, fixed beforehand: coverage of the true
slope at every level, 93 % or more of 500 draws, with Wilson's interval over draws. `limit` is what
the estimator gives for unlimited data, over the truth: its bias.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from frontrunner.effort.bootstrap import cluster_weights, interval
from frontrunner.effort.tangent import secant_slopes, tangent_slopes, truncation_slopes
from frontrunner.envs.evidence import MIX_1, Evidence
from frontrunner.evals.statistics import wilson
from frontrunner.rollout.store import machine

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "effort_tabular"))
from tabular import BASE_LOOKS, LEVELS, MAJORITIES, MAX_LOOKS, outcome  # noqa: E402

BUDGETS = np.array([1, 3, 5, 7, 9, 13, 17, 21, 27])
"""Looks at which the truncation curve of the highest level is read: odd, as an even number of looks
wastes its last one on ties."""
NUM_BOOTSTRAP = 300


def logits(looks: float) -> np.ndarray:
    """Stopping logits `[T, N, K]` of the base policy that tends to stop at `looks`."""
    n, k = np.arange(MAX_LOOKS)[:, None], np.arange(MAJORITIES)
    one = np.clip(0.6 * (n - looks) + 0.15 * k - 0.5, -6.0, 6.0)
    return np.repeat(one[None], len(MIX_1), axis=0)


def exact(env: Evidence, looks: float) -> np.ndarray:
    """(cost, success) of the base policy at this effort."""
    cost, success = outcome(env, logits(looks))
    return np.array([env.mean(cost), env.mean(success)])


def true_slopes(env: Evidence, step: float = 0.01) -> np.ndarray:
    rise = [exact(env, x + step) - exact(env, x - step) for x in BASE_LOOKS]
    return np.array([ds / dc for dc, ds in rise])


def measure(env: Evidence, num_tasks: int, num_runs: int, rng: np.random.Generator):
    """Task means: cost and success per level `[N, E]`, and at every budget `[N, P]`."""
    accuracies = np.array([kind.accuracy[0] for kind in env.kinds])
    q = accuracies[rng.integers(len(env.kinds), size=num_tasks)]
    level = np.stack([logits(x)[0] for x in BASE_LOOKS])
    shape = (num_tasks, len(LEVELS), num_runs)
    lead, looks = np.zeros(shape, int), np.full(shape, MAX_LOOKS)
    walking, at_budget = np.ones(shape, bool), np.zeros((num_tasks, num_runs, len(BUDGETS)))
    toss = rng.random((num_tasks, num_runs)) < 0.5
    for n in range(MAX_LOOKS + 1):
        for b in np.flatnonzero(n == BUDGETS):
            high = lead[:, -1]
            at_budget[..., b] = np.where(high == 0, toss, high > 0)
        if n == MAX_LOOKS:
            break
        majority = np.minimum(np.abs(lead), MAJORITIES - 1)
        stop = level[np.arange(len(LEVELS))[None, :, None], n, majority]
        stop = walking & (rng.random(shape) < 1.0 / (1.0 + np.exp(-stop)))
        looks[stop] = n
        walking &= ~stop
        right = rng.random(shape) < q[:, None, None]
        lead += np.where(walking, np.where(right, 1, -1), 0)
    tie = rng.random(shape) < 0.5
    tie[:, -1] = toss  # so that the last budget is the rollout itself
    success = np.where(lead == 0, tie, lead > 0)
    spent = np.minimum(looks[:, -1, :, None], BUDGETS)
    return looks.mean(-1), success.mean(-1), spent.mean(1), at_budget.mean(1)


def estimates(weights, cost, success, spent, at_budget) -> dict[str, np.ndarray]:
    """Slopes per estimator, `[B, E]`, of resampled task means."""
    c, s = weights @ cost, weights @ success
    curve = weights @ spent, weights @ at_budget
    return {
        "shape-constrained": tangent_slopes(c, s),
        "adjacent secants": secant_slopes(c, s),
        "budget truncation": truncation_slopes(*curve, cost.mean(axis=0)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=500)
    args = parser.parse_args()
    env, rng, rows = Evidence(MIX_1, MAX_LOOKS), np.random.default_rng(0), []
    truth = true_slopes(env)
    many = [measure(env, 5000, 4, rng) for _ in range(8)]
    everything = [np.concatenate(x) for x in zip(*many, strict=True)]
    whole = np.full((1, len(everything[0])), 1.0 / len(everything[0]))
    limit = {name: m[0] / truth for name, m in estimates(whole, *everything).items()}
    for num_tasks, num_runs in ((100, 3), (500, 4)):
        hits = {name: np.zeros(len(LEVELS)) for name in limit}
        for draw in range(args.draws):
            weights = cluster_weights(num_tasks, NUM_BOOTSTRAP, draw)
            for name, m in estimates(weights, *measure(env, num_tasks, num_runs, rng)).items():
                # A resample without a positive secant has no slope: anything from 0 to infinity.
                low, high = interval(np.nan_to_num(m, nan=0.0), num_tasks)
                top = interval(np.nan_to_num(m, nan=1e9), num_tasks)[1]
                hits[name] += (low <= truth) & (truth <= np.maximum(high, top))
        for name, found in hits.items():
            for e, level in enumerate(LEVELS):
                cover = wilson(found[e], args.draws)
                rows.append(
                    {
                        "claim": "95 % intervals cover the tangent of the base frontier",
                        "endpoint": f"coverage, {name}, {level}, {num_tasks} x {num_runs}",
                        "estimate": cover.mean,
                        "low": cover.low,
                        "high": cover.high,
                        "true_slope": float(truth[e]),
                        "limit": float(limit[name][e]),
                        "num_seeds": args.draws,
                        "holds": bool(cover.mean >= 0.93),
                        "command": f"python experiments/slope_coverage/run.py --draws {args.draws}",
                        **machine(),
                    }
                )
                print(rows[-1]["endpoint"], f"{cover.mean:.3f} [{cover.low:.3f}, {cover.high:.3f}]",
                      f"limit {limit[name][e]:.2f}", flush=True)  # fmt: skip
        (HERE / "result.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
