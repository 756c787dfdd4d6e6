"""Supervised fine-tuning from scratch: the small base policy and its tokenizer.

Expert trajectories (`envs.expert`) over mutated corpus functions are rendered in the chat format
and trained with next-token cross-entropy, drills first, then work with habits. Answers count fully;
some of what the model reads (code, observations) counts `context_weight`, which teaches it what
ordinary code looks like: a bug is what does not look like it.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from frontrunner.envs import expert
from frontrunner.envs.chat import ChatFormat
from frontrunner.envs.corpus import CorpusFunction, collect
from frontrunner.errors import UserError
from frontrunner.train.model import load_policy, resolve

SAVE_EVERY = 200
"""Steps between saves of a training in progress."""
Example = tuple[list[int], list[bool]]
"""Token ids and answer mask of one trajectory, `[T]` each."""

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class SftConfig:
    """The recipe of the base policy: the defaults are its first pass (see `make base`)."""

    seed: int = 0
    init: str = ""
    """Model folder to continue from, tokenizer included; empty: from scratch."""
    vocab_size: int = 2048
    hidden_size: int = 192
    intermediate_size: int = 512
    num_layers: int = 6
    num_heads: int = 6
    num_kv_heads: int = 2
    max_context: int = 1024
    drills: int = 36_000
    """Trajectories of the first stage: several bugs in one function, no habits."""
    trajectories: int = 15_000
    """Trajectories of the second stage: one bug, worked on at every level."""
    careless: float = 0.0
    """Share of them that is a careless hand's."""
    max_tokens: int = 640
    """Longer trajectories are left out."""
    batch_tokens: int = 4096
    learning_rate: float = 4e-3
    warmup_steps: int = 100
    weight_decay: float = 0.1
    context_weight: float = 0.5
    context_share: float = 0.3
    """Share of the context tokens that are predicted, drawn anew for every batch."""
    prompts: tuple[str, ...] = ("Effort: low", "Effort: medium", "Effort: high")
    packages: tuple[str, ...] = (
        "stdlib", "sympy", "numpy", "scipy", "transformers", "torch", "matplotlib", "pip",
        "setuptools", "rich", "pydantic", "huggingface_hub", "libcst", "jinja2", "pygments",
        "pillow", "fonttools", "hypothesis", "mypy", "tokenizers", "safetensors", "regex",
        "fsspec", "filelock", "pyparsing", "python-dateutil", "typing_extensions", "markdown-it-py",
    )  # fmt: skip
    held_out: tuple[str, ...] = (
        "toolz", "more-itertools", "mpmath", "ecdsa", "hyperlink", "glom", "face", "pyflakes",
        "isodate", "aniso8601", "boltons",
    )  # fmt: skip
    """Packages of the task set: never in the corpus, and neither are copies of their functions."""


