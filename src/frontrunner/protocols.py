"""The seams: six small interfaces. Each has one local implementation that works on a laptop CPU
and room for others (servers, clusters, trackers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from frontrunner.types import Sample, Task, TrainStep, Verdict


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Tokens in: the whole context of one turn."""

    request_id: str
    token_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    """0 is greedy: the most likely token, which then has log-probability 0."""
    seed: int
    """Sampling is a function of (seed, position), never of what else is in the batch."""
    stop_token_ids: tuple[int, ...]
    stop_strings: tuple[str, ...] = ()
    """Texts that end the answer; the tokens that complete one are part of it."""
    top_k: int = 0
    """Sample from the k most likely tokens; 0: from all."""
    top_p: float = 1.0
    """Sample from the fewest tokens that hold this share of what top_k left."""
    min_p: float = 0.0
    """Sample from tokens at least this likely, relative to the most likely one."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens `start..stop` of an answer were sampled by one weight version."""

    version: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """Tokens out, `[T]`, with the log-probabilities of the distribution they were drawn from."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: int
    """Oldest weight version that sampled a token."""
    finish: str
    """`stop`, `length` or `abort`."""
    spans: tuple[VersionSpan, ...] = ()
    """Which version sampled which tokens."""
    kept: tuple[tuple[int, ...], ...] = ()
    """`[T]` ids that each token was drawn from, ascending; () where nothing was cut. Empty when no
    token's distribution was cut."""
    num_cached: int = 0
    """Leading tokens of the context whose keys and values were at hand."""


class Engine(Protocol):
    """Generates. `submit` never blocks; `step` advances every running request and returns those
    that finished; `load_weights` and `forget` (drop cached prefixes) may be called only when
    nothing is in flight."""

    def submit(self, request: GenerateRequest) -> None: ...
    def step(self) -> list[GenerateResult]: ...
    @property
    def num_pending(self) -> int: ...
    @property
    def max_context(self) -> int: ...
    def load_weights(self, state: dict[str, Any], version: int) -> None: ...
    def forget(self) -> None: ...


class Trainer(Protocol):
    """Owns the weights and the optimizer."""

    def train_step(self, samples: Sequence[Sample]) -> TrainStep: ...
    def weights(self) -> dict[str, Any]: ...
    def save(self, directory: Path, notes: Mapping[str, Any] | None = None) -> None: ...
    def restore(self, directory: Path) -> None: ...


@dataclass(frozen=True, slots=True)
class TestReport:
    """What came back from one test run in a box."""

    __test__ = False  # not a test class, whatever pytest makes of the name

    outcomes: dict[str, str]
    """Per requested node id: passed, failed, error, skipped; an id that did not run is absent."""
    message: str
    """First failure in short: `test_x: AssertionError: assert f(2) == 4`."""
    timed_out: bool
    exited_early: bool
    """The process ended without a complete report."""
    wall_seconds: float


class Sandbox(Protocol):
    """Runs a project's tests on untrusted code. Every call is a fresh box: nothing that one call
    writes is seen by another. Raises `SandboxError` when the box itself fails."""

    def run_tests(
        self,
        tree: Path,
        files: dict[str, str | None],
        tests: Sequence[str],
        *,
        timeout: float,
        max_failures: int = 0,
    ) -> TestReport: ...
    def close(self) -> None: ...


class Environment(Protocol):
    """One task being worked on: tools in text, observation out."""

    def act(self, text: str) -> tuple[str, str, float]: ...
    @property
    def submission(self) -> dict[str, str | None]: ...


class Verifier(Protocol):
    """Judges a submission in a box that the agent never touched."""

    version: str

    def grade(self, task: Task, submission: dict[str, str | None]) -> Verdict: ...


class Tracker(Protocol):
    """Receives metrics; `metrics.jsonl` is always written, trackers are copies."""

    def log(self, step: int, metrics: dict[str, float]) -> None: ...
    def close(self) -> None: ...
