"""Steps of TRL's GRPO trainer on given samples, for `bench_train_step.py`, in its own environment.

The samples enter where TRL lets a rollout function hand in its own, so that everything after
sampling is TRL's. Time spent before the first pass of a step (collation, rewards, logging) is
taken off.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MARK = "@@"


def say(**message: Any) -> None:
    print(MARK + json.dumps(message), flush=True)


def rollouts_of(samples: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Samples in TRL's terms: everything from the first trained token on is the completion."""
    out: dict[str, list[Any]] = {
        key: [] for key in ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    }
    for s in samples:
        cut = s["loss_mask"].index(True)
        out["prompt_ids"].append(s["token_ids"][:cut])
        out["completion_ids"].append(s["token_ids"][cut:])
        out["logprobs"].append(s["logprobs"][cut:])
        out["env_mask"].append([int(m) for m in s["loss_mask"][cut:]])
    return out


class Timed(GRPOTrainer):
    """GRPO with the time outside its passes noted."""

    aside = 0.0

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        start = time.perf_counter()
        made = super()._generate_and_score_completions(inputs)
        self.aside += time.perf_counter() - start
        return made


class Turns(TrainerCallback):
    """Waits for a line before every step, and answers with its seconds."""

    def __init__(self) -> None:
        self.trainer: Timed | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if sys.stdin.readline().strip() == "end":
            control.should_training_stop = True
            raise EOFError
        assert self.trainer is not None
        self.trainer.aside = 0.0
        self.start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.trainer is not None
        say(seconds=time.perf_counter() - self.start - self.trainer.aside)


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(spec["threads"])
    rollouts = rollouts_of(spec["samples"])
    count = len(spec["samples"])
    longest = max(len(c) for c in rollouts["completion_ids"])
    width = max(len(p) for p in rollouts["prompt_ids"]) + longest
    fitting = max(1, spec["micro_tokens"] // width)
    rows = max(n for n in range(1, fitting + 1) if count % n == 0)
    config = GRPOConfig(
        output_dir=spec["folder"],
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=count // rows,
        num_generations=spec["group_size"],
        max_completion_length=longest,
        max_steps=10**6,
        learning_rate=spec["learning_rate"],
        beta=0.0,
        loss_type="dr_grpo",
        scale_rewards="none",
        bf16=spec["peer_autocasts"],
        use_cpu=True,
        gradient_checkpointing=spec["checkpointing"],
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
    )
    held = "float32" if spec["peer_autocasts"] else spec["dtype"]
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=getattr(torch, held))
    turns = Turns()
    trainer = Timed(
        model=model,
        args=config,
        reward_funcs=lambda completions, **_: [float(n % 3) for n in range(len(completions))],
        train_dataset=Dataset.from_dict({"prompt": ["x"] * (count // spec["group_size"])}),
        processing_class=AutoTokenizer.from_pretrained(spec["model"]),
        callbacks=[turns],
        rollout_func=lambda prompts, trainer: dict(rollouts),
    )
    turns.trainer = trainer
    say(ready=True)
    try:
        trainer.train()
    except EOFError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        say(peak_rss=peak, computed_tokens=count * width)


if __name__ == "__main__":
    main()
