"""The run directory: what is written, when it counts, and how a killed run continues."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from frontrunner.config import Config, build, config_hash, read_tree
from frontrunner.errors import UserError
from frontrunner.types import Rollout, dump, load

PACKAGES = ("frontrunner", "torch", "transformers", "tokenizers", "numpy")


def write_atomically(path: Path, text: str) -> None:
    """The file is either the old one or the new one, whatever happens in between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written ({error.strerror}); free some space") from error


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """A JSON object that holds `keys`. Raises `UserError` if it is missing or anything else."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        tree = json.loads(path.read_bytes())
    except ValueError:  # no JSON, or no text
        tree = None
    if not isinstance(tree, dict) or not tree.keys() >= set(keys):
        wanted = f" with {', '.join(keys)}" if keys else ""
        raise UserError(
            f"{path}: damaged, a JSON object{wanted} was expected; put it back from a copy, or "
            "delete the run and start it again"
        )
    return tree


_FREE_OF_BASE = (
    "eval.base_run", "eval.every", "rollout.groups", "rollout.group_size", "env.workers"
)  # fmt: skip
"""Settings that do not change what a base measurement says."""


class RolloutFile:
    """Rollouts as JSON lines. Appends are flushed to disk; a torn last line is cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Rollout]:
        """All rollouts; a last line without its end, as a kill leaves it, is no rollout yet."""
        rollouts: list[Rollout] = []
        lines = self._lines()
        for number, line in enumerate(lines, 1):
            try:
                rollouts.append(load(Rollout, line))
            except ValueError:
                if number == len(lines) and not line.endswith(b"\n"):
                    break
                raise UserError(
                    f"{self.path}, line {number}: not a rollout; the file was changed by hand, "
                    "delete it to have it made again"
                ) from None
        return rollouts

    def keep(self, how_many: Callable[[int], int]) -> int:
        """Cut the file to its first `how_many(number of complete lines)` lines; returns that."""
        lines = self._lines()
        whole = [line for line in lines if line.endswith(b"\n")]
        number = min(how_many(len(whole)), len(whole))
        if number < len(lines):
            try:
                text = b"".join(whole[:number]).decode()
            except UnicodeDecodeError:
                raise UserError(
                    f"{self.path}: not a file of rollouts; delete it to have it made again"
                ) from None
            write_atomically(self.path, text)
        return number

    def _lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []

    def append(self, rollouts: Sequence[Rollout]) -> None:
        text = "".join(dump(r) + "\n" for r in rollouts)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be written ({error.strerror}); free some space and continue "
                "with --resume"
            ) from error


@dataclass
class RunDirectory:
    """A run on disk. `config.json` marks it; nothing is written into a folder that holds
    anything else."""

    path: Path
    _earlier_seconds: float
    _start: float
    _lock: TextIO

    @classmethod
    def check(cls, path: Path, config: Config, *, resume: bool) -> None:
        """Raises `UserError` if a run cannot start or continue there; writes nothing."""
        marker = path / "config.json"
        if resume:
            if not marker.is_file():
                raise UserError(f"{path}: no run to resume there (config.json is missing)")
            check_same(build(read_tree(marker), str(marker)), config, path)
        elif path.exists() and not cls._fresh(path):
            raise UserError(
                f"{path}: already there; continue it with --resume {path}, or choose another "
                "folder with run.directory=PATH"
            )

    @classmethod
    def open(
        cls, path: Path, config: Config, inputs: dict[str, str], *, resume: bool
    ) -> RunDirectory:
        """Start a run in an empty folder, or continue one with the same settings and inputs.

        `inputs` are digests of what the config only names: model, tasks, prices. The folder is
        locked while this process lives.
        """
        cls.check(path, config, resume=resume)
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise UserError(f"{path}: another process is working on this run") from None
        if resume:
            known = read_json(path / "run.json", "inputs", "wall_seconds")
            changed = [k for k, v in inputs.items() if known["inputs"].get(k) != v]
            if changed:
                lock.close()
                raise UserError(
                    f"{path}: {', '.join(changed)} changed since the run was started; put it back "
                    "or start a new run"
                )
            return cls(path, float(known["wall_seconds"]), time.monotonic(), lock)
        run = cls(path, 0.0, time.monotonic(), lock)
        run.touch(config_hash=config_hash(config), inputs=inputs)
        # last: a folder counts as a run once it has its config
        run.write_json("config.json", config.model_dump(mode="json"))
        return run

    def close(self) -> None:
        """Let other processes have the run."""
        self._lock.close()

    @staticmethod
    def _fresh(path: Path) -> bool:
        """Nothing is lost by starting here; a start killed before config.json left traces only."""
        traces = ("run.json", ".run.json.", ".config.json.", ".lock")
        return path.is_dir() and all(p.name.startswith(traces) for p in path.iterdir())

    @property
    def wall_seconds(self) -> float:
        """Seconds spent on this run, over all its attempts."""
        return self._earlier_seconds + time.monotonic() - self._start

    @property
    def inputs(self) -> dict[str, str]:
        """Digests of what the config only names."""
        known: dict[str, str] = read_json(self.path / "run.json", "inputs")["inputs"]
        return known

    def write_json(self, name: str, tree: Any) -> None:
        write_atomically(self.path / name, json.dumps(tree, indent=1) + "\n")

    def take_base(self, other: Path, config: Config) -> None:
        """Copy another run's base measurement and fitted lambdas, if it measured the same thing."""
        theirs = build(read_tree(other / "config.json"), str(other / "config.json"))
        for section in ("model", "effort", "cost", "env", "engine", "rollout", "eval"):
            a = theirs.model_dump(mode="json")[section]
            b = config.model_dump(mode="json")[section]
            for key in a:
                if a[key] != b[key] and f"{section}.{key}" not in _FREE_OF_BASE:
                    raise UserError(
                        f"eval.base_run = {other}: {section}.{key} was {a[key]!r} there and is "
                        f"{b[key]!r} here, so its base measurement does not hold"
                    )
        if read_json(other / "run.json", "inputs")["inputs"] != self.inputs:
            raise UserError(
                f"eval.base_run = {other}: model, tasks or prices changed since it was measured"
            )
        for name in ("eval/base.jsonl", "lambdas.json"):
            if not (other / name).is_file() and name == "eval/base.jsonl":
                raise UserError(f"{other / name}: missing; finish that run's base measurement")
            if (other / name).is_file() and not (self.path / name).is_file():
                write_atomically(self.path / name, (other / name).read_text())

    def touch(self, **facts: Any) -> None:
        """Note the time spent so far, and what the run was made with."""
        path = self.path / "run.json"
        known = json.loads(path.read_text()) if path.is_file() else {}
        self.write_json(
            "run.json", {**machine(), **known, **facts, "wall_seconds": self.wall_seconds}
        )


def machine() -> dict[str, Any]:
    """What results depend on besides the config."""
    return {
        "versions": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def check_same(old: Config, new: Config, path: Path) -> None:
    """Raises `UserError` naming the settings that differ between a run and its resumption."""
    a, b = old.model_dump(mode="json"), new.model_dump(mode="json")
    differing = [
        f"{section}.{key} ({a[section][key]!r} -> {b[section][key]!r})"
        for section in a
        for key in a[section]
        if a[section][key] != b[section][key] and (section, key) != ("run", "directory")
    ]
    if differing:
        raise UserError(
            f"{path}: the run was started with other settings: {', '.join(differing)}; "
            "resume it as it was, or start a new run"
        )
