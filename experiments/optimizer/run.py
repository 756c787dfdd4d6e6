"""How far does a policy get with few rollouts, by optimizer and rate? Off-policy, at equal KL.

    frontrunner train recipes/quickstart.toml run.directory=runs/frozen \\
        train.learning_rate=1e-12 train.steps=7 eval.tasks=4 'effort.lambdas=[50,30,10]'
    python experiments/optimizer/run.py runs/frozen/rollouts.jsonl

Groups of rollouts of one unchanged policy are split into two halves by task. The first half trains,
in a few steps; the second tells what was learned: with w the likelihood ratio of a whole rollout,
at most 4, and A its reward less the mean of the others of its group, the gain is the mean of
(w - 1) A, and KL the mean of -log of the ratio. Capping makes the gain of large steps too small.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
from pathlib import Path

import numpy as np
import torch

from frontrunner.config import AlgoSection, TrainSection
from frontrunner.rollout.samples import groups_of, samples_of
from frontrunner.rollout.store import RolloutFile, machine
from frontrunner.train.batch import collate
from frontrunner.train.model import load_policy
from frontrunner.train.score import score
from frontrunner.train.trainer import LocalTrainer
from frontrunner.types import Group

HERE = Path(__file__).parent
GRID = {"adamw": (1e-5, 3e-5, 1e-4, 3e-4), "sgd": (0.25, 0.5, 1.0, 2.0)}
CAP = 4.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rollouts", type=Path)
    parser.add_argument("--model", default="base", help="the model that made them")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    groups = groups_of(RolloutFile(args.rollouts).read(), args.group_size)
    halves = split(groups, args.seed)
    policy = load_policy(args.model).model
    rows = []
    for optimizer, rates in GRID.items():
        for rate in rates:
            config = TrainSection(optimizer=optimizer, learning_rate=rate, warmup_steps=0)
            trainer = LocalTrainer(copy.deepcopy(policy), AlgoSection(), config, 1.0)
            for n in range(args.steps):
                trainer.train_step(samples_of(halves[0][n :: args.steps], "length_weighted"))
            row = {"optimizer": optimizer, "learning_rate": rate, **gain(trainer, halves[1])}
            rows.append(row)
            print("{optimizer} {learning_rate:g}: KL {kl:.3f}, ESS {ess:.2f}, gain {gain:+.4f} "
                  "[{low:+.4f}, {high:+.4f}]".format(**row), flush=True)  # fmt: skip
    result = {
        "num_rollouts": [sum(len(g.rollouts) for g in half) for half in halves],
        "steps": args.steps,
        "seed": args.seed,
        "model": args.model,
        "rows": rows,
        "command": "python experiments/optimizer/run.py ROLLOUTS",
        **machine(),
    }
    (HERE / "comparison.json").write_text(json.dumps(result, indent=1) + "\n")


def split(groups: list[Group], seed: int) -> tuple[list[Group], list[Group]]:
    """Two halves that share no task."""
    tasks = sorted({g.rollouts[0].task_id for g in groups})
    random.Random(seed).shuffle(tasks)
    first = set(tasks[: len(tasks) // 2])
    random.Random(seed).shuffle(groups)
    return (
        [g for g in groups if g.rollouts[0].task_id in first],
        [g for g in groups if g.rollouts[0].task_id not in first],
    )


@torch.no_grad()
def gain(trainer: LocalTrainer, groups: list[Group]) -> dict[str, float]:
    """Estimated gain in reward on `groups`, its interval over groups, KL and sample size share."""
    samples = samples_of(groups, "length_weighted")
    log_ratio = np.zeros(len(samples))
    for pack in trainer.packs(samples):
        batch = collate(samples, pack, "token_sum")
        logprobs, _ = score(trainer.model, batch, 1.0, trainer.ways)
        differences = (logprobs - batch.logprobs).double().numpy()
        start = 0
        for member, (_, count) in zip(pack.members, batch.efforts, strict=True):
            log_ratio[member] = differences[start : start + count].sum()
            start += count
    ratio = np.minimum(np.exp(log_ratio), CAP)
    rewards = [np.array([r.reward for r in g.rollouts]) for g in groups]
    advantage = np.concatenate([(r - r.mean()) * len(r) / (len(r) - 1) for r in rewards])
    ends = np.cumsum([len(r) for r in rewards])[:-1]
    per_group = np.array([part.mean() for part in np.split((ratio - 1.0) * advantage, ends)])
    error = 1.96 * per_group.std(ddof=1) / len(per_group) ** 0.5
    return {
        "kl": float(-log_ratio.mean()),
        "ess": float(ratio.sum() ** 2 / (ratio**2).sum() / len(ratio)),
        "gain": float(per_group.mean()),
        "low": float(per_group.mean() - error),
        "high": float(per_group.mean() + error),
    }


if __name__ == "__main__":
    main()
