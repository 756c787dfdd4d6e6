"""How hard a task is for the policy as it is now: a Beta posterior per task and effort level.

Every graded rollout adds its success s in [0, 1] to a Beta(1 + sum s, 1 + sum (1 - s)). What an
older policy did counts less: each policy version multiplies the sums by `FORGETTING`. Tasks are
sampled by the expected variance of a success, E[p(1 - p)], which is largest where a group of
rollouts holds both outcomes; a task never tried has the variance of the uniform prior, 1/6.
Everything is recomputed from stored rollouts, so a resumed run samples as it would have done.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from frontrunner.types import Rollout, Task

FORGETTING = 0.98
"""Weight that a rollout keeps per policy version that came after it."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """Beta(alpha, beta) of the probability that a rollout succeeds."""

    alpha: float = 1.0
    beta: float = 1.0

    @property
    def mean(self) -> float:
        return self.alpha / (self.alpha + self.beta)

    @property
    def weight(self) -> float:
        """E[p(1 - p)], in (0, 1/4)."""
        total = self.alpha + self.beta
        return self.alpha * self.beta / (total * (total + 1))

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Equal-tailed credible interval."""
        from scipy.stats import beta  # type: ignore[import-untyped]

        low, high = beta.interval(level, self.alpha, self.beta)
        return float(low), float(high)


Posteriors = dict[tuple[str, str], Posterior]
"""(task id, effort) -> posterior."""


def posteriors(
    rollouts: Iterable[Rollout], version: int, forgetting: float = FORGETTING
) -> Posteriors:
    """Posteriors at policy `version`; rollouts without a verdict say nothing."""
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for rollout in rollouts:
        if not rollout.valid or not rollout.turns:
            continue
        keep = forgetting ** max(0, version - rollout.version)
        won, lost = sums.get((rollout.task_id, rollout.effort), (0.0, 0.0))
        won, lost = won + keep * rollout.success, lost + keep * (1 - rollout.success)
        sums[rollout.task_id, rollout.effort] = won, lost
    return {key: Posterior(1 + won, 1 + lost) for key, (won, lost) in sums.items()}


def choose(
    tasks: Sequence[Task], efforts: Sequence[str], known: Posteriors, seed: int
) -> list[Task]:
    """A different task for each of `efforts`, with odds as `Posterior.weight`.

    With fewer tasks than efforts, tasks come up again once all were chosen.
    """
    generator = random.Random(seed)
    left: list[Task] = []
    chosen = []
    for effort in efforts:
        left = left or list(tasks)
        weights = [known.get((task.id, effort), Posterior()).weight for task in left]
        index = generator.choices(range(len(left)), weights)[0]
        chosen.append(left.pop(index))
    return chosen
