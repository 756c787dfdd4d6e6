"""Sampling-distribution replay: the trainer's policy is cut to the ids that the sampler kept.

Where top_p and the like cut a distribution, a token was drawn from what was left, renormalised.
Its importance weight and its gradient are those of that distribution: the trainer's logits outside
the recorded set are removed before its softmax, so it renormalises over the same set. It must not
cut by its own probabilities: tokens would fall in and out of the set by rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

Kept = tuple[tuple[int, ...], ...]
"""Ids that each token was drawn from; () for all of them."""
REMOVED = -1e9
"""Logit of a removed token. Finite, so that 0 * log 0 in an entropy is 0."""


def restrict(logits: Tensor, kept: Kept) -> Tensor:
    """`[N, V]` logits with those outside `kept` `[N]` removed; () keeps all of a row.

    An empty `kept` keeps all rows.
    """
    cut = [n for n, ids in enumerate(kept) if ids]
    if not cut:
        return logits
    rows = torch.tensor([n for n in cut for _ in kept[n]], device=logits.device)
    ids = torch.tensor([i for n in cut for i in kept[n]], device=logits.device)
    removed = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
    removed[cut] = True
    removed[rows, ids] = False
    return logits.masked_fill(removed, REMOVED)
