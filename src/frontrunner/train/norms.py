"""Exact ||grad log pi(y)||^2 of single rollouts, beside the estimates that one forward pass gives.

The gradient is over all weights of the model, one backward pass per rollout: for calibration, not
for training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from frontrunner.algo.packing import pad
from frontrunner.algo.score_norm import entropies, logit_norms
from frontrunner.train.batch import collate
from frontrunner.train.score import ShortCuts, score
from frontrunner.types import Sample

PLAIN = ShortCuts(packing=False, projection=False)


def score_gradient(model: Any, sample: Sample, temperature: float) -> torch.Tensor:
    """z = d log pi(y) / d weights of one rollout, `[W]`, float32."""
    (pack,) = pad([len(sample.token_ids)], len(sample.token_ids))
    batch = collate([sample], pack, "token_sum", next(model.parameters()).device)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not len(batch.targets):
        return torch.zeros(sum(p.numel() for p in parameters))
    logprobs, _ = score(model, batch, temperature, PLAIN)
    parts = torch.autograd.grad(logprobs.sum(), parameters)
    return torch.cat([p.float().flatten() for p in parts])


def squared_norms(model: Any, samples: Sequence[Sample], temperature: float) -> Iterator[float]:
    """||z||^2 of one rollout after another."""
    for sample in samples:
        gradient = score_gradient(model, sample, temperature)
        yield float(gradient.double().square().sum())


@torch.no_grad()
def proxies(model: Any, sample: Sample, temperature: float) -> dict[str, float]:
    """`length`, `logit_norm` (sum of ||e_y - p||^2) and `entropy` of one rollout's tokens."""
    ids = torch.tensor([sample.token_ids], device=next(model.parameters()).device)
    trained = np.flatnonzero(sample.loss_mask[1:]) + 1
    logits = model(input_ids=ids, use_cache=False).logits[0, trained - 1].float()
    logprobs = torch.log_softmax(logits / temperature, -1).double().cpu().numpy()
    tokens = np.asarray(sample.token_ids, dtype=np.int64)[trained]
    return {
        "length": float(len(trained)),
        "logit_norm": float(logit_norms(logprobs, tokens).sum()),
        "entropy": float(entropies(logprobs).sum()),
    }
