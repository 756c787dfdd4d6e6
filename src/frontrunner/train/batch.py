"""Samples to tensors: rows of packed sequences with positions, segments and targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frontrunner.algo.packing import MicroBatch
from frontrunner.train.replay import restrict
from frontrunner.types import Sample


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass. B rows, T tokens per row, N trainable tokens in all."""

    input_ids: Tensor
    """`[B, T]`, padded with 0."""
    position_ids: Tensor
    """`[B, T]`, counting from 0 in every segment."""
    mask: Tensor | None
    """`[B, 1, T, T]` true where attention is allowed; None when every row is one sequence, where
    plain causal attention already is right (padding stands at the end)."""
    rows: Tensor
    """`[N]` row of the position that predicts each trainable token."""
    cols: Tensor
    """`[N]` its column."""
    targets: Tensor
    """`[N]` the trainable tokens."""
    advantages: Tensor
    """`[N]`"""
    logprobs: Tensor
    """`[N]` the sampler's."""
    weights: Tensor
    """`[N]` loss scale of each token before the constant normaliser."""
    kept: tuple[tuple[int, ...], ...]
    """`[N]` ids that each token was drawn from, () for all (see `train.replay`)."""


def collate(
    samples: Sequence[Sample], micro: MicroBatch, loss: str, device: torch.device | str = "cpu"
) -> Batch:
    """Tensors of one micro-batch. `loss` token_sum weighs every token 1, sequence_mean 1/L."""
    shape = (len(micro.rows), micro.width)
    ids = torch.zeros(shape, dtype=torch.long)
    positions = torch.zeros(shape, dtype=torch.long)
    segments = torch.full(shape, -1, dtype=torch.long)
    columns: dict[str, list[Any]] = {
        k: [] for k in ("rows", "cols", "targets", "advantages", "logprobs", "weights")
    }
    kept: list[tuple[int, ...]] = []
    for row, members in enumerate(micro.rows):
        start = 0
        for segment, index in enumerate(members):
            sample = samples[index]
            stop = start + len(sample.token_ids)
            ids[row, start:stop] = torch.tensor(sample.token_ids)
            positions[row, start:stop] = torch.arange(stop - start)
            segments[row, start:stop] = segment
            trained = [t for t, on in enumerate(sample.loss_mask) if on and t > 0]
            columns["rows"] += [row] * len(trained)
            columns["cols"] += [start + t - 1 for t in trained]
            columns["targets"] += [sample.token_ids[t] for t in trained]
            columns["advantages"] += [sample.advantage] * len(trained)
            columns["logprobs"] += [sample.logprobs[t] for t in trained]
            kept += [sample.kept[t] if sample.kept else () for t in trained]
            scale = 1.0 if loss == "token_sum" else 1.0 / max(1, len(trained))
            columns["weights"] += [scale] * len(trained)
            start = stop
    mask = None
    if any(len(members) > 1 for members in micro.rows):
        same = segments[:, :, None] == segments[:, None, :]
        causal = torch.ones(micro.width, micro.width, dtype=torch.bool).tril()
        mask = (same & causal)[:, None].to(device)
    integer = {k: torch.tensor(columns[k], dtype=torch.long) for k in ("rows", "cols", "targets")}
    real = {
        k: torch.tensor(columns[k], dtype=torch.float32)
        for k in ("advantages", "logprobs", "weights")
    }
    tensors = {k: v.to(device) for k, v in {**integer, **real}.items()}
    return Batch(ids.to(device), positions.to(device), mask, **tensors, kept=tuple(kept))


def token_logits(model: Any, batch: Batch) -> Tensor:
    """Logits `[N, V]` (float32) that predict the trainable tokens, and no others.

    A hook picks the positions before the output projection, so logits of prompts are never
    computed, whatever the architecture does around its projection.
    """
    head = model.get_output_embeddings()

    def pick(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (inputs[0][batch.rows, batch.cols],)

    handle = head.register_forward_pre_hook(pick)
    try:
        output = model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            attention_mask=batch.mask,
            use_cache=False,
        )
    finally:
        handle.remove()
    logits: Tensor = output.logits
    return restrict(logits.float(), batch.kept)
