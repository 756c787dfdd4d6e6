"""What other rewards lose on the exact frontier: success at the optimum's cost, in points.

    python experiments/reward_loss/run.py

Every reward is optimised exactly (dynamic programming) over a sweep of its multiplier. The loss is
the height of the frontier at the optimum's mean cost, less its mean success. Solve rates and mean
costs that a reward refers to are those of the linear optimum at 0.01 per look. Budgets start at 4
looks and fixed numbers of looks are odd: an even number of looks wastes its last one on ties.
Nothing is sampled, so there are no intervals; the largest loss moves by some 0.2 points with the
grid, and by more where a sweep reaches prices at which the frontier itself is a few looks long.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from frontrunner.envs.evidence import MIX_1, MIX_2, Evidence
from frontrunner.rollout.store import machine

HERE = Path(__file__).parent
CLAIM = "the optimum of a reward that is not affine in (C, S) lies below the frontier"


def losses(env: Evidence) -> dict[str, np.ndarray]:
    """Loss in points over the sweep, by reward."""
    cost, success = env.linear(0.01)
    lam, small, large = (np.geomspace(1e-4, top, 65)[:, None, None] for top in (0.5, 0.1, 2.0))
    budget = np.arange(4, env.max_looks)[:, None, None]

    def composer(k, q, lam):
        return lambda c, s: s - lam * ((1.0 + k * c) ** (1.0 - q) - 1.0) / (k * (1.0 - q))

    def per_kind(scale, lam):
        return lambda c, s: s - lam * scale[:, None] * c

    rewards = {
        "linear": lambda c, s: s - lam * c,
        "composer k=.2 q=.5": composer(0.2, 0.5, lam),
        "composer k=.5 q=.9": composer(0.5, 0.9, large),
        "mean-cost normalised": per_kind(cost.mean() / np.maximum(cost, 1.0), small),
        "pass-rate": per_kind(2.0 * success - 1.0, lam),
        "std": per_kind(0.35 / np.sqrt(success * (1.0 - success)), small),
        "correct only": lambda c, s: s * (1.0 - small * c),
        "hard budget": lambda c, s: np.where(c <= budget, s, -1.0),
    }
    found = {name: 100.0 * env.loss(reward) for name, reward in rewards.items()}
    fixed = [env.evaluate(env.fixed(n)) for n in range(3, env.max_looks, 2)]
    points = np.array([(env.mean(c), env.mean(s)) for c, s in fixed])
    found["fixed looks"] = 100.0 * (env.frontier.height(points[:, 0]) - points[:, 1])
    return found


def main() -> None:
    rows = []
    for mix, kinds in (("mix 1", MIX_1), ("mix 2", MIX_2)):
        for name, loss in losses(Evidence(kinds)).items():
            rows.append(
                {
                    "claim": CLAIM,
                    "endpoint": f"largest loss in points, {name}, {mix}",
                    "estimate": float(loss.max()),
                    "low": float(loss.max()),
                    "high": float(loss.max()),
                    "mean": float(loss.mean()),
                    "num_seeds": 0,
                    "holds": bool(loss.max() < 1e-4) if name == "linear" else None,
                    "command": "python experiments/reward_loss/run.py",
                    **machine(),
                }
            )
            print(f"{mix} {name}: largest {loss.max():.2f}, mean {loss.mean():.2f} points")
    (HERE / "result.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
