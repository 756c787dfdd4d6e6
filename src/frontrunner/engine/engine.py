"""The local rollout engine: continuous batching over a slot cache.

    submit -> waiting -> (prefill) -> running -> (decode, decode, ...) -> result

Each `step` first admits waiting requests into free slots and prefills them, up to
`prefill_tokens`, then decodes one token for every running request. A request enters and leaves
the batch at any step. Prefill runs one request at a time, so its result does not depend on the
company it keeps.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from frontrunner.engine.kv_cache import SlotCache
from frontrunner.engine.request import Running
from frontrunner.engine.sampler import sample, uniform
from frontrunner.errors import UserError
from frontrunner.protocols import GenerateRequest, GenerateResult


class LocalEngine:
    """Implements `protocols.Engine` for any Hugging Face decoder with full attention."""

    def __init__(
        self, model: Any, *, max_batch: int, max_context: int, prefill_tokens: int = 4096
    ) -> None:
        config = model.config
        if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
            raise UserError(
                f"model type {config.model_type} uses sliding-window attention, which the local "
                "engine does not serve; use a model with full attention"
            )
        limit = getattr(config, "max_position_embeddings", max_context)
        if max_context > limit:
            raise UserError(
                f"engine.max_context = {max_context}, but the model's limit is {limit}; lower it"
            )
        self.model = model.eval()
        self.version = 0
        self.num_prefilled = 0
        self.num_reused = 0
        self._max_context = max_context
        self._prefill_tokens = prefill_tokens
        self._clock = 0
        self._waiting: deque[GenerateRequest] = deque()
        self._running: dict[int, Running] = {}
        weight = next(model.parameters())
        self.cache = SlotCache(config, max_batch, self._max_context, weight)
        self._device = weight.device

    @property
    def max_context(self) -> int:
        return self._max_context

    @property
    def num_pending(self) -> int:
        return len(self._waiting) + len(self._running)

    def submit(self, request: GenerateRequest) -> None:
        """Queue a request; raises `ValueError` if it can never fit."""
        need = len(request.token_ids) + request.max_new_tokens
        if need > self._max_context:
            raise ValueError(
                f"request {request.request_id} needs {need} tokens of context, "
                f"the engine holds {self._max_context}"
            )
        self._waiting.append(request)

    @torch.inference_mode()
    def step(self) -> list[GenerateResult]:
        self._clock += 1
        self._admit()
        return self._retire() + (self._decode() if self._running else [])

    def load_weights(self, state: dict[str, Any], version: int) -> None:
        """Copy new weights in place; every cached key and value is forgotten.

        Nothing changes unless all names and shapes match.
        """
        own = self.model.state_dict()
        if own.keys() != state.keys():
            odd = sorted(own.keys() ^ state.keys())[:3]
            raise ValueError(f"weight names differ: {', '.join(odd)}")
        for name, value in state.items():
            if own[name].shape != value.shape:
                raise ValueError(f"{name}: shape {tuple(value.shape)} != {tuple(own[name].shape)}")
        self.forget()
        with torch.no_grad():
            for name, value in state.items():
                own[name].copy_(value)
        self.version = version

    def forget(self) -> None:
        """Drop cached prefixes: results then depend on the coming requests alone."""
        if self.num_pending:
            raise RuntimeError(f"{self.num_pending} requests are in flight")
        self.cache.clear()

    def _admit(self) -> None:
        budget = self._prefill_tokens
        while self._waiting and len(self._running) < self.cache.num_slots and budget > 0:
            request = self._waiting.popleft()
            free = [s for s in range(self.cache.num_slots) if s not in self._running]
            slot, reused = self.cache.choose(request.token_ids, free)
            logits = self._prefill(request, slot, reused)
            budget -= len(request.token_ids) - reused
            self.num_prefilled += len(request.token_ids) - reused
            self.num_reused += reused
            running = Running(request, slot, self.version)
            self._running[slot] = running
            self._append([running], logits)

    def _prefill(self, request: GenerateRequest, slot: int, start: int) -> Tensor:
        """Logits `[1, V]` of the last prompt token; chunks keep attention memory bounded."""
        ids = request.token_ids
        logits = torch.empty(0)
        while start < len(ids):
            stop = min(len(ids), start + self._prefill_tokens)
            self.cache.bind_prefill(slot, start, stop)
            positions = torch.arange(start, stop, device=self._device)
            mask = torch.arange(stop, device=self._device) <= positions[:, None]
            chunk = torch.tensor([ids[start:stop]], device=self._device)
            logits = self._forward(chunk, positions[None], mask[None, None])
            start = stop
        self.cache.tokens[slot] = list(ids)
        self.cache.last_used[slot] = self._clock
        return logits

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _append(self, rows: list[Running], logits: Tensor) -> None:
        draws = [uniform(r.request.seed, len(r.output)) for r in rows]
        tokens, logprobs = sample(logits, [r.request.temperature for r in rows], draws)
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            row.output.append(token)
            row.logprobs.append(logprob)

    def _decode(self) -> list[GenerateResult]:
        rows = [self._running[s] for s in sorted(self._running)]
        slots, position = self.cache.bind_decode([r.slot for r in rows])
        tokens = [self._running[s].last_token if s in self._running else 0 for s in slots]
        width = int(position.max()) + 1
        mask = (torch.arange(width, device=self._device) <= position)[:, None, None]
        logits = self._forward(torch.tensor(tokens, device=self._device)[:, None], position, mask)
        for row in rows:
            self.cache.tokens[row.slot].append(row.last_token)
        place = {slot: n for n, slot in enumerate(slots)}
        self._append(rows, logits[[place[r.slot] for r in rows]])
        return self._retire()

    def _retire(self) -> list[GenerateResult]:
        done = [r for r in self._running.values() if r.finish]
        for row in done:
            del self._running[row.slot]
            self.cache.last_used[row.slot] = self._clock
        return [row.result() for row in done]
