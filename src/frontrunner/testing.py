"""For tests, ours and yours: tiny random models, a byte tokenizer, and an engine that replays text.

model = tiny_model("llama")
chat = ChatFormat(byte_tokenizer())
engine = ScriptedEngine(chat, lambda prompt: "submit")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from frontrunner.envs.chat import ChatFormat
from frontrunner.protocols import GenerateRequest, GenerateResult
from frontrunner.train.sft import CHAT_TEMPLATE

FAMILIES = ("llama", "qwen2", "qwen3", "smollm3")


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, plus the ChatML markers; no vocabulary file needed."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocab = {token: number for number, token in enumerate(special + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_model(family: str = "llama", vocab_size: int = 259, seed: int = 0, **config: Any) -> Any:
    """A random float32 model of a Hugging Face family with a few thousand parameters."""
    settings = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 2048,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **config,
    }
    torch.manual_seed(seed)
    architecture = AutoConfig.for_model(family, **settings)
    model: Any = AutoModelForCausalLM.from_config(architecture)  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)  # logits far from uniform: errors show
    return model.float().eval()


class ScriptedEngine:
    """An `Engine` whose policy is a function from the prompt's text to the answer's text."""

    def __init__(
        self, chat: ChatFormat, policy: Callable[[str], str], max_context: int = 4096
    ) -> None:
        self.chat, self.policy = chat, policy
        self.version = 0
        self.max_context = max_context
        self._queue: list[GenerateRequest] = []

    @property
    def num_pending(self) -> int:
        return len(self._queue)

    def submit(self, request: GenerateRequest) -> None:
        self._queue.append(request)

    def step(self) -> list[GenerateResult]:
        results = []
        for request in self._queue:
            prompt = self.chat.tokenizer.decode(list(request.token_ids))
            ids = tuple(self.chat.answer(self.policy(prompt)))[: request.max_new_tokens]
            finish = "stop" if ids[-1] in request.stop_token_ids else "length"
            results.append(
                GenerateResult(request.request_id, ids, (0.0,) * len(ids), self.version, finish)
            )
        self._queue = []
        return results

    def load_weights(self, state: dict[str, Any], version: int) -> None:
        self.version = version

    def forget(self) -> None:
        """Nothing is cached here."""
