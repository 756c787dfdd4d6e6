"""Rewards and schedules of lambda to compare R = S - lambda_e * C with, on the real trainer.

A scheme turns the priced rollouts of one step into rewards, one group at a time, and may learn from
them for the next step. "Base" is the base model's measurement at the same level. Where a form has a
free scale, the mean price of cost at the base equals lambda_e, so that shapes are compared and not
sizes.

    affine            S - lambda_e C
    single_lambda     S - mean lambda * C
    std_normalised    affine over its group's standard deviation, times one constant for all groups
    hard_budget       S, or -1 above tau times the base's tokens; tau falls from 2 budgets to 1
                      over the first half (Kimi K3, arXiv 2607.24653; one budget per level here)
    concave           S - price * ((1 + k x)^(1 - q) - 1) / (k (1 - q)), x = C over the base's C
                      (Composer 2, arXiv 2603.24477)
    pass_rate_scaled  S - lambda_e * C * (the group's solve rate over the base's)
    correct_only      S * max(0, 1 - lambda_e C / the base's solve rate)
    toggle            some steps S, some S where within the base's tokens (Kimi K2.5, 2602.02276)
    dual              affine; lambda_e follows C_e towards a multiple of the base's cost
    retangent         affine; lambda becomes the tangent of the policy as it is, every few steps
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from frontrunner.effort.bootstrap import Floats
from frontrunner.effort.frontier import MIN_LOG_SLOPE, project
from frontrunner.effort.ladder import MIN_RATIO
from frontrunner.effort.tangent import tangent_slopes
from frontrunner.errors import UserError
from frontrunner.types import Rollout

RewardKind = Literal[
    "affine", "single_lambda", "std_normalised", "hard_budget", "concave", "pass_rate_scaled",
    "correct_only", "toggle", "dual", "retangent",
]  # fmt: skip
REWARD_KINDS: tuple[RewardKind, ...] = get_args(RewardKind)
MOVING = ("dual", "retangent")
"""Kinds whose lambda changes during training."""

CONCAVE_K = 4.0
"""Curvature of `concave`, per base cost."""
TOGGLE_STEPS = 5
"""Steps of each phase of `toggle`."""
DUAL_RATE = 0.1
"""Change of log lambda per step for a cost that is off by its target."""
RETANGENT_STEPS = 10
"""Steps between tangents, and steps that each is fitted to."""
_EPSILON = 1e-4
"""Added to a standard deviation, as is usual."""


@dataclass(frozen=True, slots=True)
class BaseLevel:
    """Means of the base model's graded rollouts at one level: USD, share solved, tokens."""

    cost: float
    success: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The graded rollouts of one group, `[n]` each."""

    success: Floats
    cost: Floats
    tokens: Floats


def base_levels(rollouts: Sequence[Rollout], names: Sequence[str]) -> dict[str, BaseLevel]:
    """The reference of every level, from graded and priced rollouts of the base model."""
    found = {}
    for name in names:
        o = _outcomes([r for r in rollouts if r.effort == name])
        if not len(o.cost):
            raise UserError(f"The base measurement has no graded rollout at level {name!r}.")
        found[name] = BaseLevel(float(o.cost.mean()), float(o.success.mean()), o.tokens.mean())
    return found


@dataclass
class Scheme:
    """Rewards of one run. What `observe` learns is `state`, and goes into checkpoints."""

    kind: RewardKind
    lambdas: dict[str, float]
    """By level, lowest effort first, 1/USD; those of the base, or as they moved."""
    base: Mapping[str, BaseLevel]
    num_steps: int
    budget: float = 1.0
    """Multiple of the base's tokens (hard_budget, toggle) or cost (dual)."""
    concavity: float = 0.5
    """q of `concave`: 0 is affine; concave and rising for every q from 0 up to, not with, 1."""
    step: int = 0
    variances: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Sum and number of the groups' variances of R so far."""
    window: list[dict[str, list[float]]] = field(default_factory=list)
    """Mean (cost, success) per level of the steps since the last tangent."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.concavity < 1.0:
            raise UserError(
                f"algo.concavity = {self.concavity:g} is not in [0, 1): "
                "the penalty would not be concave and rising."
            )
        if self.kind in ("pass_rate_scaled", "correct_only"):
            for name, level in self.base.items():
                if level.success <= 0.0:
                    raise UserError(
                        f"algo.reward = {self.kind}: the base model solves nothing at {name!r}, so "
                        "the price has no scale; use another reward."
                    )

    def rewarded(self, rollouts: Sequence[Rollout], group_size: int) -> list[Rollout]:
        """Consecutive groups with their rewards; what was not graded keeps none. Pure."""
        groups = [rollouts[i : i + group_size] for i in range(0, len(rollouts), group_size)]
        scale = self._scale(groups) if self.kind == "std_normalised" else 1.0
        done = []
        for group in groups:
            values = iter(self.rewards(group[0].effort, _outcomes(group)) * scale)
            done += [replace(r, reward=float(next(values))) if r.valid else r for r in group]
        return done

    def rewards(self, effort: str, outcomes: Outcomes) -> Floats:
        """`[n]` rewards of one group."""
        return FORMS[self.kind](self, effort, outcomes)

    def observe(self, rollouts: Sequence[Rollout], group_size: int) -> None:
        """Learn from a step. A task counts once, by its graded rollouts; the rest is left out."""
        groups = [rollouts[i : i + group_size] for i in range(0, len(rollouts), group_size)]
        if self.kind == "std_normalised":
            self.variances = self._with_variances(groups)
        elif self.kind in MOVING:
            self._follow(_level_means(groups))
        self.step += 1

    def metrics(self) -> dict[str, float]:
        """lambda per level, where it moves."""
        if self.kind not in MOVING:
            return {}
        return {f"effort/{name}/lambda": value for name, value in self.lambdas.items()}

    def state(self) -> dict[str, Any]:
        """For a checkpoint; JSON keeps every digit."""
        return {
            "step": self.step,
            "lambdas": dict(self.lambdas),
            "variances": list(self.variances),
            "window": list(self.window),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; an empty one (an older checkpoint) changes nothing."""
        if state:
            self.step, self.lambdas = state["step"], dict(state["lambdas"])
            self.variances, self.window = list(state["variances"]), list(state["window"])

    def _with_variances(self, groups: Sequence[Sequence[Rollout]]) -> list[float]:
        found = [_affine(self, g[0].effort, _outcomes(g)) for g in groups]
        spread = [float(r.var()) for r in found if len(r) > 1]
        return [self.variances[0] + sum(spread), self.variances[1] + len(spread)]

    def _scale(self, groups: Sequence[Sequence[Rollout]]) -> float:
        """Root mean square of the groups' deviations: steps then have the size that the affine
        reward's have, which matters to SGD."""
        total, number = self._with_variances(groups)
        return float(np.sqrt(total / number)) if number else 1.0

    def _follow(self, means: dict[str, list[float]]) -> None:
        if self.kind == "dual":
            for name, (cost, _) in means.items():
                gap = cost / (self.budget * self.base[name].cost) - 1.0
                self.lambdas[name] *= float(np.exp(DUAL_RATE * np.clip(gap, -1.0, 1.0)))
            return
        self.window.append(means)
        if len(self.window) < RETANGENT_STEPS:
            return
        names = list(self.lambdas)
        if all(any(name in w for w in self.window) for name in names):
            points = [np.mean([w[n] for w in self.window if n in w], axis=0) for n in names]
            cost, success = np.array(points).T
            slopes = tangent_slopes(cost[None], success[None])[0]
            fitted = project(slopes, MIN_LOG_SLOPE / cost, MIN_RATIO)
            self.lambdas = dict(zip(names, map(float, fitted), strict=True))
        self.window = []


