"""Checks whether a reward h(C, S) prices effort: is E[h] a function of mean cost and solve rate?

It is exactly when h is affine, a + b S - lambda C, with the same b and lambda for every task. Only
then are the reward's lines of equal value straight in the cost-performance plot, and its optimum a
point of the frontier. Otherwise two behaviours with the same mean cost and the same solve rate earn
different rewards; the linter shows such a pair. Checking four kinds of pairs is complete for
S in {0, 1}: bent in cost, cost priced differently when solved, cost or success priced differently
by task.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from frontrunner.effort.bootstrap import Floats
from frontrunner.effort.frontier import RolloutOutcome
from frontrunner.errors import UserError

Reward = Callable[[Mapping[str, Floats | float]], Floats]
"""h of C (cost), S (success), lam (the price that is swept), p (the task's solve rate) and m (the
task's mean cost)."""

NAMES = ("C", "S", "lam", "p", "m")
FUNCTIONS: Mapping[str, Callable[..., Floats]] = {
    name: getattr(np, name)
    for name in ("log", "log1p", "exp", "sqrt", "abs", "minimum", "maximum", "where")
}
_NODES = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Name, ast.Load),
    *(ast.Constant, ast.operator, ast.unaryop, ast.cmpop),
)


_LARGEST = 1e300


class _Floats(ast.NodeTransformer):
    """Numbers as floats: powers of whole numbers can take for ever, those of floats overflow."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        assert isinstance(node.value, (int, float))
        return ast.copy_location(ast.Constant(float(node.value)), node)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One equally likely outcome of a behaviour."""

    cost: float
    success: float
    task: int
    """Which of the tasks given by (p, m)."""


@dataclass(frozen=True, slots=True)
class CounterExample:
    """Two behaviours of equal mean cost and success, and what the reward says of them."""

    rule: str
    first: tuple[Outcome, Outcome]
    second: tuple[Outcome, Outcome]
    first_reward: float
    second_reward: float

    def explain(self) -> str:
        def side(pair: tuple[Outcome, Outcome], value: float) -> str:
            parts = " or ".join(
                f"(C = {o.cost:.4g}, S = {o.success:g}, task {o.task})" for o in pair
            )
            return f"{parts}: {value:.4g}"

        return (
            f"{self.rule}. Equal mean cost and success, unequal mean reward: "
            f"{side(self.first, self.first_reward)}; {side(self.second, self.second_reward)}."
        )


def parse_reward(text: str) -> Reward:
    """A reward written as an expression, `S - lam * C / m`.

    Names: C, S, lam, p, m; functions: log, log1p, exp, sqrt, abs, minimum, maximum, where. Raises
    `UserError` for anything else.
    """
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise UserError(f"The reward {text!r} is not an expression: {error.msg}.") from error
    for node in ast.walk(tree):
        legal = isinstance(node, _NODES)
        if isinstance(node, ast.Name):
            legal = node.id in NAMES or node.id in FUNCTIONS
        if isinstance(node, ast.Call):
            legal = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
        if isinstance(node, ast.Constant):
            number = node.value
            legal = type(number) in (int, float) and -_LARGEST < number < _LARGEST  # type: ignore
        if not legal:
            raise UserError(
                f"The reward {text!r} uses {ast.unparse(node)!r}; it may use numbers, "
                f"{', '.join(NAMES)} and {', '.join(FUNCTIONS)}."
            )
    code = compile(_Floats().visit(tree), "<reward>", "eval")

    def reward(values: Mapping[str, Floats | float]) -> Floats:
        shape = np.broadcast_shapes(*(np.shape(v) for v in values.values()))
        with np.errstate(divide="ignore", invalid="ignore"):
            try:
                found = eval(code, {"__builtins__": {}, **FUNCTIONS}, dict(values))
            except ArithmeticError as error:
                raise UserError(f"The reward {text!r} has no value: {error}.") from None
        return np.broadcast_to(np.asarray(found, dtype=np.float64), shape)

    return reward


