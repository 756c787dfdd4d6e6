"""One rollout as a state machine: request, answer, tool, observation, ... until it ends.

    request() -> engine -> absorb(result) -> act() in a thread -> observe(...) -> request() ...

It never waits. The collector moves it between the engine and the tool threads.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from frontrunner.config import RolloutSection
from frontrunner.envs.chat import ChatFormat
from frontrunner.envs.tools import HELP, BugFixEnvironment
from frontrunner.protocols import GenerateRequest, GenerateResult
from frontrunner.types import EffortLevel, Rollout, Status, Task, Turn, Usage, Verdict

MIN_ROOM = 8
"""Tokens of context that must be left for another turn."""


@dataclass(frozen=True, slots=True)
class Job:
    """One rollout to make. `key` orders jobs and names requests; `seed` decides the sampling."""

    key: str
    task: Task
    level: EffortLevel
    seed: int


@dataclass(frozen=True, slots=True)
class Act:
    """What a tool call gave."""

    tool: str
    observation: str
    reference_seconds: float
    wall_seconds: float


def system_prompt(level: EffortLevel, show_help: bool) -> str:
    """The system message: the level's wording, and the commands for who does not know them."""
    return level.prompt + ("\n\n" + HELP if show_help else "")


class Conversation:
    """A rollout in the making. `status` is None while it goes on."""

    def __init__(
        self,
        job: Job,
        chat: ChatFormat,
        environment: BugFixEnvironment,
        limits: RolloutSection,
        max_context: int,
        show_help: bool,
    ) -> None:
        self.job, self.chat, self.environment, self.limits = job, chat, environment, limits
        self.max_context = max_context
        system = system_prompt(job.level, show_help)
        self.status: Status | None = None
        self.fault = ""
        """Why the rollout is invalid."""
        self.turns: list[Turn] = []
        self._start = time.perf_counter()
        self._pending = tuple(chat.opening(system, job.task.instruction))
        self._context: tuple[int, ...] = ()
        self._answer: GenerateResult | None = None

    def request(self) -> GenerateRequest | None:
        """The next model call, or None when the context is full (the rollout then ends)."""
        context = self._context + self._pending
        room = self.max_context - len(context)
        if room < MIN_ROOM:
            self.status = "context_overflow"
            return None
        return GenerateRequest(
            request_id=self.job.key,
            token_ids=context,
            max_new_tokens=min(room, self.limits.max_new_tokens),
            temperature=self.limits.temperature,
            seed=self.job.seed + 1_000_003 * len(self.turns),
            stop_token_ids=self.chat.stop_token_ids,
            top_k=self.limits.top_k,
            top_p=self.limits.top_p,
            min_p=self.limits.min_p,
        )

    def absorb(self, result: GenerateResult) -> str:
        """Take the model's answer; returns its text for the tools."""
        self._answer = result
        return self.chat.decode(result.token_ids)

    def observe(self, text: str, act: Act) -> None:
        """Close the turn with what the tool gave, and decide whether the rollout goes on."""
        answer = self._answer
        assert answer is not None
        usage = Usage(
            fresh=len(self._pending),
            cached=len(self._context),
            output=len(answer.token_ids),
            tool_seconds=act.reference_seconds,
        )
        self.turns.append(
            Turn(
                prompt=self._pending,
                output=answer.token_ids,
                logprobs=answer.logprobs,
                version=answer.version,
                text=text,
                action=act.tool,
                observation=act.observation,
                usage=usage,
                wall_seconds=act.wall_seconds,
                kept=answer.kept,
            )
        )
        self._context += self._pending + answer.token_ids
        closed = answer.finish == "stop"
        self._pending = tuple(self.chat.continuation(act.observation, closed=closed))
        if act.tool == "submit":
            self.status = "submitted"
        elif len(self.turns) >= self.limits.max_turns:
            self.status = "max_turns"

    def abort(self, fault: str) -> None:
        """End it for a reason that is not the policy's."""
        self.status, self.fault = "invalid", fault

    def finish(self, verdict: Verdict) -> Rollout:
        """The record of the finished rollout, not yet priced."""
        return Rollout(
            task_id=self.job.task.id,
            effort=self.job.level.name,
            seed=self.job.seed,
            turns=tuple(self.turns),
            status="invalid" if verdict.kind != "graded" else self.status or "invalid",
            submission=self.environment.submission,
            verdict=verdict,
            wall_seconds=time.perf_counter() - self._start,
        )
