"""Sampling that depends on (seed, position) and the distribution only, never on the batch.

All rows of a pass are sampled together. Tokens are drawn by inverting the cumulative distribution
at a number that a counter-based generator makes from (seed, position). The distribution is

    p = softmax(logits / temperature),  cut to top_k, then top_p, then min_p,  renormalised

and the log-probability that is returned is that of p, so of what was really sampled from. Where p
was cut, the ids that were left are returned too: a trainer that renormalises over the same ids
computes the same p. Equally likely tokens are kept or cut together, so that the set is a function
of the distribution. Temperature 0 keeps the most likely token alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from frontrunner.protocols import GenerateRequest

BLOCK = 128
"""Tokens whose probabilities are summed first: a cumulative sum over a whole vocabulary would take
longer than the rest of sampling together."""
HEAD = 1024
"""Most likely tokens that are looked at first when a distribution is cut."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per row, `[B]` each."""

    tokens: list[int]
    logprobs: list[float]
    kept: list[tuple[int, ...]]
    """Ids that were left, ascending; () where nothing was cut."""


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """Numbers in [0, 1), one per row, from a counter-based generator (SplitMix64 finaliser)."""
    mask = (1 << 64) - 1
    x = np.array([seed & mask for seed in seeds], dtype=np.uint64)
    counter = np.array(positions, dtype=np.uint64) + np.uint64(1)
    x = x * np.uint64(0x9E3779B97F4A7C15) + counter * np.uint64(0xD1B54A32D192ED03)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) / float(1 << 53)


def sample(
    logits: Tensor, requests: Sequence[GenerateRequest], positions: Sequence[int]
) -> Sampled:
    """One token per row of `logits` `[B, V]`; `positions` `[B]` count the tokens of an answer."""
    probs = _softmax(logits, [r.temperature or 1.0 for r in requests])
    kept: list[tuple[int, ...]] = [()] * len(requests)
    cut = [
        n for n, r in enumerate(requests) if r.temperature == 0 or r.top_k or r.top_p < 1 or r.min_p
    ]
    if cut:
        _cut(probs, logits, [requests[n] for n in cut], cut, kept)
    draws = torch.from_numpy(uniforms([r.seed for r in requests], positions)).to(logits.device)
    tokens = pick(probs, draws)
    logprobs = probs.gather(-1, tokens[:, None])[:, 0].log()
    return Sampled(tokens.tolist(), logprobs.tolist(), kept)


def _softmax(logits: Tensor, temperatures: list[float]) -> Tensor:
    """`[B, V]` float32."""
    logits = logits.float()
    if any(t != 1.0 for t in temperatures):
        logits = logits / torch.tensor(temperatures, device=logits.device)[:, None]
    return torch.softmax(logits, dim=-1)


def pick(probs: Tensor, draws: Tensor) -> Tensor:
    """`[B]` tokens at cumulative probability `draws` `[B]` (float64) of `probs` `[B, V]`, which
    need not sum to 1. A token of probability 0 is never picked."""
    rows, size = probs.shape
    padded = F.pad(probs, (0, -size % BLOCK)) if size % BLOCK else probs  # padding copies
    blocks = padded.view(rows, -1, BLOCK)
    ends = blocks.sum(-1).double().cumsum(-1)
    target = (draws * ends[:, -1]).minimum(ends[:, -1] * (1 - 1e-12))[:, None]
    block = torch.searchsorted(ends, target, right=True)
    before = F.pad(ends, (1, 0)).gather(-1, block)
    inner = blocks.gather(1, block[:, :, None].expand(-1, 1, BLOCK))[:, 0].double().cumsum(-1)
    # The block's sum was taken in float32: what is left may miss the block by its rounding.
    rest = (target - before).clamp_min(0.0).minimum(inner[:, -1:] * (1 - 1e-12))
    return (block * BLOCK + torch.searchsorted(inner, rest, right=True))[:, 0]


def _cut(
    probs: Tensor,
    logits: Tensor,
    requests: list[GenerateRequest],
    rows: list[int],
    kept: list[tuple[int, ...]],
) -> None:
    """Cut and renormalise `rows` of `probs` `[B, V]` in place; note in `kept` what is left."""
    index = torch.tensor(rows, device=probs.device)
    part = probs[index]
    keep = part >= threshold(
        part,
        torch.tensor([1 if r.temperature == 0 else r.top_k for r in requests]).to(part.device),
        torch.tensor([r.top_p for r in requests], dtype=torch.float64).to(part.device),
        torch.tensor([r.min_p for r in requests]).to(part.device),
    )
    greedy = [n for n, r in enumerate(requests) if r.temperature == 0]
    if greedy:  # exactly one token, the first among equals
        best = logits[index[greedy]].float().argmax(-1)
        keep[greedy] = F.one_hot(best, part.shape[1]).bool()
    part = part * keep
    probs[index] = part / part.sum(-1, keepdim=True)
    for row, left in zip(rows, keep, strict=True):
        if not bool(left.all()):
            kept[row] = tuple(left.nonzero()[:, 0].tolist())


def threshold(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """`[B, 1]` the smallest probability that is left of `probs` `[B, V]`; cuts are `[B]`."""
    size = probs.shape[1]
    head = probs.topk(min(size, HEAD), dim=-1).values
    enough = (head.double().sum(-1) >= top_p) & (top_k <= head.shape[1])
    if head.shape[1] < size and not bool(enough.all()):
        head = probs.sort(dim=-1, descending=True).values
    # Without top_k the k-th token is the last one, and the mass that is left is all of it.
    last = torch.where(top_k > 0, top_k, head.shape[1]).clamp_max(head.shape[1]) - 1
    lowest = torch.where(top_k[:, None] > 0, head.gather(-1, last[:, None]), 0.0)
    mass = (head * (head >= lowest)).double()
    total = torch.where(top_k > 0, mass.sum(-1), 1.0)[:, None]
    before = mass.cumsum(-1) - mass
    inside = (before < top_p[:, None] * total) & (head >= lowest)
    count = inside.sum(-1, keepdim=True).clamp_min(1)
    smallest = head.gather(-1, count - 1)
    # Where top_p cuts nothing, nothing below the head is cut either.
    smallest = torch.where(top_p[:, None] < 1, smallest, lowest)
    return torch.maximum(smallest, min_p[:, None] * head[:, :1])