def lint(
    reward: Reward,
    costs: Sequence[float],
    tasks: Sequence[tuple[float, float]] = ((0.5, 1.0),),
    lam: float = 0.1,
) -> CounterExample | None:
    """The worst counter-example to the affine law, or None if there is none.

    `costs` is a grid in the unit of C, `tasks` are pairs (p, m) of solve rate and mean cost.
    Violations below 1e-9 of the rewards' range are rounding.
    """
    cost = np.array(sorted(set(costs)))
    a, b = (x.ravel() for x in np.meshgrid(cost, cost, indexing="ij"))

    def value(c: Floats, s: float, task: int) -> Floats:
        p, m = tasks[task]
        return reward({"C": c, "S": s, "lam": lam, "p": p, "m": m})

    def pairs() -> list[tuple[str, tuple[tuple[Floats, float, int], ...]]]:
        """(rule, the outcomes of the first behaviour and then of the second)."""
        middle = (a + b) / 2.0
        found: list[tuple[str, tuple[tuple[Floats, float, int], ...]]] = []
        numbers = range(len(tasks))
        for t, s in product(numbers, (0.0, 1.0)):
            bent = ((a, s, t), (b, s, t), (middle, s, t), (middle, s, t))
            found.append(("The price of cost is not constant", bent))
        for t in numbers:
            mixed = ((a, 0.0, t), (b, 1.0, t), (b, 0.0, t), (a, 1.0, t))
            found.append(("Cost is priced differently when solved", mixed))
        for x, y in permutations(numbers, 2):
            for s in (0.0, 1.0):
                moved = ((a, s, x), (b, s, y), (b, s, x), (a, s, y))
                found.append(("Cost is priced differently by task", moved))
            solved = ((a, 1.0, x), (a, 0.0, y), (a, 0.0, x), (a, 1.0, y))
            found.append(("Success is priced differently by task", solved))
        return found

    worst: CounterExample | None = None
    size = 0.0
    for rule, parts in pairs():
        v = [value(*part) for part in parts]
        if not all(np.all(np.isfinite(x)) for x in v):
            raise UserError("The reward is not finite on the grid of costs; check its domain.")
        gap = np.abs(v[0] + v[1] - v[2] - v[3]) / 2.0
        k = int(np.argmax(gap))
        if gap[k] > max(size, 1e-9 * max(1.0, *(float(np.ptp(x)) for x in v))):
            size = float(gap[k])
            o = [Outcome(float(c[k]), s, t) for c, s, t in parts]
            first, second = float(v[0][k] + v[1][k]) / 2.0, float(v[2][k] + v[3][k]) / 2.0
            worst = CounterExample(rule, (o[0], o[1]), (o[2], o[3]), first, second)
    return worst


@dataclass(frozen=True, slots=True)
class StoredLoss:
    """Success lost against the linear reward at equal mean cost, over the sweep of lam."""

    largest: float
    mean: float
    num_tasks: int


def stored_loss(
    reward: Reward, rollouts: Sequence[RolloutOutcome], prices: Sequence[float]
) -> StoredLoss:
    """Predicted frontier loss if a policy could only choose an effort level per task.

    Half of each cell's rollouts choose, with the reward and with S - lam C; the other half says
    what the choice costs and solves, and both halves take both parts, so that luck is not taken
    for skill. Raises `UserError` without a task that has two rollouts at two levels or more.
    """
    cells: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for o in rollouts:
        cells.setdefault(o.task_id, {}).setdefault(o.effort, []).append((o.cost, o.success))
    tasks = [
        [np.array(runs) for runs in levels.values()]
        for levels in cells.values()
        if len(levels) > 1 and all(len(runs) > 1 for runs in levels.values())
    ]
    if not tasks:
        raise UserError("Needs tasks with two rollouts or more at two effort levels or more.")

    def sweep(h: Reward) -> Floats:
        """Mean (cost, success) per price, `[A, 2]`."""
        return np.array([np.mean([_choose(h, t, lam) for t in tasks], axis=0) for lam in prices])

    linear, other = sweep(parse_reward("S - lam * C")), sweep(reward)
    order = np.argsort(linear[:, 0])
    c = linear[order, 0]
    height = np.interp(other[:, 0], c, np.maximum.accumulate(linear[order, 1]))
    gap = height - other[:, 1]
    return StoredLoss(float(gap.max()), float(gap.mean()), len(tasks))


def _choose(reward: Reward, levels: Sequence[Floats], lam: float) -> Floats:
    """(cost, success) of one task, mean over the two ways round of choosing and evaluating."""
    pooled = np.concatenate(levels)
    facts = {"lam": lam, "p": pooled[:, 1].mean(), "m": pooled[:, 0].mean()}
    result = np.zeros(2)
    for half in (0, 1):
        values = [
            reward({"C": runs[half::2, 0], "S": runs[half::2, 1], **facts}).mean()
            for runs in levels
        ]
        result += levels[int(np.argmax(values))][1 - half :: 2].mean(axis=0) / 2.0
    return result
