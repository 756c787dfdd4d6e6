"""Checkpoints that are whole or absent: written beside, digested, then renamed into place.

A checkpoint is a Hugging Face model folder (so any tool can load it) with `optimizer.pt`, and
`state.json`, which holds the digests of both files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from frontrunner.errors import UserError


def digest(*files: Path) -> str:
    """SHA-256 over the contents of files, in order, shortened."""
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:16]


def save(
    directory: Path,
    model: Any,
    tokenizer: Any,
    masters: Sequence[Tensor],
    optimizer: Any,
    step: int,
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Write model, tokenizer, optimizer, step number and notes to `directory`, atomically."""
    partial = directory.with_name(f".{directory.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        save_model(model, tokenizer, partial)
        full = next(model.parameters()).dtype == torch.float32  # the model is its own master
        state = {
            "optimizer": optimizer.state_dict(),
            "masters": None if full else [m.detach() for m in masters],
        }
        with (partial / "optimizer.pt").open("wb") as handle:  # a full disk is then an OSError
            torch.save(state, handle)
        files = ["optimizer.pt", *(p.name for p in partial.glob("*.safetensors"))]
        digests = {name: digest(partial / name) for name in files}
        facts = {"step": step, "sha256": digests, "notes": dict(notes or {})}
        (partial / "state.json").write_text(json.dumps(facts))
        for file in partial.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(
            f"{directory}: the checkpoint cannot be written ({error.strerror}); "
            "free some space and continue with --resume; nothing before it is lost"
        ) from error


def save_model(model: Any, tokenizer: Any, directory: Path) -> None:
    """Write a Hugging Face model folder; a full disk is an `OSError` like any other."""
    try:
        model.save_pretrained(directory)
        if tokenizer is not None:
            tokenizer.save_pretrained(directory)
    except SafetensorError as error:
        raise OSError(errno.ENOSPC, str(error), str(directory)) from error


def restore(directory: Path, model: Any, masters: Sequence[Tensor], optimizer: Any) -> int:
    """Load a checkpoint in place; returns its step number."""
    verify(directory)
    facts = json.loads((directory / "state.json").read_text())
    tensors: dict[str, Tensor] = {}
    for name in facts["sha256"]:
        if name.endswith(".safetensors"):
            tensors |= load_file(directory / name)
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    own = model.state_dict()
    same_names = tensors.keys() <= own.keys() and own.keys() - tensors.keys() <= tied
    if not same_names or any(own[k].shape != v.shape for k, v in tensors.items()):
        raise UserError(f"{directory}: the checkpoint is of another model than model.path")
    model.load_state_dict(tensors, strict=False)
    state = torch.load(directory / "optimizer.pt", weights_only=True)
    optimizer.load_state_dict(state["optimizer"])
    if state["masters"] is not None:
        with torch.no_grad():
            for master, saved in zip(masters, state["masters"], strict=True):
                master.copy_(saved)
    return int(facts["step"])


def read_notes(directory: Path) -> dict[str, Any]:
    """What the caller of `save` wanted to find again; empty in checkpoints without notes."""
    notes: dict[str, Any] = json.loads((directory / "state.json").read_text()).get("notes", {})
    return notes


def verify(directory: Path) -> None:
    """Raises `UserError` if a file of the checkpoint is missing or damaged."""
    try:
        facts = json.loads((directory / "state.json").read_text())
        damaged = [n for n, d in facts["sha256"].items() if digest(directory / n) != d]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{directory}: not a complete checkpoint ({error}); delete the folder to resume from "
            "an older one"
        ) from None
    if damaged:
        raise UserError(
            f"{directory / damaged[0]}: the file is truncated or changed; delete {directory} to "
            "resume from an older checkpoint"
        )


def latest(folder: Path) -> Path | None:
    """The newest checkpoint in a run's folder, or None."""
    found = sorted(folder.glob("step-*"), key=lambda p: int(p.name.split("-")[1]))
    return found[-1] if found else None


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints, and leftovers of killed writers."""
    found = sorted(folder.glob("step-*"), key=lambda p: int(p.name.split("-")[1]))
    for old in [*found[:-keep], *folder.glob(".step-*")]:
        shutil.rmtree(old, ignore_errors=True)
