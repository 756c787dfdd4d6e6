"""One running box, seen from the host: start, ask, kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from frontrunner.envs.box_mounts import Command, Stage

BOX_USER = 61000
"""Host user id (and group id) of a box when the host runs as root; owns nothing."""
_START_SECONDS = 30.0
_ANSWER_BYTES = 64 << 20
_CGROUPS = Path("/sys/fs/cgroup")


class BoxDied(Exception):
    """The box ended, hung or refused; carries what is known about why."""


class Cgroup:
    """Memory and process limits for one box, where this process may make control groups."""

    def __init__(self, name: str, memory_bytes: int, num_processes: int) -> None:
        self._paths: list[Path] = []
        self.kind = "none"
        for kind, parent, values in _layouts(memory_bytes, num_processes):
            path = parent / name
            try:
                path.mkdir()
                self._paths.append(path)
                for file, value in values.items():
                    (path / file).write_text(str(value))
                self.kind = kind
            except OSError:
                self.close()
                self.kind = "none"
                return

    @property
    def procs_files(self) -> list[str]:
        return [str(path / "cgroup.procs") for path in self._paths]

    def close(self) -> None:
        for path in self._paths:
            for _ in range(50):  # a killed process leaves its group a moment later
                try:
                    path.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)
        self._paths.clear()


def _layouts(memory_bytes: int, num_processes: int) -> list[tuple[str, Path, dict[str, int]]]:
    """(version, directory of this process's own group, limits) of each controller needed."""
    found: list[tuple[str, Path, dict[str, int]]] = []
    limits = {
        "memory": {"memory.limit_in_bytes": memory_bytes},
        "pids": {"pids.max": num_processes},
    }
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                parent = _CGROUPS / controller / path.lstrip("/")
                if controller in limits and parent.is_dir():
                    found.append(("v1", parent, limits[controller]))
            parent = _CGROUPS / path.lstrip("/")
            if not controllers and (parent / "cgroup.controllers").exists():
                both = {"memory.max": memory_bytes, "pids.max": num_processes}
                found.append(("v2", parent, both))
    return found


def sweep_cgroups(prefix: str) -> None:
    """Removes empty groups left by processes that were killed (names end in their process id)."""
    for _, parent, _ in _layouts(0, 0):
        for path in parent.glob(f"{prefix}-*"):
            pid = path.name.split("-")[-2]
            if not Path(f"/proc/{pid}").exists():
                with contextlib.suppress(OSError):
                    path.rmdir()


class Box:
    """A bubblewrap box with a zygote inside. Not thread-safe: one request at a time."""

    def __init__(self, stage: Stage, command: Command, cgroup: Cgroup) -> None:
        self._cgroup = cgroup
        ours, theirs = socket.socketpair()
        self._channel = ours
        plan = {
            "argv": [str(stage.bwrap), *command.args],
            "uid": BOX_USER if os.geteuid() == 0 else 0,
            "folder": str(stage.mounts),
            "sources": command.sources,
            "procs_files": cgroup.procs_files,
            "channel": theirs.fileno(),
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", Path(__file__).with_name("box_launch.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._write_plan(json.dumps(plan).encode())
        try:
            self.facts = self._receive(time.monotonic() + _START_SECONDS)
        except BoxDied as error:
            detail = self._stderr()
            self.close()
            raise BoxDied(detail or str(error)) from error

    def _write_plan(self, plan: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stream:
            stream.write(plan)

    def ask(self, request: dict[str, Any], patience: float) -> dict[str, Any]:
        """The box's answer; raises `BoxDied` when there is none within `patience` seconds."""
        body = json.dumps(request).encode()
        deadline = time.monotonic() + patience
        try:
            self._channel.settimeout(patience)
            self._channel.sendall(len(body).to_bytes(4, "big") + body)
        except OSError as error:
            raise BoxDied(f"the box does not take requests ({error})") from error
        answer = self._receive(deadline)
        if "broken" in answer:
            raise BoxDied(str(answer["broken"]))
        return answer

    def _receive(self, deadline: float) -> dict[str, Any]:
        size = int.from_bytes(self._exactly(4, deadline), "big")
        if size > _ANSWER_BYTES:
            raise BoxDied(f"the box sent a frame of {size} bytes")
        answer: dict[str, Any] = json.loads(self._exactly(size, deadline))
        return answer

    def _exactly(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._channel.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                part = self._channel.recv(size - len(data))
            except OSError as error:
                raise BoxDied(f"the box does not answer ({error})") from error
            if not part:
                raise BoxDied("the box ended")
            data += part
        return bytes(data)

    def _stderr(self) -> str:
        """Last lines that bubblewrap or the interpreter wrote before ending."""
        self._kill()
        assert self._process.stderr is not None
        text = self._process.stderr.read(65536).decode(errors="replace").strip()
        return " ".join(text.splitlines()[-3:])

    def _kill(self) -> None:
        # bubblewrap's child is pid 1 of the box and dies with it (--die-with-parent).
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        self._kill()
        self._channel.close()
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._cgroup.close()
