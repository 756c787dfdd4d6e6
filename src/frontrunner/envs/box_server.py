"""The process inside a box that forks one confined child per test run (the zygote).

    host --request--> zygote --fork--> watcher --fork into new namespaces--> runner (pid 1)
    host <--report--------------------- watcher <--authenticated lines-------- runner

* The zygote has pytest loaded and nothing else, is single-threaded, and never runs untrusted code.
* The watcher builds the private file system, enforces the wall clock, and answers the host. It is
  invisible from the runner's pid namespace.
* The runner gives up every right, then runs the tests. As pid 1 of its namespace it takes all of
  its descendants with it.

Frames on the socket: 4-byte big-endian length, then JSON. Standard library and pytest only.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from frontrunner.envs import box_confine as confine
from frontrunner.envs import box_runner as runner
from frontrunner.envs.box_guard import Guard
from frontrunner.envs.box_paths import safe_path
from frontrunner.envs.box_report import LineReader, reporter

REPORT_BYTES = 16 << 20
_POLL_SECONDS = 0.1
_FAILED = 70
_SCRATCH, _REPO = "/scratch", "/repo"


def send(channel: socket.socket, record: dict[str, Any]) -> None:
    body = json.dumps(record).encode()
    channel.sendall(len(body).to_bytes(4, "big") + body)


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """The next frame, or None when the other side has gone."""
    size = _exactly(channel, 4)
    body = _exactly(channel, int.from_bytes(size, "big")) if size else None
    if body is None:
        return None
    record: dict[str, Any] = json.loads(body)
    return record


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    parts, left = [], size
    while left:
        part = channel.recv(min(left, 1 << 20))
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


# File system of one run


def _compiled(lower: str, parts: tuple[str, ...]) -> list[str]:
    """Compiled copies of a source file, relative to the tree: they hold the pristine code."""
    folder, name = "/".join(parts[:-1]), parts[-1].removesuffix(".py")
    cache = f"{folder}/__pycache__".lstrip("/")
    with contextlib.suppress(OSError):
        stale = [f"{cache}/{n}" for n in os.listdir(f"{lower}/{cache}") if n.startswith(f"{name}.")]
        legacy = f"{folder}/{name}.pyc".lstrip("/")
        return stale + ([legacy] if os.path.exists(f"{lower}/{legacy}") else [])
    return []


def _put(root: str, path: str, data: bytes) -> None:
    target = f"{root}/{path}"
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(data)


def _overlay(lower: str, files: dict[str, str | None]) -> None:
    """Fills the upper layer before it is mounted: copy-up would need the lower owner's uid."""
    upper = f"{_SCRATCH}/upper"
    os.mkdir(upper)
    os.mkdir(f"{_SCRATCH}/work")
    for path, text in files.items():
        parts = safe_path(path)
        if text is not None:
            _put(upper, "/".join(parts), text.encode(errors="surrogatepass"))
        gone = _compiled(lower, parts) if path.endswith(".py") else []
        if text is None and os.path.lexists(f"{lower}/{path}"):
            gone.append("/".join(parts))
        for hidden in gone:
            os.makedirs(os.path.dirname(f"{upper}/{hidden}"), exist_ok=True)
            os.mknod(f"{upper}/{hidden}", stat.S_IFCHR, 0)  # an overlay whiteout
    confine.mount_overlay(lower, _SCRATCH, _REPO)


def _copy(lower: str, files: dict[str, str | None]) -> None:
    """Where overlays are refused: everything but what is replaced, into a tmpfs."""
    skip = set(files)
    for path in files:
        skip.update(_compiled(lower, safe_path(path)))
    for folder, _, names in os.walk(lower):
        relative = os.path.relpath(folder, lower)
        for name in names:
            path = name if relative == "." else f"{relative}/{name}"
            if path not in skip and os.path.isfile(f"{folder}/{name}"):
                with open(f"{folder}/{name}", "rb") as file:
                    _put(_REPO, path, file.read())
    for path, text in files.items():
        if text is not None:
            _put(_REPO, "/".join(safe_path(path)), text.encode(errors="surrogatepass"))


def _build(request: dict[str, Any]) -> None:
    """The private root of one run: the project at /repo, empty /tmp, nothing of other tasks."""
    confine.enter_namespaces()
    megabytes: int = request["megabytes"]
    lower = f"/trees/{request['tree']}"
    if request["overlay"]:
        confine.mount_tmpfs(_SCRATCH, megabytes)
        _overlay(lower, request["files"])
        confine.detach(_SCRATCH)
    else:
        confine.mount_tmpfs(_REPO, megabytes)
        _copy(lower, request["files"])
    confine.mount_tmpfs("/tmp", megabytes, "1777")
    confine.mount_tmpfs("/dev/shm", megabytes, "1777")
    confine.mount_tmpfs("/deps", 1)
    for name in request["libraries"]:
        os.mkdir(f"/deps/{name}")
        confine.bind(f"/libs/{name}", f"/deps/{name}")
    for hidden in ("/trees", "/libs", "/opt/box"):
        confine.mask(hidden)
    confine.forbid_user_namespaces()


def _unpack(request: dict[str, Any]) -> None:
    """A box used once needs no private root: the host sends the whole project."""
    confine.hide_memory()  # the runner shares the watcher's pid namespace here
    for path, data in request["blobs"].items():
        _put(_REPO, "/".join(safe_path(path)), base64.b64decode(data))


# The runner