def _outcomes(rollouts: Sequence[Rollout]) -> Outcomes:
    graded = [r for r in rollouts if r.valid]
    rows = [(r.success, r.cost, r.num_tokens) for r in graded]
    return Outcomes(*np.array(rows, dtype=np.float64).reshape(len(graded), 3).T)


def _level_means(groups: Sequence[Sequence[Rollout]]) -> dict[str, list[float]]:
    """Mean (cost, success) per level over groups with a graded rollout."""
    found: dict[str, list[tuple[float, float]]] = {}
    for group in groups:
        o = _outcomes(group)
        if len(o.cost):
            pair = (float(o.cost.mean()), float(o.success.mean()))
            found.setdefault(group[0].effort, []).append(pair)
    return {name: np.mean(pairs, axis=0).tolist() for name, pairs in found.items()}


def _affine(scheme: Scheme, effort: str, o: Outcomes) -> Floats:
    return o.success - scheme.lambdas[effort] * o.cost


def _single_lambda(scheme: Scheme, effort: str, o: Outcomes) -> Floats:
    return o.success - float(np.mean(list(scheme.lambdas.values()))) * o.cost


def _std_normalised(scheme: Scheme, effort: str, o: Outcomes) -> Floats:
    # Baselines are means of rewards: to divide R is to divide the advantage.
    r = _affine(scheme, effort, o)
    return r / (r.std() + _EPSILON) if len(r) else r


def _hard_budget(scheme: Scheme, effort: str, o: Outcomes) -> Floats:
    tau = scheme.budget * (2.0 - min(1.0, 2.0 * scheme.step / max(1, scheme.num_steps)))
    return np.where(o.tokens > tau * scheme.base[effort].tokens, -1.0, o.success)


def _concave(scheme: Scheme, effort: str, o: Outcomes) -> Floats:
    q, base = scheme.concavity, scheme.base[effort].cost
    bent = ((1.0 + CONCAVE_K * o.cost / base) ** (1.0 - q) - 1.0) / (CONCAVE_K * (1.0 - q))
    matched = scheme.lambdas[effort] * base * (1.0 + CONCAVE_K) ** q
    return np.asarray(o.success - matched * bent)


def _pass_rate_scaled(scheme: Scheme, effort: str, o: Outcomes) -> Floats:
    if not len(o.success):
        return o.success
    rate = max(float(o.success.mean()), 1.0 / len(o.success))
    return o.success - scheme.lambdas[effort] * rate / scheme.base[effort].success * o.cost


def _correct_only(scheme: Scheme, effort: str, o: Outcomes) -> Floats:
    # Cut at 0: a dear success would otherwise be worth less than a failure.
    price = scheme.lambdas[effort] / scheme.base[effort].success
    return np.asarray(o.success * np.maximum(0.0, 1.0 - price * o.cost))


def _toggle(scheme: Scheme, effort: str, o: Outcomes) -> Floats:
    free = scheme.step // TOGGLE_STEPS % 2 == 0
    base = scheme.base[effort]
    if free or not len(o.success) or o.success.mean() < base.success:
        return o.success
    return np.where(o.tokens > scheme.budget * base.tokens, 0.0, o.success)


FORMS: Mapping[RewardKind, Callable[[Scheme, str, Outcomes], Floats]] = {
    "affine": _affine,
    "single_lambda": _single_lambda,
    "std_normalised": _std_normalised,
    "hard_budget": _hard_budget,
    "concave": _concave,
    "pass_rate_scaled": _pass_rate_scaled,
    "correct_only": _correct_only,
    "toggle": _toggle,
    "dual": _affine,
    "retangent": _affine,
}
