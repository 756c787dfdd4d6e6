"""Evidence: a task so small that its cost-performance frontier is known exactly.

A fair coin is hidden. Each look costs `unit_cost` and shows the right face with probability q.
The policy stops whenever it likes and answers with the majority (a tie is a toss); after
`max_looks` it must stop. Looks stand for reasoning tokens or tool calls. This is Wald's sequential
test (1947) with a horizon; dynamic programming over the state (n looks, k = |ones - zeros|) gives

- the optimum of *any* reward of cost and success, so a reward's frontier loss is computed;
- the exact mean cost and success of any policy;
- every vertex of the Pareto frontier.

    env = Evidence(MIX_1)
    cost, success = env.evaluate(env.optimum(env.stop_values(lambda c, s: s - 0.01 * c)))
    env.loss(lambda c, s: s - 0.01 * np.sqrt(c))        # points of success lost at that cost

Arrays over states are `[..., T, N + 1, N + 1]`: kind of task, looks n, majority k. Kinds are
visible to the policy; a kind with several accuracies hides which of them it drew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Reward = Callable[[Floats, float], Floats]
"""h(C, S) with costs `[T, N + 1]` and S = 0 or 1; may return more leading axes."""

_TIE = 1e-12
"""Stopping wins ties, and rounding must not decide."""

_VERTEX = 1e-9
"""Vertices that rise less than this above their neighbours' chord are left out of the frontier."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Tasks that look alike: `Kind((0.65,), unit_cost=4.0)`; `Kind((0.6, 0.9))` hides which."""

    accuracy: tuple[float, ...]
    """Possible q, equally likely; each in [0.5, 1)."""
    unit_cost: float = 1.0
    weight: float = 1.0
    """Relative frequency of the kind."""


def kinds(accuracies: Sequence[float], unit_costs: Sequence[float] = (1.0,)) -> tuple[Kind, ...]:
    """Every pair of accuracy and unit cost, each visible and equally frequent."""
    return tuple(Kind((q,), u) for q in accuracies for u in unit_costs)


MIX_1 = kinds((0.55, 0.65, 0.75, 0.9))
MIX_2 = kinds((0.52, 0.7, 0.9), (1.0, 4.0))
"""With near-hopeless tasks and different unit costs: where rewards differ most."""


@dataclass(frozen=True, slots=True)
class ExactFrontier:
    """Vertices of the concave hull, `[V]` each, cheapest first; mixing policies fills it."""

    cost: Floats
    success: Floats

    def height(self, cost: Floats | float) -> Floats:
        """Highest mean success that this mean cost can buy; flat beyond the last vertex."""
        return np.asarray(np.interp(cost, self.cost, self.success), dtype=np.float64)

    def slope(self, cost: Floats | float) -> Floats:
        """dS/dC to the right of `cost`, 0 beyond the last vertex."""
        slopes = np.append(np.diff(self.success) / np.diff(self.cost), 0.0)
        index = np.clip(np.searchsorted(self.cost, cost, side="right") - 1, 0, len(slopes) - 1)
        return np.asarray(slopes[index], dtype=np.float64)


