"""The local trainer: packs samples, accumulates gradients over packs, takes one optimizer step."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frontrunner.algo.mismatch import mismatch
from frontrunner.algo.packing import Pack, pack, pad
from frontrunner.config import AlgoSection, TrainSection
from frontrunner.errors import UserError
from frontrunner.train import checkpoint
from frontrunner.train.batch import Batch, collate
from frontrunner.train.loss import kl_estimate, kl_loss, policy_loss
from frontrunner.train.score import examine, score
from frontrunner.types import Sample, TrainStep

TOKENS_PER_ROLLOUT = 64.0
"""Fixed unit of the token-sum loss; with Adam it only sets what `max_grad_norm` means."""


def without_dropout(model: Any) -> None:
    """The trainer must compute the distribution that the engine sampled from."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0


def optimizer_of(masters: Sequence[Tensor], train: TrainSection) -> torch.optim.Optimizer:
    """The optimizer that a recipe asks for, over float32 weights."""
    rate, decay = train.learning_rate, train.weight_decay
    if train.optimizer == "sgd":
        return torch.optim.SGD(masters, lr=rate, weight_decay=decay)
    return torch.optim.AdamW(
        masters,
        lr=rate,
        betas=(0.9, 0.95),
        weight_decay=decay,
        fused=True,  # one pass over memory instead of ten
    )


