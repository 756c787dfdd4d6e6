"""The local trainer: packs samples, accumulates gradients over micro-batches, takes one step."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frontrunner.algo.mismatch import mismatch
from frontrunner.algo.packing import pack
from frontrunner.config import AlgoSection, TrainSection
from frontrunner.train import checkpoint
from frontrunner.train.batch import Batch, collate, token_logits
from frontrunner.train.loss import kl_loss, policy_loss, token_logprobs
from frontrunner.types import Sample, TrainStep


class LocalTrainer:
    """Implements `protocols.Trainer` for any Hugging Face causal language model.

    The optimizer (AdamW) keeps float32 master weights; a bfloat16 model is a rounded copy of them.
    """

    def __init__(
        self, model: Any, algo: AlgoSection, train: TrainSection, temperature: float
    ) -> None:
        self.model = model.train()
        self.algo, self.config, self.temperature = algo, train, temperature
        self.step = 0
        if train.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        self.reference = copy.deepcopy(model).eval() if algo.kl_coef > 0 else None
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._masters = [
            p if p.dtype == torch.float32 else p.detach().float().requires_grad_()
            for p in self._parameters
        ]
        self.optimizer = torch.optim.AdamW(
            self._masters,
            lr=train.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=train.weight_decay,
        )

    def train_step(self, samples: Sequence[Sample]) -> TrainStep:
        """One optimizer step on all samples; the metrics describe the policy before the step."""
        device = self._parameters[0].device
        constant = self._constant(samples)
        totals: dict[str, float] = {"loss": 0.0, "kl_reference": 0.0}
        entropies: dict[str, list[float]] = {}
        pairs: tuple[list[float], list[float]] = ([], [])
        tokens = 0
        for micro in pack([len(s.token_ids) for s in samples], self.config.micro_tokens):
            batch = collate(samples, micro, self.algo.loss, device)
            tokens += micro.num_tokens
            if not len(batch.targets):
                continue
            logprobs, entropy = token_logprobs(
                token_logits(self.model, batch), batch.targets, self.temperature
            )
            loss = policy_loss(
                logprobs, batch.logprobs, batch.advantages, batch.weights, self.algo.is_cap
            )
            if self.reference is not None:
                penalty = kl_loss(logprobs, self._reference_logprobs(batch), batch.weights)
                totals["kl_reference"] += float(penalty.detach()) / constant
                loss = loss + self.algo.kl_coef * penalty
            (loss / constant).backward()  # type: ignore[no-untyped-call]
            totals["loss"] += float(loss.detach()) / constant
            pairs[0].extend(batch.logprobs.tolist())
            pairs[1].extend(logprobs.detach().tolist())
            self._note_entropy(entropies, samples, micro.rows, entropy)
        totals["grad_norm"] = self._update()
        totals["num_tokens"] = float(tokens)
        totals["entropy"] = float(np.mean([e for v in entropies.values() for e in v]))
        metrics = {f"train/{k}": v for k, v in totals.items() if k != "kl_reference"}
        if self.reference is not None:
            metrics["train/kl_reference"] = totals["kl_reference"]
        metrics |= mismatch(*pairs, cap=self.algo.is_cap).metrics()
        metrics |= {f"effort/{e}/entropy": float(np.mean(v)) for e, v in entropies.items()}
        return TrainStep(self.step, self.step, metrics)

    def _constant(self, samples: Sequence[Sample]) -> float:
        """One normaliser for the whole step: it scales all rollouts alike."""
        if self.algo.loss == "sequence_mean":
            return float(max(1, len(samples)))
        return float(max(1, sum(sum(s.loss_mask) for s in samples)))

    def _note_entropy(
        self,
        entropies: dict[str, list[float]],
        samples: Sequence[Sample],
        rows: tuple[tuple[int, ...], ...],
        entropy: Tensor,
    ) -> None:
        """Sort per-token entropies by the effort of their sample; `collate` kept row order."""
        values, at = entropy.tolist(), 0
        for index in (i for row in rows for i in row):
            count = sum(samples[index].loss_mask[1:])
            entropies.setdefault(samples[index].effort, []).extend(values[at : at + count])
            at += count

    @torch.no_grad()
    def _reference_logprobs(self, batch: Batch) -> Tensor:
        logits = token_logits(self.reference, batch)
        return token_logprobs(logits, batch.targets, self.temperature)[0]

    def _update(self) -> float:
        """Clip, step, and copy the masters back; returns the gradient norm before clipping."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter and parameter.grad is not None:
                master.grad = parameter.grad.float()
                parameter.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self._masters, self.config.max_grad_norm)
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

    def weights(self) -> dict[str, Tensor]:
        """A copy of the current weights, safe to hand to an engine while training goes on."""
        return {k: v.detach().clone() for k, v in self.model.state_dict().items()}

    def save(self, directory: Path) -> None:
        """Write the state so that a kill at any instant leaves either all of it or nothing."""
        checkpoint.save(directory, self.model, self._masters, self.optimizer, self.step)

    def restore(self, directory: Path) -> None:
        """Continue from a saved state; `UserError` if it is damaged or of another model."""
        self.step = checkpoint.restore(directory, self.model, self._masters, self.optimizer)
