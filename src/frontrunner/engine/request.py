"""A request as facts with derived properties, so that nothing can disagree."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from frontrunner.protocols import GenerateRequest, GenerateResult, VersionSpan


@dataclass(slots=True, eq=False)
class Row:
    """A request at work: a row of the batch while it runs, and all that is kept while it waits."""

    request: GenerateRequest
    number: int
    """Order of submission; the smaller one has the older right."""
    arrival_seconds: float
    tokens: list[int] = field(default_factory=list)
    """Context and answer so far."""
    logprobs: list[float] = field(default_factory=list)
    kept: list[tuple[int, ...]] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    """(version, first answer token that it sampled), in order."""
    pages: list[int] = field(default_factory=list)
    """Pages of the KV cache, in the order of the tokens."""
    num_computed: int = 0
    """Leading tokens whose keys and values are in the pages."""
    num_cached: int = 0
    kv_version: int = -1
    """Weight version that computed the pages from the first token on."""
    num_preempted: int = 0
    ended: str = ""
    """Why the answer is over, where its tokens do not say it: `stop` (a text) or `abort`."""
    chain: list[int] = field(default_factory=list)
    """Hashes of the leading blocks of tokens (see `prefix_cache`)."""

    @property
    def num_prompt(self) -> int:
        return len(self.request.token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output(self) -> int:
        return len(self.logprobs)

    @property
    def num_left(self) -> int:
        """Tokens to feed before the next one can be sampled; 1 while decoding."""
        return len(self.tokens) - self.num_computed

    @property
    def resumed(self) -> bool:
        """It ran before and lost its pages, but nothing else."""
        return self.num_preempted > 0

    def num_kept_tokens(self, share: float) -> int:
        """Tokens of KV to set aside: all of the context and a share of the answer's limit.

        The last sampled token is never fed, so it needs no place.
        """
        answer = math.ceil(share * self.request.max_new_tokens)
        return max(self.num_prompt + answer - 1, self.num_tokens)

    @property
    def finish(self) -> str | None:
        if self.ended:
            return self.ended
        if self.num_output and self.tokens[-1] in self.request.stop_token_ids:
            return "stop"
        return "length" if self.num_output >= self.request.max_new_tokens else None

    def append(self, token: int, logprob: float, kept: tuple[int, ...], version: int) -> None:
        """Take one sampled token."""
        if not self.versions or self.versions[-1][0] != version:
            self.versions.append((version, self.num_output))
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.kept.append(kept)

    def result(self, version: int) -> GenerateResult:
        """The answer; `version` is named where no token was sampled."""
        stops = [start for _, start in self.versions[1:]] + [self.num_output]
        spans = tuple(
            VersionSpan(v, start, stop)
            for (v, start), stop in zip(self.versions, stops, strict=self.num_output > 0)
        )
        return GenerateResult(
            self.request.request_id,
            tuple(self.tokens[self.num_prompt :]),
            tuple(self.logprobs),
            min((v for v, _ in self.versions), default=version),
            self.finish or "length",
            spans,
            tuple(self.kept) if any(self.kept) else (),
            self.num_cached,
        )
