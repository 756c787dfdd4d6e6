"""Runs one pass of the model: a plan in, logits of the rows that sample out.

`LlamaDecoder` computes models of the Llama shape directly. `ModuleDecoder` runs any other Hugging
Face decoder through its own modules, with attention exchanged for that of the paged cache; a check
at the start compares it with the model's own attention, so that an architecture that does something
else there is refused and never served wrongly.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface

from frontrunner.engine.attention import Layout, attend, layout_of
from frontrunner.engine.kv_cache import KVCache
from frontrunner.engine.llama import LlamaDecoder, is_llama_shaped
from frontrunner.engine.request import Row
from frontrunner.engine.scheduler import Plan
from frontrunner.errors import UserError
from frontrunner.protocols import GenerateRequest

PAGED = "frontrunner_paged"
TOLERANCE = 0.05
"""Of the check at the start, relative to the largest logit; bfloat16 rounds at 0.004."""


class Decoder(Protocol):
    """Logits `[len(wanted), V]` of the tokens at places `wanted`."""

    def logits(self, ids: Tensor, positions: Tensor, layout: Layout, wanted: Tensor) -> Tensor: ...


class Runner:
    """The model, its cache, and the way it is computed."""

    def __init__(self, model: Any, cache: KVCache, max_context: int, *, direct: bool = True):
        self.cache = cache
        self.device = next(model.parameters()).device
        self.decoder: Decoder
        if direct and is_llama_shaped(model):
            self.decoder = LlamaDecoder(model, cache, max_context)
        else:
            self.decoder = ModuleDecoder(model, cache)
            self._check(model)

    def run(self, plan: Plan) -> Tensor:
        """Compute a pass; logits `[R, V]` for `plan.sampling`, in its order."""
        for source, target in plan.copies:
            self.cache.copy(source, target)
        ids = [row.tokens[row.num_computed] for row in plan.singles]
        positions = [row.num_computed for row in plan.singles]
        for row, count in plan.chunks:
            stop = row.num_computed + count
            ids += row.tokens[row.num_computed : stop]
            positions += range(row.num_computed, stop)
        ends = accumulate((count for _, count in plan.chunks), initial=len(plan.singles))
        complete = [
            end - 1
            for end, (row, count) in zip(list(ends)[1:], plan.chunks, strict=True)
            if count == row.num_left
        ]
        wanted = [*range(len(plan.singles)), *complete]
        return self.decoder.logits(
            torch.tensor(ids, device=self.device),
            torch.tensor(positions, device=self.device),
            layout_of(plan, self.cache),
            torch.tensor(wanted, dtype=torch.long, device=self.device),
        )

    @torch.inference_mode()
    def _check(self, model: Any) -> None:
        """Compare a short prompt, in two chunks and a single token, with the plain model."""
        size = min(12, self.cache.page_size * len(self.cache.keys[0]))
        ids = [(7 * n + 3) % model.config.vocab_size for n in range(size)]
        row = Row(GenerateRequest("check", tuple(ids), 1, 1.0, 0, ()), 0, 0.0, list(ids))
        row.pages = list(range(-(-size // self.cache.page_size)))
        rows = []
        for count in (size // 2, size - size // 2 - 1):
            chunk = Plan(chunks=[(row, count)])
            self.run(chunk)
            row.num_computed += count
        rows.append(self.run(Plan(singles=[row]))[-1])
        model.set_attn_implementation("eager")
        expected = model(input_ids=torch.tensor([ids], device=self.device)).logits[0, -1]
        model.set_attn_implementation(PAGED)
        gap = (rows[-1].float() - expected.float()).abs().max() / expected.float().abs().max()
        if not float(gap) < TOLERANCE:
            raise UserError(
                f"model type {model.config.model_type} does not compute its attention in a way "
                "that the local engine can serve; use another architecture or a server"
            )


class ModuleDecoder:
    """Any decoder whose attention can be exchanged through transformers' attention interface."""

    def __init__(self, model: Any, cache: KVCache) -> None:
        self.model, self.cache = model, cache
        AttentionInterface.register(PAGED, paged_attention)
        try:
            model.set_attn_implementation(PAGED)
        except ValueError as error:
            raise UserError(
                f"model type {model.config.model_type} has no attention interface, which the local "
                f"engine needs ({str(error)[:120]}); use another architecture or a server"
            ) from None

    def logits(self, ids: Tensor, positions: Tensor, layout: Layout, wanted: Tensor) -> Tensor:
        """`[len(wanted), V]`."""
        keep = wanted if len(wanted) else torch.zeros_like(ids[:1])  # never a product of no rows
        output = self.model(
            input_ids=ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=keep,
            paged=(self.cache, layout),
        )
        logits: Tensor = output.logits[0, : len(wanted)]
        return logits


def paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    paged: tuple[KVCache, Layout] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Transformers' attention interface over a paged cache; tensors `[1, heads, N, D]` in,
    `[1, N, Hq, D]` out."""
    odd = kwargs.get("softcap") is not None
    if paged is None or odd or not key.shape[1::2] == value.shape[1::2] == paged[0].kv_shape:
        raise UserError(
            f"{type(module).__name__} does not compute its attention in a way that the local "
            "engine can serve; use another architecture or a server"
        )
    cache, layout = paged
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    cache.write(module.layer_idx, layout.places, torch.stack([k, v], 1))
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return attend(q, k, v, cache, module.layer_idx, layout, scale)[None], None
