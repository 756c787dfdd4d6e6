"""Policy-gradient training of tabular policies on Evidence, many seeds at once.

One stopping logit per (effort, kind, looks n, majority min(k, 13)). Cost is counted in looks times
unit cost, length in decisions (looks + 1). A step is a batch of groups of G rollouts of one
(kind, effort) each, a loss summed over decisions and divided by the number of rollouts, and Adam.
All arms draw the same random numbers, so arms are paired by seed. Outcomes are exact: the trained
policy is evaluated by the environment's forward pass, not sampled.

D seeds, E efforts, T kinds, N looks, K = 14 majorities, R rollouts per step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from frontrunner.effort.tangent import tangent_slopes
from frontrunner.envs.evidence import MIX_1, Evidence

MAX_LOOKS, MAJORITIES, GROUP = 40, 14, 8
BASE_LOOKS = np.array([4.0, 10.0, 22.0])
"""Where the base policy of each effort level tends to stop."""
LEVELS = ("low", "medium", "high")


@dataclass
class Rollouts:
    """One step's rollouts, `[D, M, G]` each: M groups."""

    cost: np.ndarray
    success: np.ndarray
    length: np.ndarray
    effort: np.ndarray
    kind: np.ndarray
    valid: np.ndarray


Reward = Callable[[Rollouts, "Trainer"], np.ndarray]


@dataclass
class Arm:
    """What differs between arms."""

    reward: Reward
    baseline: str = "length_weighted"
    normalise: bool = False
    """Divide advantages by the group's standard deviation, times 0.3 to keep the step size."""
    offset: float = 0.0
    """Added to the baseline."""
    staleness: int = 0
    steps: int = 300
    groups: int = 96
    efforts: tuple[int, ...] = (0, 1, 2)
    shared: bool = False
    """Adds a logit per (kind, n, k) that all efforts share."""
    crash: float = 0.0
    """Chance per look that the machinery fails."""
    mask_crashes: bool = True
    after_step: Callable[[Trainer, Rollouts], None] | None = None


def base_logits(num_kinds: int) -> np.ndarray:
    """`[E, T, N, K]`."""
    n = np.arange(MAX_LOOKS)[:, None]
    k = np.arange(MAJORITIES)
    logits = np.clip(0.6 * (n - BASE_LOOKS[:, None, None]) + 0.15 * k - 0.5, -6.0, 6.0)
    return np.repeat(logits[:, None], num_kinds, axis=1)


