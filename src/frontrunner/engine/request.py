"""A request as facts with derived properties, so that nothing can disagree."""

from __future__ import annotations

from dataclasses import dataclass, field

from frontrunner.protocols import GenerateRequest, GenerateResult


@dataclass(slots=True)
class Running:
    """A request that holds a slot of the KV cache."""

    request: GenerateRequest
    slot: int
    version: int
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Position in the context of the token that is fed next."""
        return len(self.request.token_ids) + len(self.output) - 1

    @property
    def last_token(self) -> int:
        return self.output[-1]

    @property
    def finish(self) -> str | None:
        if self.output[-1] in self.request.stop_token_ids:
            return "stop"
        return "length" if len(self.output) >= self.request.max_new_tokens else None

    def result(self) -> GenerateResult:
        return GenerateResult(
            self.request.request_id,
            tuple(self.output),
            tuple(self.logprobs),
            self.version,
            self.finish or "length",
        )
