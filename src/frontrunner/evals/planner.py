"""How many tasks, runs and training seeds a claim about Delta J needs.

The variance of the measured Delta J of one trained model is

    (task + run / num_runs) / num_tasks

`task` is the variance between tasks of the true difference, `run` the variance within a task,
summed over both models (Miller, "Adding Error Bars to Evals", 2024). Over training seeds, the
models' own spread `seed`^2 comes on top, and the test is Student's t over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import nctdtr, ndtr, ndtri, stdtrit  # type: ignore[import-untyped]

MAX_TASKS = 20_000
MAX_RUNS = 8
SEED_SD = 0.015


@dataclass(frozen=True, slots=True)
class Noise:
    """What a measurement of Delta J suffers from. The defaults are typical of solve rates near a
    half: they reproduce the powers that two binary-graded models show in simulation."""

    task: float = 0.03
    run: float = 0.25
    seed: float = SEED_SD
    """Standard deviation of the true Delta J between training seeds."""

    def variance(self, num_tasks: int, num_runs: int) -> float:
        """Of the Delta J of one trained model."""
        return (self.task + self.run / num_runs) / num_tasks


@dataclass(frozen=True, slots=True)
class Plan:
    """The cheapest measurement with this number of training seeds that has the power asked for."""

    num_seeds: int
    num_tasks: int
    num_runs: int
    power: float

    @property
    def num_rollouts(self) -> int:
        """Per effort level: the base model once and every trained model."""
        return self.num_tasks * self.num_runs * (self.num_seeds + 1)


def power(
    delta: float,
    num_tasks: int,
    num_runs: int,
    num_seeds: int = 1,
    *,
    noise: Noise | None = None,
    alpha: float = 0.05,
) -> float:
    """Probability that a true Delta J of `delta` is found, two-sided at `alpha`.

    One seed compares two fixed models (normal); from two seeds on the claim is about the recipe
    (noncentral t). Raises `ValueError` unless counts are 1 or more and 0 < alpha < 1.
    """
    if min(num_tasks, num_runs, num_seeds) < 1 or not 0.0 < alpha < 1.0:
        raise ValueError("Counts must be 1 or more, and alpha between 0 and 1.")
    noise = noise or Noise()
    sampling = noise.variance(num_tasks, num_runs)
    if num_seeds == 1:
        shift = abs(delta) / math.sqrt(sampling)
        z = float(ndtri(1.0 - alpha / 2.0))
        return float(ndtr(shift - z) + ndtr(-shift - z))
    shift = abs(delta) / math.sqrt((noise.seed**2 + sampling) / num_seeds)
    freedom = num_seeds - 1
    critical = float(stdtrit(freedom, 1.0 - alpha / 2.0))
    # The far tail is left out: it is below 1e-4 wherever the power is of interest.
    return float(1.0 - nctdtr(freedom, shift, critical))


def plan(
    delta: float,
    num_seeds: int,
    *,
    target: float = 0.8,
    num_levels: int = 1,
    noise: Noise | None = None,
    alpha: float = 0.05,
) -> Plan | None:
    """Fewest rollouts with power `target`; None if no number of tasks suffices.

    With several levels the power is that of the strictest step of Holm's procedure, alpha /
    num_levels: it holds for each level whatever the others show.
    """
    strict = alpha / num_levels
    best: Plan | None = None
    for num_runs in range(1, MAX_RUNS + 1):

        def reached(num_tasks: int, runs: int = num_runs) -> float:
            return power(delta, num_tasks, runs, num_seeds, noise=noise, alpha=strict)

        if reached(MAX_TASKS) < target:
            continue
        low, high = 1, MAX_TASKS
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if reached(middle) >= target else (middle + 1, high)
        found = Plan(num_seeds, low, num_runs, reached(low))
        if best is None or found.num_rollouts < best.num_rollouts:
            best = found
    return best


def noise_of(
    before: Mapping[str, Sequence[float]],
    after: Mapping[str, Sequence[float]],
    seed: float = SEED_SD,
) -> Noise:
    """Variance components of stored measurements: values J per task of two models.

    Raises `ValueError` unless two tasks or more have two runs or more in both.
    """
    tasks = [t for t in before if len(before[t]) > 1 and len(after.get(t, ())) > 1]
    if len(tasks) < 2:
        raise ValueError("Needs 2 tasks or more that both models ran twice or more.")
    pairs = [(np.asarray(before[t]), np.asarray(after[t])) for t in tasks]
    run = float(np.mean([a.var(ddof=1) + b.var(ddof=1) for a, b in pairs]))
    means = np.array([b.mean() - a.mean() for a, b in pairs])
    within = np.mean([a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b) for a, b in pairs])
    return Noise(max(0.0, float(means.var(ddof=1) - within)), run, seed)
