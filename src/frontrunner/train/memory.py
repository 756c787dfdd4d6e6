"""How much memory a training step takes, per token of `train.micro_tokens` and beside it.

Measured, not modelled: two small passes are run forward and backward while every allocation is
watched, and the difference of their peaks is the price of a token.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from frontrunner.train.batch import collate
from frontrunner.train.logprobs import chunk_positions
from frontrunner.train.score import score
from frontrunner.train.trainer import LocalTrainer
from frontrunner.types import Sample

PROBE_TOKENS = 512
"""Tokens of the longer pass; in much shorter ones something else than the activations peaks."""


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Bytes of one training step."""

    fixed: float
    """Weights, gradients, optimizer, reference model, and one chunk of logits."""
    per_token: float
    """What the passes keep for each token of `micro_tokens`."""

    def peak(self, micro_tokens: int) -> float:
        """Bytes at the fullest moment."""
        return self.fixed + micro_tokens * self.per_token


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of tensors made and not yet freed, and the most there were. What a kernel allocates
    and frees within itself is not seen."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live, self.most = 0, 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf.untyped_storage())
        return out

    def _note(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return

        def freed(_: Any) -> None:
            del self._known[key]
            self.live -= size

        self._known[key] = weakref.ref(storage, freed)
        self.live += size
        self.most = max(self.most, self.live)


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """The most bytes that `work` holds at once beyond what was there before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = int(torch.cuda.memory_allocated(device))
        work()
        return int(torch.cuda.max_memory_allocated(device)) - before
    watch = _Watch()
    with watch:
        work()
    return watch.most


def step_memory(trainer: LocalTrainer) -> StepMemory:
    """Bytes of a step of this trainer. Its weights, gradients and optimizer stay as they are."""
    model = trainer.model
    parameters = list(model.parameters())
    half = min(PROBE_TOKENS, getattr(model.config, "max_position_embeddings", PROBE_TOKENS)) // 2
    short, long = _pass_bytes(trainer, half), _pass_bytes(trainer, 2 * half)
    per_token = (long - short) / half
    rest = short - half * per_token  # gradients of single weights, on their way
    held = sum(p.nbytes for p in parameters) * (1 if trainer.reference is None else 2)
    for p in parameters:
        if p.requires_grad:
            held += p.nbytes + 8 * p.numel()  # gradient, and AdamW's two moments in float32
            held += 0 if p.dtype == torch.float32 else 8 * p.numel()  # master and its gradient
    vocabulary = model.get_input_embeddings().weight.shape[0]
    chunk = 8 * chunk_positions(vocabulary) * vocabulary  # two float32 arrays
    return StepMemory(held + chunk + rest, per_token)


def _pass_bytes(trainer: LocalTrainer, num_tokens: int) -> int:
    """Peak of one pass that trains one token, so that logits and weights' gradients add little
    that depends on the number of tokens."""
    parameters = [p for p in trainer.model.parameters() if p.requires_grad]
    device = parameters[0].device
    mask = (*(False,) * (num_tokens - 1), True)
    sample = Sample((1,) * num_tokens, mask, (0.0,) * num_tokens, 1.0, "", 0)
    (plan,) = trainer.packs([sample])
    batch = collate([sample], plan, trainer.algo.loss, device)
    before = [p.grad for p in parameters]
    for p in parameters:
        p.grad = torch.zeros_like(p)  # as in a step, where they outlive the passes

    def work() -> None:
        logprobs, _ = score(trainer.model, batch, trainer.temperature, trainer.ways)
        logprobs.sum().backward()  # type: ignore[no-untyped-call]

    try:
        return peak_bytes(work, device)
    finally:
        for p, grad in zip(parameters, before, strict=True):
            p.grad = grad
