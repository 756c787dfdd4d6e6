"""Rollouts to groups, and groups to the samples that the trainer learns from."""

from __future__ import annotations

from collections.abc import Sequence

from frontrunner.algo.advantage import advantages
from frontrunner.algo.baseline import Baseline
from frontrunner.types import Group, Rollout, Sample


def groups_of(rollouts: Sequence[Rollout], group_size: int) -> list[Group]:
    """Consecutive runs of `group_size` rollouts, each of one (task, effort).

    Rollouts that could not be graded are left out; the group's baseline is then that of the rest.
    """
    groups: list[Group] = []
    for start in range(0, len(rollouts), group_size):
        members = rollouts[start : start + group_size]
        valid = tuple(r for r in members if r.valid)
        groups.append(Group(members[0].task_id, members[0].effort, valid))
    return groups


def samples_of(groups: Sequence[Group], kind: Baseline) -> list[Sample]:
    """One sample per rollout; a rollout without turns has nothing to learn from."""
    samples: list[Sample] = []
    for group in groups:
        for rollout, advantage in zip(group.rollouts, advantages(group, kind), strict=True):
            if rollout.turns:
                samples.append(to_sample(rollout, advantage))
    return samples


def to_sample(rollout: Rollout, advantage: float) -> Sample:
    """The trajectory's tokens exactly as they were read and sampled."""
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    kept: list[tuple[int, ...]] = []
    for turn in rollout.turns:
        ids += turn.prompt + turn.output
        mask += [False] * len(turn.prompt) + list(turn.chosen)
        logprobs += [0.0] * len(turn.prompt) + list(turn.logprobs)
        kept += [()] * len(turn.prompt) + list(turn.kept or [()] * len(turn.output))
    return Sample(
        tuple(ids),
        tuple(mask),
        tuple(logprobs),
        advantage,
        rollout.effort,
        rollout.version,
        tuple(kept) if any(kept) else (),
    )
