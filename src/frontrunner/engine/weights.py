"""New weights for a running engine: everything is checked before anything is changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from frontrunner.errors import UserError


def read(folder: Path, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model folder, on the CPU.

    A weight that `own` ties to another is stored once and gets all its names back here. Raises
    `UserError` when there is nothing to read.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder}: no .safetensors file there that this machine can read")
    state: dict[str, Tensor] = {}
    try:
        for file in files:
            state |= load_file(file)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{folder}: the weights cannot be read ({error})") from None
    stored = {(own[n].data_ptr(), own[n].shape): t for n, t in state.items() if n in own}
    for name, tensor in own.items():
        tied = stored.get((tensor.data_ptr(), tensor.shape))
        if name not in state and tied is not None:
            state[name] = tied
    return state


def checksum(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and values, whatever the order and the device."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check(own: Mapping[str, Tensor], state: Mapping[str, Tensor], expected: str = "") -> None:
    """Raises `ValueError` unless `state` can replace `own` as a whole.

    Names and shapes must agree, tied weights must still be equal to each other, and `expected`, if
    given, must be the checksum of `state`.
    """
    if own.keys() != state.keys():
        odd = sorted(own.keys() ^ state.keys())[:3]
        raise ValueError(f"weight names differ: {', '.join(odd)}")
    first: dict[tuple[int, torch.Size], str] = {}
    for name, value in state.items():
        if own[name].shape != value.shape:
            raise ValueError(f"{name}: shape {tuple(value.shape)} != {tuple(own[name].shape)}")
        alias = first.setdefault((own[name].data_ptr(), own[name].shape), name)
        if alias != name and not torch.equal(state[alias], value):
            raise ValueError(f"{name} and {alias} are one weight here, but differ in the update")
    if expected and checksum(state) != expected:
        raise ValueError("the checksum of the weights is not the expected one: nothing was loaded")


@torch.no_grad()
def load(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Copy in place, so that every view of a weight sees the new values."""
    for name, value in state.items():
        own[name].copy_(value)