class LocalTrainer:
    """Implements `protocols.Trainer` for any Hugging Face causal language model.

    The optimizer keeps float32 master weights; a bfloat16 model is a rounded copy of them.
    """

    def __init__(
        self,
        model: Any,
        algo: AlgoSection,
        train: TrainSection,
        temperature: float,
        tokenizer: Any = None,
    ) -> None:
        without_dropout(model.train())
        self.model, self.tokenizer = model, tokenizer
        self.algo, self.config, self.temperature = algo, train, temperature
        self.step = 0
        self.ways = examine(model)
        if train.gradient_checkpointing:
            model.activation_checkpointing_enable()
        self.reference = copy.deepcopy(model).eval() if algo.kl_coef > 0 else None
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._masters = [
            p if p.dtype == torch.float32 else p.detach().float().requires_grad_()
            for p in self._parameters
        ]
        self.optimizer = optimizer_of(self._masters, train)

    def train_step(self, samples: Sequence[Sample]) -> TrainStep:
        """One optimizer step on all samples; the metrics describe the policy before the step.

        Raises `UserError` when there is nothing to learn from, or when loss or gradient is not
        finite; the weights are then as before.
        """
        if not samples:
            raise UserError(
                f"step {self.step + 1}: no rollout could be graded (see the reasons in "
                "rollouts.jsonl); put the sandbox right and continue with --resume"
            )
        if not any(any(s.loss_mask[1:]) for s in samples):
            raise UserError(
                f"step {self.step + 1}: no sampled token had an alternative, so there is nothing "
                "to learn; start a new run with larger rollout.top_k and rollout.top_p, and a "
                "smaller rollout.min_p"
            )
        device = self._parameters[0].device
        constant = self._constant(samples)
        totals: dict[str, float] = {"loss": 0.0}
        kl_terms: list[float] = []
        entropies: dict[str, list[float]] = {}
        pairs: tuple[list[float], list[float]] = ([], [])
        tokens = 0
        for micro in self.packs(samples):
            batch = collate(samples, micro, self.algo.loss, device)
            tokens += micro.num_tokens
            if not len(batch.targets):
                continue
            logprobs, entropy = score(self.model, batch, self.temperature, self.ways)
            loss = policy_loss(
                logprobs, batch.logprobs, batch.advantages, batch.weights, self.algo.is_cap
            )
            if self.reference is not None:
                reference = self._reference_logprobs(batch)
                penalty = kl_loss(
                    logprobs, batch.logprobs, reference, batch.weights, self.algo.is_cap
                )
                loss = loss + self.algo.kl_coef * penalty
                kl_terms.extend(kl_estimate(logprobs.detach(), reference).tolist())
            (loss / constant).backward()  # type: ignore[no-untyped-call]
            self._gather_gradients()
            totals["loss"] += float(loss.detach()) / constant
            pairs[0].extend(batch.logprobs.tolist())
            pairs[1].extend(logprobs.detach().tolist())
            _by_effort(entropies, batch, entropy)
        totals["grad_norm"] = self._update()
        totals["computed_tokens"] = float(tokens)
        totals["sample_tokens"] = float(sum(len(s.token_ids) for s in samples))
        totals["entropy"] = float(np.mean([e for v in entropies.values() for e in v]))
        if kl_terms:
            totals["kl_reference"] = float(np.mean(kl_terms))
        metrics = {f"train/{k}": v for k, v in totals.items()}
        metrics |= mismatch(*pairs, cap=self.algo.is_cap).metrics()
        metrics |= {f"effort/{e}/entropy": float(np.mean(v)) for e, v in entropies.items()}
        return TrainStep(self.step, self.step, metrics)

    def _constant(self, samples: Sequence[Sample]) -> float:
        """The normaliser: a constant per rollout, whatever the lengths, so that the gradient's
        scale does not drift as rollouts get shorter."""
        per_rollout = 1.0 if self.algo.loss == "sequence_mean" else TOKENS_PER_ROLLOUT
        return len(samples) * per_rollout

    def packs(self, samples: Sequence[Sample]) -> list[Pack]:
        """Forward passes over all samples, as the model allows."""
        if self.ways.packing:
            return pack([s.token_ids for s in samples], self.config.micro_tokens)
        return pad([len(s.token_ids) for s in samples], self.config.micro_tokens)

    @torch.no_grad()
    def _reference_logprobs(self, batch: Batch) -> Tensor:
        return score(self.reference, batch, self.temperature, self.ways)[0]

    def _update(self) -> float:
        """Clip, step, and copy the masters back; returns the gradient norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self._masters, self.config.max_grad_norm)
        if not bool(torch.isfinite(norm)):
            self.optimizer.zero_grad(set_to_none=True)
            raise UserError(
                f"step {self.step + 1}: the gradient is not finite; continue from the last "
                "checkpoint with a lower train.learning_rate (a new run with model.path set to it)"
            )
        warm = min(1.0, (self.step + 1) / max(1, self.config.warmup_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * warm
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for parameter, master in zip(self._parameters, self._masters, strict=True):
                if master is not parameter:
                    parameter.copy_(master)
        self.step += 1
        return float(norm)

    def _gather_gradients(self) -> None:
        """Add low-precision gradients to the float32 masters after every micro-batch: sums over
        micro-batches would lose small terms in bfloat16."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is parameter or parameter.grad is None:
                continue
            if master.grad is None:
                master.grad = parameter.grad.float()
            else:
                master.grad += parameter.grad
            parameter.grad = None

    def weights(self) -> dict[str, Tensor]:
        """A copy of the current weights, safe to hand to an engine while training goes on."""
        return {k: v.detach().clone() for k, v in self.model.state_dict().items()}

    def save(self, directory: Path, notes: Mapping[str, Any] | None = None) -> None:
        """Write the state so that a kill at any instant leaves either all of it or nothing.

        `notes` is state that is not the trainer's; `checkpoint.read_notes` gives it back.
        """
        checkpoint.save(
            directory, self.model, self.tokenizer, self._masters, self.optimizer, self.step, notes
        )

    def restore(self, directory: Path) -> None:
        """Continue from a saved state; `UserError` if it is damaged or of another model."""
        self.step = checkpoint.restore(directory, self.model, self._masters, self.optimizer)


def _by_effort(entropies: dict[str, list[float]], batch: Batch, entropy: Tensor) -> None:
    """Sort entropies `[N]` by the effort of their sample."""
    values, start = entropy.tolist(), 0
    for effort, count in batch.efforts:
        entropies.setdefault(effort, []).extend(values[start : start + count])
        start += count