def outcome(env: Evidence, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exact mean cost and success per kind, `[..., E, T]`, of logits `[..., E, T, N, K]`."""
    capped = np.minimum(np.arange(MAX_LOOKS + 1), MAJORITIES - 1)
    stop = 1.0 / (1.0 + np.exp(-logits[..., capped]))
    last = np.ones((*stop.shape[:-2], 1, MAX_LOOKS + 1))
    return env.evaluate(np.concatenate([stop, last], axis=-2))


@dataclass
class Trainer:
    arm: Arm
    num_seeds: int
    env: Evidence = field(default_factory=lambda: Evidence(MIX_1, MAX_LOOKS))
    seed: int = 0

    def __post_init__(self) -> None:
        start = base_logits(len(self.env.kinds))
        self.own = np.repeat(start[None], self.num_seeds, axis=0)
        self.common = np.zeros((self.num_seeds, 1, *start.shape[1:]))
        cost, success = outcome(self.env, start)
        self.base_by_kind = cost, success
        self.base = self.env.mean(cost), self.env.mean(success)
        self.prices = tangent_slopes(self.base[0][None], self.base[1][None])[0]
        """lambda per effort, `[E]`: tangents of the base."""
        self.step, self.kl = 0, np.zeros(self.num_seeds)

    @property
    def logits(self) -> np.ndarray:
        return self.own + self.common if self.arm.shared else self.own

    def train(self) -> Trainer:
        arm = self.arm
        rng = np.random.default_rng(self.seed)
        old: deque[np.ndarray] = deque(maxlen=arm.staleness + 1)
        moments = [np.zeros((2, *x.shape)) for x in (self.own, self.common)]
        for step in range(arm.steps):
            self.step = step
            old.append(self.logits.copy())
            rollouts, index, stopped, owner = self._sample(rng, old[0])
            advantage = self._advantages(rollouts).reshape(-1)
            now = 1.0 / (1.0 + np.exp(-self.logits.reshape(-1)[index]))
            weights = advantage[owner] * (stopped - now)
            gradient = np.bincount(index, weights, self.own.size).reshape(self.own.shape)
            gradient /= arm.groups * GROUP
            if arm.staleness:
                self._add_kl(old[0].reshape(-1)[index], now, owner)
            self._adam(self.own, gradient, moments[0])
            if arm.shared:
                self._adam(self.common, gradient.sum(axis=1, keepdims=True), moments[1])
            if arm.after_step:
                arm.after_step(self, rollouts)
        return self

    def _sample(
        self, rng: np.random.Generator, logits: np.ndarray
    ) -> tuple[Rollouts, np.ndarray, np.ndarray, np.ndarray]:
        """Rollouts, and of every decision its logit's index, whether it stopped, and its owner."""
        env, (num_seeds, num_efforts, num_kinds) = self.env, self.own.shape[:3]
        shape = (num_seeds, self.arm.groups, GROUP)
        turn = np.arange(self.arm.groups) % len(self.arm.efforts)
        effort = np.broadcast_to(np.array(self.arm.efforts)[turn][None, :, None], shape)
        kind = rng.choice(num_kinds, (*shape[:2], 1), p=env.weights)
        kind = np.broadcast_to(kind, shape)
        d = np.broadcast_to(np.arange(num_seeds)[:, None, None], shape)
        row = ((d * num_efforts + effort) * num_kinds + kind).ravel() * MAX_LOOKS * MAJORITIES
        size, flat, kinds_ = row.size, logits.reshape(-1), kind.ravel()
        k, looks = np.zeros(size, int), np.full(size, MAX_LOOKS)
        alive, parts = np.arange(size), []
        for n in range(MAX_LOOKS):
            draw = rng.random((2, size), dtype=np.float32)[:, alive]
            index = row[alive] + n * MAJORITIES + np.minimum(k[alive], MAJORITIES - 1)
            stop = draw[0] < 1.0 / (1.0 + np.exp(-flat[index]))
            parts.append((index, stop, alive))
            looks[alive[stop]] = n
            alive, more = alive[~stop], draw[1, ~stop]
            up = more < env.agree[kinds_[alive], n, k[alive]]
            k[alive] = np.abs(k[alive] + np.where(up, 1, -1))
        solved = rng.random(size) < env.correct[kinds_, looks, k]
        crashed = rng.random(size) > (1.0 - self.arm.crash) ** looks
        rollouts = Rollouts(
            cost=env.cost[kinds_, looks].reshape(shape),
            success=np.where(crashed, 0.0, solved).reshape(shape),
            length=(looks + 1.0).reshape(shape),
            effort=effort,
            kind=kind,
            valid=~crashed.reshape(shape) | (not self.arm.mask_crashes),
        )
        index, stopped, owner = (np.concatenate(x) for x in zip(*parts, strict=True))
        return rollouts, index, stopped, owner

    def _advantages(self, r: Rollouts) -> np.ndarray:
        """`[D, M, G]`; 0 for a rollout that is masked, which enters no baseline either."""
        reward, kept = self.arm.reward(r, self), r.valid.astype(float)
        weights = kept * (r.length if self.arm.baseline.startswith("length") else 1.0)
        total, part = weights.sum(-1, keepdims=True), weights * reward
        if self.arm.baseline.endswith("loo"):
            rest = np.maximum(total - weights, 1e-9)
            b = (part.sum(-1, keepdims=True) - part) / rest
        else:
            b = part.sum(-1, keepdims=True) / np.maximum(total, 1e-9)
        advantage = (reward - b - self.arm.offset) * kept
        if self.arm.normalise:
            advantage = 0.3 * advantage / (reward.std(-1, keepdims=True) + 1e-4)
        return advantage

    def _add_kl(self, sampler_logits: np.ndarray, now: np.ndarray, owner: np.ndarray) -> None:
        """Adds KL(sampler || trainer) per decision, exact in the visited states, `[D]`."""
        mu = 1.0 / (1.0 + np.exp(-sampler_logits))
        now = np.clip(now, 1e-9, 1.0 - 1e-9)
        each = mu * np.log(np.maximum(mu, 1e-12) / now)
        each += (1.0 - mu) * np.log(np.maximum(1.0 - mu, 1e-12) / (1.0 - now))
        seed = owner // (self.arm.groups * GROUP)
        count = np.bincount(seed, minlength=self.num_seeds)
        self.kl += np.bincount(seed, each, self.num_seeds) / count / self.arm.steps

    def _adam(self, parameters: np.ndarray, gradient: np.ndarray, moments: np.ndarray) -> None:
        """Ascent: lr 0.06, betas 0.9 and 0.99, eps 1e-4."""
        moments[0] += 0.1 * (gradient - moments[0])
        moments[1] += 0.01 * (gradient**2 - moments[1])
        t = self.step + 1
        mean, square = moments[0] / (1.0 - 0.9**t), moments[1] / (1.0 - 0.99**t)
        parameters += 0.06 * mean / (np.sqrt(square) + 1e-4)

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean cost and success per seed and effort, `[D, E]` each."""
        cost, success = outcome(self.env, self.logits)
        return self.env.mean(cost), self.env.mean(success)

    def delta_j(self) -> np.ndarray:
        """Per seed and effort, `[D, E]`, at the prices of the base."""
        cost, success = self.result()
        prices = tangent_slopes(self.base[0][None], self.base[1][None])[0]
        return (success - self.base[1]) - prices * (cost - self.base[0])


def linear(scale: float = 1.0, prices: np.ndarray | None = None) -> Reward:
    """S - lambda C, at the trainer's prices or others."""
    return lambda r, t: (
        r.success - scale * (t.prices if prices is None else prices)[r.effort] * r.cost
    )


def composer(k: float, q: float) -> Reward:
    """Concave in cost, with the linear reward's slope at the base's mean cost."""

    def reward(r: Rollouts, t: Trainer) -> np.ndarray:
        matched = t.prices * (1.0 + k * t.base[0]) ** q
        bent = ((1.0 + k * r.cost) ** (1.0 - q) - 1.0) / (k * (1.0 - q))
        return r.success - matched[r.effort] * bent

    return reward


def pass_rate(r: Rollouts, t: Trainer) -> np.ndarray:
    """Cost counts in proportion to the group's solve rate; the mean price matches."""
    rate = np.maximum(r.success.mean(-1, keepdims=True), 1.0 / GROUP)
    return r.success - (t.prices / t.base[1])[r.effort] * rate * r.cost


def chance_pass_rate(r: Rollouts, t: Trainer) -> np.ndarray:
    """The same with the solve rate above that of guessing."""
    rate = np.maximum(2.0 * r.success.mean(-1, keepdims=True) - 1.0, 1.0 / GROUP)
    return r.success - (t.prices / (2.0 * t.base[1] - 1.0))[r.effort] * rate * r.cost


def correct_only(r: Rollouts, t: Trainer) -> np.ndarray:
    return r.success * (1.0 - (t.prices / t.base[1])[r.effort] * r.cost)


def hard_budget(r: Rollouts, t: Trainer) -> np.ndarray:
    """-1 beyond the level's usual number of looks, whatever the task."""
    return np.where(r.cost > BASE_LOOKS[r.effort], -1.0, r.success)


def task_budget(r: Rollouts, t: Trainer) -> np.ndarray:
    """-1 beyond tau times the base's mean cost on that kind; tau falls from 2 to 1 (Kimi K3)."""
    tau = 2.0 - min(1.0, 2.0 * t.step / t.arm.steps)
    return np.where(r.cost > tau * t.base_by_kind[0][r.effort, r.kind], -1.0, r.success)


def toggle(r: Rollouts, t: Trainer) -> np.ndarray:
    """Ten steps of success, ten under the base's mean cost where the group solves 80 % or more."""
    over = r.cost > t.base_by_kind[0][r.effort, r.kind]
    easy = r.success.mean(-1, keepdims=True) >= 0.8
    return np.where((t.step // 10 % 2 == 1) & easy & over, 0.0, r.success)


def dual(t: Trainer, r: Rollouts) -> None:
    """lambda follows the cost towards the base's: a cost-matched comparison."""
    for e in range(len(LEVELS)):
        gap = r.cost[r.effort == e].mean() / t.base[0][e] - 1.0
        t.prices[e] = max(t.prices[e] * np.exp(0.1 * gap), 1e-5)


def retangent(t: Trainer, r: Rollouts) -> None:
    """Every 30 steps lambda becomes the tangent of the policy as it is."""
    if t.step % 30 == 29:
        cost, success = (x.mean(axis=0)[None] for x in t.result())
        t.prices = np.maximum(tangent_slopes(cost, success)[0], 1e-5)