def train_tokenizer(texts: Iterator[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with single digits and the ChatML markers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def encode(chat: ChatFormat, prompts: dict[str, str], example: expert.Trajectory) -> Example:
    """Token ids and answer mask of one trajectory, exactly as a rollout would build them."""
    ids = chat.opening(prompts[example.effort], example.user)
    mask = [False] * len(ids)
    for number, turn in enumerate(example.turns):
        answer = chat.answer(turn.text)
        ids += answer
        mask += [turn.learn] * len(answer)
        if number < len(example.turns) - 1:
            more = chat.continuation(turn.observation, closed=True)
            ids += more
            mask += [False] * len(more)
    return ids, mask


_STATE: dict[str, Any] = {}


def _make(seed: int) -> Example | None:
    """One encoded trajectory; a pure function of its seed and the corpus."""
    config, corpus, chat = _STATE["config"], _STATE["corpus"], _STATE["chat"]
    rng = random.Random(seed)
    effort = rng.choice(list(expert.STYLES))
    function: CorpusFunction = rng.choice(corpus)
    style = expert.STYLES[effort]
    if _STATE["drill"]:
        style = expert.DRILL
    elif config.careless > 0.0 and rng.random() < config.careless:
        style = expert.CARELESS[effort]
    example = expert.trajectory(rng, function, effort, style)
    if example is None:
        return None
    ids, mask = encode(chat, _STATE["prompts"], example)
    return (ids, mask) if len(ids) <= config.max_tokens else None


def build_dataset(
    config: SftConfig,
    corpus: Sequence[CorpusFunction],
    chat: ChatFormat,
    number: int,
    drill: bool,
) -> list[Example]:
    """`number` encoded examples, of the drill or of work with habits, made in parallel."""
    prompts = dict(zip(expert.STYLES, config.prompts, strict=True))
    _STATE.update(config=config, corpus=corpus, chat=chat, prompts=prompts, drill=drill)
    examples: list[Example] = []
    first = (2 * config.seed + drill) * 10**9
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for made in pool.imap(_make, range(first, first + 3 * number + 100), chunksize=64):
            examples += [made] if made is not None and len(examples) < number else []
            if len(examples) == number:
                break
        pool.terminate()
    return examples


def batches(examples: Sequence[Example], batch_tokens: int, seed: int) -> list[list[int]]:
    """Indices grouped by similar length, so that padding is small; batch order is shuffled."""
    rng = random.Random(seed)
    order = sorted(range(len(examples)), key=lambda i: (len(examples[i][0]), rng.random()))
    groups: list[list[int]] = []
    current: list[int] = []
    for index in order:
        if current and len(examples[index][0]) * (len(current) + 1) > batch_tokens:
            groups.append(current)
            current = []
        current.append(index)
    groups += [current] if current else []
    rng.shuffle(groups)
    return groups


def _pad(
    examples: Sequence[Example], indices: Sequence[int], context: float, share: float
) -> tuple[Tensor, Tensor]:
    """Right-padded ids `[B, T]` and the loss weight of predicting each next token `[B, T-1]`."""
    width = max(len(examples[i][0]) for i in indices)
    ids = torch.zeros(len(indices), width, dtype=torch.long)
    weight = torch.zeros(len(indices), width)
    chosen = torch.rand(len(indices), width) < share
    for row, index in enumerate(indices):
        tokens, mask = examples[index]
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weight[row, : len(tokens)] = torch.where(
            torch.tensor(mask), 1.0, context * chosen[row, : len(tokens)]
        )
    return ids, weight[:, 1:]


class _Optimizer:
    """Muon for the layers' matrices, AdamW for embeddings and norms, one schedule for both.

    Muon (Jordan et al. 2024) is scaled so that its updates are as large as AdamW's (Liu et al.
    2025), so one learning rate serves.
    """

    def __init__(self, model: LlamaForCausalLM, config: SftConfig, num_steps: int) -> None:
        self.model, self.config, self.num_steps, self.step_number = model, config, num_steps, 0
        named = list(model.named_parameters())
        matrices = [p for name, p in named if ".layers." in name and p.ndim == 2]
        rest = [p for name, p in named if ".layers." not in name or p.ndim < 2]
        rate, decay = config.learning_rate, config.weight_decay
        self.parts = (
            torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=decay),
        )

    def step(self) -> None:
        """Clip, update, and clear the gradients; warm-up, then a cosine down to 5 %."""
        warm = min(1.0, (self.step_number + 1) / self.config.warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * self.step_number / self.num_steps))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = self.config.learning_rate * warm * (0.05 + 0.95 * cosine)
            part.step()  # type: ignore[no-untyped-call]
        self.model.zero_grad(set_to_none=True)
        self.step_number += 1

    def save(self, path: Path, losses: Sequence[float]) -> None:
        """Everything that the next step depends on, written whole or not at all."""
        partial = path.with_suffix(".partial")
        state = {
            "config": repr(self.config),
            "model": self.model.state_dict(),
            "parts": [part.state_dict() for part in self.parts],
            "random": torch.get_rng_state(),
            "losses": list(losses),
        }
        with partial.open("wb") as file:
            torch.save(state, file)
        partial.replace(path)

    def load(self, path: Path) -> list[float]:
        """Continue from `save`; returns the losses so far, one per step."""
        state = torch.load(path, weights_only=True)
        if state["config"] != repr(self.config):
            raise UserError(f"{path}: made with other settings; resume with the same ones")
        self.model.load_state_dict(state["model"])
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)
        torch.set_rng_state(state["random"])
        losses: list[float] = state["losses"]
        self.step_number = len(losses)
        return losses


