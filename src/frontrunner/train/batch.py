"""Samples to tensors: the places of a pack, and what is trained at each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from frontrunner.algo.packing import Pack
from frontrunner.train.attention import PrefixTree
from frontrunner.train.replay import Kept
from frontrunner.types import Sample

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass: B rows of T places, P distinct predictions, N trainable tokens.

    Samples that share a place share its prediction, each with its own advantage, so N >= P. They
    do not where the sampler cut their distributions differently.
    """

    input_ids: Tensor
    """`[B, T]`, padded with 0."""
    positions: Tensor
    """`[B, T]`, counting from 0 in every sequence."""
    tree: PrefixTree | None
    """Which places attend to which; None where rows are single sequences, padded at the end."""
    sources: Tensor
    """`[P]` place (counting through the rows) that predicts."""
    targets: Tensor
    """`[P]` the token that it predicts."""
    entries: Tensor
    """`[N]` index of each trainable token among the P."""
    advantages: Tensor
    """`[N]`"""
    logprobs: Tensor
    """`[N]` the sampler's."""
    weights: Tensor
    """`[N]` loss scale of each token before the constant normaliser."""
    efforts: tuple[tuple[str, int], ...]
    """(effort, number of trainable tokens) per sample; they sum to N, in the same order."""
    kept: Kept = ()
    """`[P]` ids that each prediction is cut to, () for all; empty when none is cut."""


def collate(
    samples: Sequence[Sample], pack: Pack, loss: str, device: torch.device | str = "cpu"
) -> Batch:
    """Tensors of one pack. `loss` token_sum weighs every token 1, sequence_mean 1/L."""
    ids = np.zeros(pack.shape[0] * pack.shape[1], np.int64)
    positions = np.zeros_like(ids)
    members = [samples[i] for i in pack.members]
    sources: list[Array] = []
    places: list[Array] = []
    advantages: list[Array] = []
    logprobs: list[Array] = []
    weights: list[Array] = []
    sets: dict[tuple[int, ...], int] = {(): 0}  # number of each set of kept ids
    cuts: list[Array] = []
    for sample, path in zip(members, pack.paths, strict=True):
        ids[path] = sample.token_ids
        positions[path] = np.arange(len(path))
        trained = np.flatnonzero(sample.loss_mask[1:]) + 1  # nothing predicts the first token
        sources.append(path[trained - 1])
        places.append(path[trained])
        advantages.append(np.full(len(trained), sample.advantage))
        logprobs.append(np.asarray(sample.logprobs)[trained])
        scale = 1.0 if loss == "token_sum" else 1.0 / max(1, len(trained))
        weights.append(np.full(len(trained), scale))
        kept = [sample.kept[t] for t in trained] if sample.kept else [()] * len(trained)
        cuts.append(np.array([sets.setdefault(ids, len(sets)) for ids in kept], np.int64))
    predictions = np.concatenate(places) * len(sets) + np.concatenate(cuts)
    distinct, first, entries = np.unique(predictions, return_index=True, return_inverse=True)
    known = list(sets)

    def real(parts: list[Array]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).float().to(device)

    def whole(values: Array) -> Tensor:
        return torch.from_numpy(values).to(device)

    return Batch(
        input_ids=whole(ids.reshape(pack.shape)),
        positions=whole(positions.reshape(pack.shape)),
        tree=None if pack.ends is None else PrefixTree(pack.ends, device),
        sources=whole(np.concatenate(sources)[first]),
        targets=whole(ids[distinct // len(sets)]),
        entries=whole(entries),
        advantages=real(advantages),
        logprobs=real(logprobs),
        weights=real(weights),
        efforts=tuple((s.effort, len(w)) for s, w in zip(members, weights, strict=True)),
        kept=tuple(known[n] for n in distinct % len(sets)) if len(sets) > 1 else (),
    )