class Evidence:
    """The environment. Raises `ValueError` for accuracies outside [0.5, 1) or no kind at all."""

    def __init__(self, kinds: Sequence[Kind] = MIX_1, max_looks: int = 60) -> None:
        for kind in kinds:
            if not kind.accuracy or not all(0.5 <= q < 1.0 for q in kind.accuracy):
                raise ValueError(f"Accuracies must lie in [0.5, 1), got {kind.accuracy}.")
        if not kinds or max_looks < 1:
            raise ValueError("Evidence needs at least one kind of task and one look.")
        self.kinds, self.max_looks = tuple(kinds), max_looks
        weights = np.array([k.weight for k in kinds])
        self.weights: Floats = weights / weights.sum()
        """`[T]`, adds up to 1."""
        self.cost: Floats = np.array([[k.unit_cost] for k in kinds]) * np.arange(max_looks + 1)
        """`[T, N + 1]`: cost of stopping after n looks."""
        states = [_posterior(np.array(k.accuracy), max_looks) for k in kinds]
        self.correct: Floats = np.stack([correct for correct, _ in states])
        """`[T, N + 1, N + 1]`: probability that the majority of k is right."""
        self.agree: Floats = np.stack([agree for _, agree in states])
        """`[T, N + 1, N + 1]`: probability that the next look raises k."""

    def stop_values(self, reward: Reward) -> Floats:
        """Expected reward of stopping in each state."""
        solved, failed = (reward(self.cost, s)[..., None] for s in (1.0, 0.0))
        return np.asarray(self.correct * solved + (1.0 - self.correct) * failed)

    def optimum(self, stop_values: Floats) -> Floats:
        """The best policy, as stopping probabilities of 0 or 1, by backward induction."""
        stop = np.ones(stop_values.shape)
        value = stop_values[..., self.max_looks, :]
        for n in reversed(range(self.max_looks)):
            up = self.agree[:, n]
            onward = up * np.concatenate([value[..., 1:], value[..., -1:]], axis=-1)
            onward += (1.0 - up) * np.concatenate([value[..., 1:2], value[..., :-1]], axis=-1)
            stop[..., n, :] = stop_values[..., n, :] >= onward - _TIE
            value = np.maximum(stop_values[..., n, :], onward)
        return stop

    def evaluate(self, stop: Floats) -> tuple[Floats, Floats]:
        """Exact mean cost and success per kind, `[..., T]` each, of stopping probabilities.

        Stopping probabilities found with hidden accuracies may be evaluated in an `Evidence` of
        one known accuracy, which gives the outcome on that type alone.
        """
        reach = np.zeros(stop.shape[:-2] + stop.shape[-1:])
        reach[..., 0] = 1.0
        cost, success = np.zeros(reach.shape[:-1]), np.zeros(reach.shape[:-1])
        for n in range(self.max_looks + 1):
            halt = reach * stop[..., n, :] if n < self.max_looks else reach
            cost += halt.sum(-1) * self.cost[:, n]
            success += (halt * self.correct[:, n]).sum(-1)
            onward = reach - halt
            rise, fall = onward * self.agree[:, n], onward * (1.0 - self.agree[:, n])
            reach = np.zeros_like(reach)
            reach[..., 1:] += rise[..., :-1]
            reach[..., :-1] += fall[..., 1:]
            reach[..., 1] += fall[..., 0]
        return cost, success

    def mean(self, values: Floats) -> Floats:
        """Mean over kinds, `[..., T]` to `[...]`."""
        return np.asarray(values @ self.weights)

    def fixed(self, num_looks: int) -> Floats:
        """The policy that always looks `num_looks` times."""
        stop = np.zeros(self.correct.shape)
        stop[:, num_looks:] = 1.0
        return stop

    def linear(self, price: Floats | float) -> tuple[Floats, Floats]:
        """Mean cost and success per kind of the optimum of S - price * C, `[..., T]` each."""
        lam = np.asarray(price, dtype=np.float64)[..., None, None]
        return self.evaluate(self.optimum(self.stop_values(lambda c, s: s - lam * c)))

    def loss(self, reward: Reward) -> Floats:
        """Frontier height at the optimum's mean cost, less its mean success; 0 if affine."""
        cost, success = self.evaluate(self.optimum(self.stop_values(reward)))
        return self.frontier.height(self.mean(cost)) - self.mean(success)

    @cached_property
    def frontier(self) -> ExactFrontier:
        """Every vertex of the hull of (mean cost, mean success), over all policies.

        Each kind's hull is found by itself: solve at the slope of a segment between two known
        vertices; either a vertex above it turns up, or the segment belongs to the hull. The mix
        takes the segments of all kinds in order of falling slope, as resources are best spent.
        """
        steps, starts = [], []
        for t, kind in enumerate(self.kinds):
            one = Evidence([kind], self.max_looks)
            c, s = _vertices(one)
            starts.append(s[0] * self.weights[t])
            steps.append(np.stack([np.diff(c), np.diff(s)]) * self.weights[t])
        dc, ds = np.concatenate(steps, axis=1)
        order = np.argsort(-ds / dc, kind="stable")
        return ExactFrontier(
            np.concatenate([[0.0], np.cumsum(dc[order])]),
            sum(starts) + np.concatenate([[0.0], np.cumsum(ds[order])]),
        )


def _posterior(q: Floats, max_looks: int) -> tuple[Floats, Floats]:
    """P(majority right) and P(next look agrees with it) per state, `[N + 1, N + 1]` each."""
    n, k = np.meshgrid(np.arange(max_looks + 1), np.arange(max_looks + 1), indexing="ij")
    ones, zeros = (n + k)[..., None] / 2.0, np.maximum(n - k, 0)[..., None] / 2.0
    right = ones * np.log(q) + zeros * np.log1p(-q)
    wrong = zeros * np.log(q) + ones * np.log1p(-q)
    top = right.max(-1, keepdims=True)
    right, wrong = np.exp(right - top), np.exp(wrong - top)
    total = (right + wrong).sum(-1)
    agree = (right @ q + wrong @ (1.0 - q)) / total
    agree[:, 0] = 1.0
    return right.sum(-1) / total, agree


def _vertices(env: Evidence) -> tuple[Floats, Floats]:
    """Cost and success of the hull's vertices for a single kind, `[V]` each."""
    # An absurd price buys nothing and a price of 0 everything: the two ends.
    cost, success = (x[:, 0] for x in env.linear(np.array([1e9, 0.0])))
    closed: set[float] = set()
    while True:
        slopes = np.diff(success) / np.diff(cost)
        fresh = np.array([m for m in slopes if m not in closed])
        if len(fresh) == 0:
            return cost, success
        closed.update(fresh.tolist())
        c, s = (x[:, 0] for x in env.linear(fresh))
        better = s > np.interp(c, cost, success) + _VERTEX
        merged = {float(a): float(b) for a, b in zip(cost, success, strict=True)}
        merged.update({float(a): float(b) for a, b in zip(c[better], s[better], strict=True)})
        cost = np.array(sorted(merged))
        success = np.array([merged[x] for x in cost])
