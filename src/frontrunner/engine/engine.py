"""The local rollout engine: continuous batching over a paged KV cache.

    submit -> waiting -> running: prefill in chunks, decode, decode, ... -> result

Each `step` is one pass of the model over a token of every decoding row and a share of the prompts:
plan, compute, sample, finish. What runs when is decided in `scheduler`, what is computed in
`runner` and `attention`, what is drawn in `sampler`; this file puts them together and changes
weights.

**New weights.** They are loaded between two steps, when nothing is in flight or after `pause`:

    abort      every request ends at once with what it has
    wait       running requests go on, no other one starts; load when `num_running` is 0
    keep       running requests stop where they are and go on with their old keys and values
    recompute  the same, but their keys and values are computed again by the new weights

`keep` is an approximation: later tokens are sampled by new weights from old keys and values. Each
result says which version sampled which tokens. Nothing that other weights computed is ever reused
for a new request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Literal

import torch
from torch import Tensor

from frontrunner.engine import weights
from frontrunner.engine.kv_cache import KVCache, PagePool, pages_of_budget
from frontrunner.engine.prefill_delayer import PrefillDelayer
from frontrunner.engine.request import Row
from frontrunner.engine.runner import Runner
from frontrunner.engine.sampler import sample
from frontrunner.engine.scheduler import Scheduler
from frontrunner.errors import UserError
from frontrunner.protocols import GenerateRequest, GenerateResult

PauseMode = Literal["abort", "wait", "keep", "recompute"]


class LocalEngine:
    """Implements `protocols.Engine` for any Hugging Face decoder with full attention.

    The engine owns the model: its weights change in place.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_batch: int,
        max_context: int,
        prefill_tokens: int = 4096,
        kv_bytes: int = 0,
        page_size: int = 128,
        reserve: float = 1.0,
        mixed: bool = True,
        delayer: PrefillDelayer | None = None,
        decode_text: Callable[[Sequence[int]], str] | None = None,
        direct: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`kv_bytes` 0 holds `max_batch` full contexts. `reserve` and `mixed` as in `Scheduler`;
        `decode_text` is needed for stop strings; `direct` False computes through the modules."""
        check_context(model.config, max_context)
        weight = next(model.parameters())
        page_size = min(page_size, max_context)
        if kv_bytes:
            pages = pages_of_budget(model.config, weight.element_size(), kv_bytes, page_size)
            if pages * page_size < max_context:
                raise UserError(
                    f"the KV budget holds {pages * page_size} tokens, less than engine.max_context "
                    f"= {max_context}; raise engine.kv_mib or lower engine.max_context"
                )
        else:
            pages = max_batch * -(-max_context // page_size)
        self.model = model.eval()
        self.version = 0
        self.max_context = max_context
        self.cache = KVCache(model.config, pages, page_size, weight)
        self.scheduler = Scheduler(
            PagePool(pages, page_size),
            max_batch=max_batch,
            prefill_tokens=prefill_tokens,
            reserve=reserve,
            mixed=mixed,
            delayer=delayer,
        )
        self._runner = Runner(self.model, self.cache, max_context, direct=direct)
        self._decode_text, self._now = decode_text, clock
        self._numbers = count()
        self._paused: PauseMode | None = None
        self._ended: list[GenerateResult] = []

    @property
    def num_running(self) -> int:
        return len(self.scheduler.running)

    @property
    def num_pending(self) -> int:
        return self.num_running + len(self.scheduler.waiting) + len(self._ended)

    @property
    def num_prefilled(self) -> int:
        """Context tokens computed so far."""
        return self.scheduler.counts["prefilled_tokens"]

    @property
    def num_reused(self) -> int:
        """Context tokens whose keys and values were at hand."""
        return self.scheduler.counts["reused_tokens"]

    def submit(self, request: GenerateRequest) -> None:
        """Queue a request; raises `UserError` if it is malformed or can never fit."""
        check_request(request, self.max_context, self._decode_text is not None)
        tokens = list(request.token_ids)
        self.scheduler.submit(Row(request, next(self._numbers), self._now(), tokens))

    @torch.inference_mode()
    def step(self) -> list[GenerateResult]:
        """One pass; returns the requests that it finished."""
        done, self._ended = self._ended, []
        if self._paused not in (None, "wait"):
            return done
        plan = self.scheduler.plan(self._now(), admit=self._paused is None)
        if not plan.num_tokens:
            return done
        logits = self._runner.run(plan)
        rows = plan.sampling
        self.scheduler.advance(plan)
        if rows:
            self._append(rows, logits)
        for row in rows:
            if row.finish:
                self.scheduler.finish(row, self._now())
                done.append(row.result(self.version))
        return done

    def abort(self, request_id: str) -> bool:
        """End a request with what it has; False if it is not known (any more)."""
        rows = [*self.scheduler.running, *self.scheduler.waiting]
        row = next((r for r in rows if r.request.request_id == request_id), None)
        if row is None:
            return False
        self._abort(row)
        return True

    def pause(self, mode: PauseMode) -> None:
        """Make room for new weights; see the top of this file. Aborted results come with the next
        `step`."""
        self._paused = mode
        if mode == "abort":
            for row in [*self.scheduler.running, *self.scheduler.waiting]:
                self._abort(row)
        if mode == "recompute":
            for row in sorted(self.scheduler.running, key=lambda r: -r.number):
                self.scheduler.preempt(row)

    def resume(self) -> None:
        """Go on after a pause."""
        self._paused = None

    def load_weights(self, state: dict[str, Any], version: int, checksum: str = "") -> None:
        """Copy new weights in place; every cached key and value is forgotten.

        Nothing changes unless all names and shapes match, and the checksum if one is given.
        """
        busy = self.num_pending if self._paused is None else self.num_running
        if busy and self._paused in (None, "wait"):
            raise RuntimeError(f"{busy} requests are in flight; pause the engine first")
        own: dict[str, Tensor] = self.model.state_dict()
        weights.check(own, state, checksum)
        weights.load(own, state)
        self.version = version
        self.scheduler.forget(version)

    def forget(self) -> None:
        """Drop cached prefixes: results then depend on the coming requests alone."""
        if self.num_pending:
            raise RuntimeError(f"{self.num_pending} requests are in flight")
        self.scheduler.forget(self.version)

    def metrics(self) -> dict[str, float]:
        """What happened so far, and how full the engine is."""
        scheduler = self.scheduler
        values = {name: float(number) for name, number in scheduler.counts.items()}
        values |= {"running": float(self.num_running), "waiting": float(len(scheduler.waiting))}
        values["kv_free_pages"] = float(scheduler.pool.num_free)
        values["kv_cached_pages"] = float(scheduler.prefix.num_pages)
        if scheduler.delayer:
            values |= scheduler.delayer.metrics()
        return {f"engine/{name}": value for name, value in values.items()}

    def _append(self, rows: list[Row], logits: Tensor) -> None:
        drawn = sample(logits, [r.request for r in rows], [r.num_output for r in rows])
        for number, row in enumerate(rows):
            token, logprob = drawn.tokens[number], drawn.logprobs[number]
            row.append(token, logprob, drawn.kept[number], self.version)
            if row.request.stop_strings and self._completes_stop_string(row):
                row.ended = "stop"

    def _completes_stop_string(self, row: Row) -> bool:
        """Whether a stop string ends in the last token.

        A character takes at most 4 tokens (one per UTF-8 byte), which bounds what is decoded.
        """
        assert self._decode_text is not None
        longest = 4 * max(len(text) for text in row.request.stop_strings) + 4
        tail = self._decode_text(row.tokens[row.num_prompt :][-longest:])
        return any(text in tail for text in row.request.stop_strings)

    def _abort(self, row: Row) -> None:
        self.scheduler.drop(row)
        row.ended = "abort"
        self._ended.append(row.result(self.version))


def check_context(config: Any, max_context: int) -> None:
    """Raises `UserError` for a model or a context that the engine cannot serve."""
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        raise UserError(
            f"model type {config.model_type} uses sliding-window attention, which the local "
            "engine does not serve; use a model with full attention"
        )
    limit = getattr(config, "max_position_embeddings", None) or max_context
    if max_context > limit:
        raise UserError(
            f"engine.max_context = {max_context}, but the model's limit is {limit}; lower it"
        )


def check_request(request: GenerateRequest, max_context: int, can_decode: bool) -> None:
    """Raises `UserError` for a request that makes no sense or can never fit."""
    name = f"request {request.request_id}"
    need = len(request.token_ids) + request.max_new_tokens
    if not request.token_ids or request.max_new_tokens < 1:
        raise UserError(f"{name}: give at least one context token and one new token")
    if need > max_context:
        raise UserError(
            f"{name} needs {need} tokens of context, the engine holds {max_context}; "
            "shorten it or raise engine.max_context"
        )
    if request.temperature < 0 or request.top_k < 0:
        raise UserError(f"{name}: temperature and top_k must not be negative")
    if not 0 < request.top_p <= 1 or not 0 <= request.min_p <= 1:
        raise UserError(f"{name}: top_p must be in (0, 1] and min_p in [0, 1]")
    if request.stop_strings and not can_decode:
        raise UserError(f"{name}: stop strings need an engine that was given a tokenizer")