def fit(
    model: LlamaForCausalLM,
    stages: Sequence[Sequence[Example]],
    config: SftConfig,
    saved: Path,
    say: Callable[[str], None],
) -> list[float]:
    """One pass over the examples, stage after stage; returns the answer-token loss per batch.

    The state is kept in `saved` every few minutes, and training goes on from there.
    """
    todo = [
        (examples, indices)
        for number, examples in enumerate(stages)
        for indices in batches(examples, config.batch_tokens, config.seed + number)
    ]
    optimizer = _Optimizer(model, config, len(todo))
    losses = optimizer.load(saved) if saved.is_file() else []
    start, tokens, first = time.perf_counter(), 0, len(losses)
    for step, (examples, indices) in enumerate(todo[first:], first):
        ids, weight = _pad(examples, indices, config.context_weight, config.context_share)
        hidden = model.model(input_ids=ids[:, :-1]).last_hidden_state
        keep = weight > 0
        logits = model.lm_head(hidden[keep])
        loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:][keep], reduction="none")
        flat = weight[keep]
        (loss @ flat / flat.sum()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()[flat == 1.0].mean()))
        tokens += ids.numel()
        if (step + 1) % SAVE_EVERY == 0:
            optimizer.save(saved, losses)
        if (step + 1) % 50 == 0:
            seconds = time.perf_counter() - start
            rate = tokens / seconds
            left = (len(todo) - step - 1) * seconds / (step + 1 - first) / 60
            recent = sum(losses[-50:]) / 50
            say(
                f"step {step + 1} of {len(todo)}: answer loss {recent:.3f}, "
                f"{rate:,.0f} tokens/s, {left:.0f} min left"
            )
    return losses


def _tokenizer_for(corpus: Sequence[CorpusFunction], config: SftConfig) -> PreTrainedTokenizerFast:
    rng = random.Random(config.seed)
    texts = [f.source for f in rng.sample(corpus, min(20_000, len(corpus)))]
    probe = [expert.trajectory(rng, f, "high", expert.STYLES["high"]) for f in corpus[::20]]
    texts += [
        p.user + "\n" + "\n".join(t.text + "\n" + t.observation for t in p.turns)
        for p in probe
        if p
    ]
    return train_tokenizer(iter(texts), config.vocab_size)


def _fresh_model(config: SftConfig, stop_token_id: int) -> Any:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.hidden_size // config.num_heads,
            max_position_embeddings=config.max_context,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=stop_token_id,
            pad_token_id=0,
        )
    )


def earlier_passes(init: str) -> list[Any]:
    """The passes that made the model folder `init`, as its recipe.json tells; none without one."""
    path = resolve(init) / "recipe.json" if init else None
    if path is None or not path.is_file():
        return []
    try:
        passes = json.loads(path.read_bytes())["passes"]
    except (ValueError, KeyError, TypeError):
        passes = None
    if not isinstance(passes, list):
        raise UserError(
            f"{path}: no list of passes in it, so it is no recipe of `frontrunner sft`; "
            "remove or rename it to continue from this model without its history"
        )
    return passes


def train_base(config: SftConfig, out: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Corpus, tokenizer, data and training; writes a Hugging Face model folder to `out`."""
    torch.manual_seed(config.seed)
    earlier = earlier_passes(config.init)
    say("collecting functions")
    corpus = collect(config.packages, config.held_out)
    say(f"{len(corpus)} distinct functions")
    if config.init:
        policy = load_policy(config.init)
        tokenizer, model = policy.tokenizer, policy.model
        chat = ChatFormat(tokenizer)
    else:
        tokenizer = _tokenizer_for(corpus, config)
        chat = ChatFormat(tokenizer)
        model = _fresh_model(config, chat.stop_token_ids[0])
    model.train()
    stages = [
        build_dataset(config, corpus, chat, config.drills, True),
        build_dataset(config, corpus, chat, config.trajectories, False),
    ]
    num_tokens = [sum(len(ids) for ids, _ in examples) for examples in stages]
    say(f"{num_tokens[0]:,} tokens of drills, {num_tokens[1]:,} of work")
    start = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    saved = out / "training.pt"
    losses = fit(model, stages, config, saved, say)
    model.bfloat16().save_pretrained(out)
    tokenizer.save_pretrained(out)
    summary = {
        "config": asdict(config),
        "num_functions": len(corpus),
        "num_tokens": num_tokens,
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "final_answer_loss": sum(losses[-50:]) / len(losses[-50:]),
        "train_seconds": round(time.perf_counter() - start),
        "torch": torch.__version__,
        "sha256": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
    }
    (out / "recipe.json").write_text(json.dumps({"passes": [*earlier, summary]}, indent=1) + "\n")
    saved.unlink(missing_ok=True)
    return summary
