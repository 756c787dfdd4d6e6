"""A server for the policy of a config: model, engine and chat format wired together."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from frontrunner.config import Config
from frontrunner.effort.ladder import Ladder
from frontrunner.engine.engine import LocalEngine
from frontrunner.engine.server.app import Server
from frontrunner.engine.server.prompts import Prompter
from frontrunner.engine.server.worker import EngineWorker
from frontrunner.envs.chat import ChatFormat
from frontrunner.errors import UserError
from frontrunner.train.model import load_policy


def open_server(config: Config, *, max_queue: int) -> Server:
    """Load everything; raises `UserError` for what is missing."""
    torch.set_num_threads(config.run.threads or os.cpu_count() or 1)
    if config.model.device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"model.device = {config.model.device!r}, but torch sees no GPU here")
    if max_queue < 0:
        raise UserError("--max-queue must not be negative")
    policy = load_policy(config.model.path, config.model.dtype, config.model.device)
    chat = ChatFormat(policy.tokenizer)
    engine = LocalEngine(
        policy.model,
        max_batch=config.engine.max_batch,
        max_context=config.engine.max_context,
        prefill_tokens=config.engine.prefill_tokens,
        kv_bytes=config.engine.kv_mib << 20,
        decode_text=lambda ids: chat.decode(tuple(ids)),
    )
    effort = config.effort
    prompter = Prompter(
        name=Path(config.model.path).name,
        chat=chat,
        ladder=Ladder.build(effort.levels, effort.prompts),
        max_context=config.engine.max_context,
        vocab_size=policy.model.config.vocab_size,
    )
    return Server(EngineWorker(engine, max_queue), prompter)
