"""Every record that crosses a room, in the order in which one training step makes them.

    Task -> Rollout -> Group -> Sample -> Batch -> TrainStep -> WeightUpdate -> FrontierPoint

Records are frozen and hold facts only; what can be derived is a property. Each one serialises to
one JSON line with `dump` and comes back with `load`. Shapes are written in brackets: `[T]` is one
number per token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Split = Literal["train", "heldout"]
Status = Literal["submitted", "max_turns", "context_overflow", "invalid"]


@dataclass(frozen=True, slots=True)
class EffortLevel:
    """One rung of the ladder: `EffortLevel("low", "Be quick.", 150.0)`."""

    name: str
    prompt: str
    """The wording put into the system message."""
    lambda_: float | None = None
    """Price of cost in units of success, 1/USD. None until the frontier is fitted."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A source change, by coordinates in the pristine file (no source text is kept).

    `Mutation("comparison", 12, 11, 12, 12, "<=")` replaces one character on line 12.
    """

    kind: str
    line: int
    """1-based first line, as in `ast`."""
    col: int
    """0-based column in UTF-8 bytes, as in `ast`."""
    end_line: int
    end_col: int
    after: str
    """The text that replaces the span."""
    more: tuple[Mutation, ...] = ()
    """Further changes of the same file, in source order, none of which overlaps another."""


@dataclass(frozen=True, slots=True)
class Task:
    """One bug to fix: a mutated function of a real package, with the tests that notice it."""

    id: str
    """Content address: `toolz-3f9c2a71d0b4`."""
    package: str
    """Distribution name, for example `toolz`."""
    version: str
    path: str
    """Mutated file relative to the package tree: `toolz/itertoolz.py`."""
    file_sha256: str
    """Digest of the pristine file, so that another version is refused."""
    function: str
    """Qualified name in the module: `partition_all` or `Path.child`."""
    mutation: Mutation
    fail_to_pass: tuple[str, ...]
    """Node ids `toolz/tests/test_itertoolz.py::test_x` that the bug breaks."""
    pass_to_pass: tuple[str, ...]
    """Node ids that pass with and without the bug."""
    split: Split
    symptom: str
    """How the bug shows: exception type and the test's name, never file or line."""
    instruction: str
    """What a user would have written."""
    test_seconds: float
    """Reference duration of one run of the selected tests; prices the test tool."""
    hidden: bool = False
    """Whether the agent's test tool leaves `fail_to_pass` out; grading never does."""

    @property
    def shown_tests(self) -> tuple[str, ...]:
        """What the agent's test tool runs."""
        return self.pass_to_pass if self.hidden else self.fail_to_pass + self.pass_to_pass


@dataclass(frozen=True, slots=True)
class Usage:
    """Raw token ledger of one turn. The three prompt classes are disjoint."""

    fresh: int = 0
    """Prompt tokens read at the full input price."""
    cached: int = 0
    """Prompt tokens that an ideal prefix cache holds from the turns before."""
    write: int = 0
    """Prompt tokens charged at the cache-write price (0 where writing is free)."""
    output: int = 0
    tool_seconds: float = 0.0
    """Reference duration of the tool call: load on this machine is not the policy's fault."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call and what the environment answered."""

    prompt: tuple[int, ...]
    """Token ids added to the context since the last turn's output, `[P]`; never trained on."""
    output: tuple[int, ...]
    """Sampled token ids, `[T]`, the stop token included."""
    logprobs: tuple[float, ...]
    """Log-probability of each sampled token under the distribution it was drawn from, `[T]`."""
    version: int
    """Weight version that sampled this turn."""
    text: str
    """The output as text."""
    action: str
    """Tool that ran: list, view, search, edit, undo, test, submit or `malformed`."""
    observation: str
    usage: Usage
    wall_seconds: float = 0.0
    """Measured time in the tool; reported, never priced in training."""
    kept: tuple[tuple[int, ...], ...] = ()
    """`[T]` ids that each token was drawn from, () where the distribution was not cut; empty when
    none was (see `rollout.top_p`)."""

    @property
    def chosen(self) -> tuple[bool, ...]:
        """`[T]` false where one token alone was left: that was no choice, and is not trained."""
        if not self.kept:
            return (True,) * len(self.output)
        return tuple(len(ids) != 1 for ids in self.kept)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verifier says. Only `graded` becomes reward; everything else is re-sampled."""

    kind: Literal["graded", "invalid", "quarantined"]
    value: float
    """Success S in [0, 1]; 0.0 and meaningless unless graded."""
    reason: str
    """`solved`, `tests failed`, `tampering: ...`, `timeout`, or what broke in the machinery."""
    tests: dict[str, str] = field(default_factory=dict)
    """Outcome per node id: passed, failed, error, skipped or missing."""
    verifier: str = ""
    """Version of the verifier that judged."""
    wall_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Rollout:
    """One complete trajectory of one policy on one (task, effort), graded and priced."""

    task_id: str
    effort: str
    seed: int
    turns: tuple[Turn, ...]
    status: Status
    submission: dict[str, str | None]
    """Files changed against the task's base tree: new text, or None for a deleted file."""
    verdict: Verdict
    cost: float | None = None
    """C in USD (see `effort.cost`)."""
    reward: float | None = None
    """R = S - lambda_e * C."""
    wall_seconds: float = 0.0

    @property
    def success(self) -> float:
        return self.verdict.value

    @property
    def num_tokens(self) -> int:
        """L: trainable (sampled) tokens of the whole trajectory."""
        return sum(sum(t.chosen) for t in self.turns)

    @property
    def valid(self) -> bool:
        return self.verdict.kind == "graded"

    @property
    def version(self) -> int:
        """Oldest weight version among the turns (0 when there are none)."""
        return min((t.version for t in self.turns), default=0)


@dataclass(frozen=True, slots=True)
class Group:
    """Rollouts of the same task at the same effort; the unit of the reward baseline."""

    task_id: str
    effort: str
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One trajectory as the trainer sees it."""

    token_ids: tuple[int, ...]
    """`[T]`, prompt and output tokens of all turns in order."""
    loss_mask: tuple[bool, ...]
    """`[T]`, true on sampled tokens."""
    logprobs: tuple[float, ...]
    """`[T]`, the sampler's log-probability of token t; 0.0 where the mask is false."""
    advantage: float
    effort: str
    version: int
    kept: tuple[tuple[int, ...], ...] = ()
    """`[T]` ids that token t was drawn from, () for all; empty when nothing was cut."""


@dataclass(frozen=True, slots=True)
class TrainStep:
    """What one optimizer step returns."""

    step: int
    version: int
    """Weight version after the step."""
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """Mean success and cost at one effort level with task-clustered 95 % intervals."""

    effort: str
    success: float
    success_low: float
    success_high: float
    cost: float
    cost_low: float
    cost_high: float
    num_tasks: int
    num_rollouts: int


R = TypeVar("R")


_ADAPTERS: dict[Any, Any] = {}


def _adapter(kind: Any) -> Any:
    if kind not in _ADAPTERS:
        from pydantic import TypeAdapter  # imported late: `frontrunner --help` stays instant

        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def dump(record: Any) -> str:
    """One JSON line for a record."""
    line: bytes = _adapter(type(record)).dump_json(record)
    return line.decode()


def load(kind: type[R], line: str | bytes) -> R:
    """A record from its JSON line; raises pydantic's `ValidationError` on anything else."""
    record: R = _adapter(kind).validate_json(line)
    return record
