"""Which rollouts a step makes: pure functions of the config and the step number."""

from __future__ import annotations

import random
from collections.abc import Sequence

from frontrunner.effort.ladder import Ladder
from frontrunner.rollout.agent import Job
from frontrunner.rollout.collector import seed_of
from frontrunner.rollout.difficulty import Posteriors, choose
from frontrunner.types import Task


def training_jobs(
    tasks: Sequence[Task],
    ladder: Ladder,
    groups: int,
    group_size: int,
    seed: int,
    step: int,
    known: Posteriors | None = None,
) -> list[Job]:
    """Jobs of one step, group by group: tasks in a shuffled epoch, effort levels in turn.

    Every task comes up once per epoch, at another level each time, so that after as many epochs
    as there are levels it was met at all of them; then the tasks are shuffled anew. With `known`,
    tasks are drawn by their difficulty at the level instead (see `difficulty.choose`).
    """
    jobs: list[Job] = []
    numbers = range(step * groups, (step + 1) * groups)
    efforts = [ladder.levels[number % len(ladder)].name for number in numbers]
    drawn = (
        None if known is None else choose(tasks, efforts, known, seed_of(seed, "difficulty", step))
    )
    for number in numbers:
        epoch, place = divmod(number, len(tasks))
        order = list(range(len(tasks)))
        random.Random(seed_of(seed, "cycle", epoch // len(ladder))).shuffle(order)
        task = tasks[order[place]]
        level = ladder.levels[(place + epoch) % len(ladder)]
        if drawn is not None:
            task, level = drawn[number - numbers.start], ladder.levels[number % len(ladder)]
        for member in range(group_size):
            jobs.append(
                Job(
                    key=f"{step}/{number}/{member}",
                    task=task,
                    level=level,
                    seed=seed_of(seed, "train", number, member),
                )
            )
    return jobs


def eval_jobs(tasks: Sequence[Task], ladder: Ladder, samples: int, seed: int) -> list[Job]:
    """Every task at every level, `samples` times; the same seeds before and after training."""
    return [
        Job(
            key=f"{task.id}/{level.name}/{sample}",
            task=task,
            level=level,
            seed=seed_of(seed, "eval", task.id, level.name, sample),
        )
        for task in tasks
        for level in ladder
        for sample in range(samples)
    ]
