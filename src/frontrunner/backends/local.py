"""Everything on one machine: the policy, its engine and trainer, the sandbox and the verifier."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from frontrunner.config import Config
from frontrunner.effort.price import price_table_hash
from frontrunner.engine.engine import LocalEngine
from frontrunner.envs import taskset
from frontrunner.envs.chat import ChatFormat
from frontrunner.envs.sandbox import LocalSandbox
from frontrunner.envs.taskset import TaskSet
from frontrunner.errors import UserError
from frontrunner.train.checkpoint import digest
from frontrunner.train.model import Policy, load_policy, resolve
from frontrunner.train.trainer import LocalTrainer
from frontrunner.verify.grader import TestGrader


@dataclass(frozen=True, slots=True)
class LocalSystem:
    """The parts of a run, wired together."""

    policy: Policy
    chat: ChatFormat
    tasks: TaskSet
    engine: LocalEngine
    trainer: LocalTrainer
    sandbox: LocalSandbox
    verifier: TestGrader
    inputs: dict[str, str]
    """Digests of what the config only names: model, tasks, prices."""


@contextmanager
def open_system(config: Config) -> Iterator[LocalSystem]:
    """Build the parts in order of what most often is missing, and close the sandbox at the end."""
    cores = os.cpu_count() or 1
    torch.set_num_threads(config.run.threads or cores)
    torch.manual_seed(config.run.seed)
    tasks = taskset.load(config.env.tasks)
    if config.model.device != "cpu" and not torch.cuda.is_available():
        raise UserError(
            f"model.device = {config.model.device!r}, but torch sees no GPU here; "
            "use model.device = cpu"
        )
    policy = load_policy(config.model.path, config.model.dtype)
    chat = ChatFormat(policy.tokenizer)
    workers = config.env.workers or cores
    with LocalSandbox(tasks.trees(), num_workers=workers) as sandbox:
        device = config.model.device
        engine = LocalEngine(
            copy.deepcopy(policy.model).to(device),
            max_batch=config.engine.max_batch,
            max_context=config.engine.max_context,
            prefill_tokens=config.engine.prefill_tokens,
            kv_bytes=config.engine.kv_mib << 20,
            decode_text=policy.tokenizer.decode,
        )
        trainer = LocalTrainer(
            policy.model.to(device),
            config.algo,
            config.train,
            config.rollout.temperature,
            policy.tokenizer,
        )
        verifier = TestGrader(sandbox, tasks.tree, tasks.base_files)
        inputs = {
            "model": digest(*sorted(resolve(config.model.path).glob("*.safetensors"))),
            "tasks": digest(taskset.manifest_path(config.env.tasks)),
            "prices": price_table_hash(),
        }
        yield LocalSystem(policy, chat, tasks, engine, trainer, sandbox, verifier, inputs)
