"""A server in a process of its own, on a tiny random model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from project_tree import ROOT

from frontrunner.testing import byte_tokenizer, tiny_model

SETTINGS = ("engine.max_batch=4", "engine.max_context=256", "run.threads=1")


def write_model(folder: Path, seed: int = 0) -> Path:
    """A model folder, as a trainer leaves it."""
    tiny_model(seed=seed).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@contextmanager
def serving(model: Path, *arguments: str) -> Iterator[str]:
    """The address of a running `frontrunner serve`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "frontrunner.cli.main", "serve", str(model), "--port", "0"]
    process = subprocess.Popen(
        [*command, *SETTINGS, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout
        line = process.stdout.readline()
        assert " at http://" in line, f"the server did not start: {line!r}"
        yield line.split(" at ")[1].strip().removesuffix("/v1")
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0


def send(address: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and JSON answer; POST if there is a body (bytes are sent as they are)."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(address + path, data), timeout=60) as r:
            text = r.read().decode()
            return r.status, json.loads(text) if text.startswith(("{", "[")) else text
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def metric(address: str, name: str) -> float:
    """One sample of /metrics."""
    _, text = send(address, "/metrics")
    return float(next(x for x in text.splitlines() if x.startswith(name + " ")).split()[1])
