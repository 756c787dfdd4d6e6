"""A_i = R_i - b_i: the advantage of every rollout of a group.

Never divided by the group's standard deviation. In a group that is all solved (or all failed)
A_i / sd = (mean C - C_i) / sd(C): lambda cancels, and every effort level gets the same push to
shorten. Groups with equal successes are kept, as they carry the cost signal.
"""

from __future__ import annotations

from collections.abc import Sequence

from frontrunner.algo.baseline import Baseline, baseline
from frontrunner.types import Group


def advantages_of(
    rewards: Sequence[float], lengths: Sequence[float], kind: Baseline = "length_weighted"
) -> tuple[float, ...]:
    """R - b, one per rollout. `lengths` are trainable tokens of the whole trajectory."""
    b = baseline(kind, rewards, lengths)
    return tuple(float(r) - float(b_i) for r, b_i in zip(rewards, b, strict=True))


def advantages(group: Group, kind: Baseline = "length_weighted") -> tuple[float, ...]:
    """One advantage per rollout, in the group's order; a group of one gets 0.

    Every token of a rollout shares its advantage, however many turns or segments it has. Raises
    `ValueError` if rollouts of another task or effort are mixed in, or one has no reward.
    """
    for rollout in group.rollouts:
        if (rollout.task_id, rollout.effort) != (group.task_id, group.effort):
            raise ValueError(
                f"A rollout of ({rollout.task_id}, {rollout.effort}) is in the group of "
                f"({group.task_id}, {group.effort}); a group is one task at one effort."
            )
        if rollout.reward is None or not rollout.valid:
            raise ValueError(
                f"A rollout of ({rollout.task_id}, {rollout.effort}) has no reward; "
                "only graded and priced rollouts enter a group."
            )
    if not group.rollouts:
        return ()
    rewards = [r.reward for r in group.rollouts if r.reward is not None]
    return advantages_of(rewards, [r.num_tokens for r in group.rollouts], kind)