def _become_runner(
    request: dict[str, Any], session: runner.Session, guard: Guard, pipe: int, key: bytes
) -> None:
    """Runs the tests; never returns. Without a `confined` record the watcher calls it broken."""
    try:
        confine.die_with_parent()
        os.setsid()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        if request["nested"]:
            confine.mask("/proc")
        confine.close_fds([pipe])
        os.chdir(_REPO)
        confine.set_limits(request["limits"])
        confine.drop_privileges()
        emit = reporter(pipe, key)
        emit({"confined": True})
        runner.prepare([_REPO, *(f"/deps/{name}" for name in request["libraries"])])
        tests, most = request["tests"], request["max_failures"]
        key = b""
        request.clear()
        session.run(emit, tests, most, guard.check, guard.keep)
    finally:
        os._exit(0)


# The watcher


def _serve(
    channel: socket.socket, request: dict[str, Any], session: runner.Session, guard: Guard
) -> None:
    """Builds the box, starts the runner, answers the host."""
    start = time.monotonic()
    deadline = start + request["timeout"]
    (_build if request["nested"] else _unpack)(request)
    gate, pipe = os.pipe()
    key = os.urandom(32)
    child = os.fork()
    if child == 0:
        _become_runner(request, session, guard, pipe, key)
    os.close(pipe)
    reader = LineReader(key, REPORT_BYTES)
    records, timed_out = _follow(gate, channel, reader, deadline, request)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    report = _summarise(records, reader.forged, timed_out)
    report["status"] = os.waitstatus_to_exitcode(status)
    report["wall_seconds"] = time.monotonic() - start
    send(channel, report)


def _follow(
    gate: int,
    channel: socket.socket,
    reader: LineReader,
    deadline: float,
    request: dict[str, Any],
) -> tuple[list[dict[str, Any]], bool]:
    """Reads the runner's lines until it is done, dead, late, over its memory or the host left."""
    records: list[dict[str, Any]] = []
    poll = select.poll()
    poll.register(gate, select.POLLIN)
    poll.register(channel, select.POLLHUP)
    watch = request["watch_bytes"]
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return records, True
        for fd, _ in poll.poll(1000 * (min(left, _POLL_SECONDS) if watch else left)):
            if fd != gate:
                os._exit(0)  # the host is gone; the runner dies with this process
            data = os.read(gate, 1 << 16)
            new = reader.feed(data)
            records += new
            if not data or reader.forged or any("done" in record for record in new):
                return records, False
        if watch and _resident_bytes() > watch:
            return records, False


def _resident_bytes() -> int:
    """Resident memory of every process of the box, bytes (where there is no memory cgroup)."""
    pages = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                contextlib.suppress(OSError, IndexError, ValueError),
                open(f"/proc/{name}/statm") as file,
            ):
                pages += int(file.read().split()[1])
    return pages * resource.getpagesize()


def _summarise(records: list[dict[str, Any]], forged: bool, timed_out: bool) -> dict[str, Any]:
    """Folds the records; a test reported twice is a forgery (each id runs once)."""
    outcomes: dict[str, str] = {}
    tampering = "the report was written to from outside" if forged else ""
    message, done, confined = "", None, False
    for record in records:
        confined |= "confined" in record
        message = message or record.get("message", "")
        tampering = tampering or record.get("tampering", "")
        done = record.get("done", done)
        if "test" in record:
            if record["test"] in outcomes:
                tampering = tampering or "a test was reported twice"
            outcomes[record["test"]] = record["outcome"]
    return {
        "outcomes": outcomes,
        "message": message,
        "tampering": tampering,
        "timed_out": timed_out,
        "exited_early": not timed_out and done is None,
        "confined": confined,
    }


# The zygote


def _in_child(work: Callable[[], None], answer: Callable[[dict[str, Any]], None]) -> int:
    """Exit code of `work` in a forked process; 0 when it, or `answer` after an error, ended."""
    child = os.fork()
    if child == 0:
        code = _FAILED
        try:
            confine.die_with_parent()
            work()
            code = 0
        except (OSError, ValueError, KeyError) as error:
            answer({"broken": f"{type(error).__name__}: {error}"})
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _probe() -> dict[str, bool]:
    """Which isolation the kernel grants inside this box, by trying it."""

    def attempt(overlay: bool) -> bool:
        request = {"tree": "probe", "files": {"a/b.py": ""}, "libraries": [], "megabytes": 1}

        def work() -> None:
            _build({**request, "overlay": overlay})
            if os.path.exists("/repo/a/b.py") and os.listdir("/trees") == []:
                return
            raise OSError("the box was not built")

        return _in_child(work, lambda _: os._exit(_FAILED)) == 0

    overlay = attempt(overlay=True)
    return {"nested": overlay or attempt(overlay=False), "overlay": overlay}


def main() -> None:
    """Serves requests from the socket on descriptor 0 until the host closes it."""
    channel = socket.socket(fileno=os.dup(0))
    quiet = os.open("/dev/null", os.O_RDWR)
    os.dup2(quiet, 0)
    os.dup2(quiet, 1)
    runner.warm_up()
    os.chdir(_REPO)
    session = runner.Session()
    guard = Guard()
    granted = _probe()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)  # runs are short, and most of one is imports
    facts = {"python": sys.version.split()[0], "seccomp": confine.has_filter(), **granted}
    send(channel, facts)
    os.dup2(quiet, 2)
    os.close(quiet)
    while (request := receive(channel)) is not None:
        work, answer = partial(_serve, channel, request, session, guard), partial(send, channel)
        code = _in_child(work, answer)
        if code != 0:
            send(channel, {"broken": f"the watcher ended with status {code}"})
