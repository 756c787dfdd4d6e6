"""Running tasks that need an image: with docker or podman where one answers.

Two boxes: the solution runs in the first, its changes leave as a patch, and a fresh second box is
graded. Folders that declare no collected patch (plain Harbor, Terminal-Bench) are graded in the
first box, as Harbor itself does in its shared mode.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frontrunner.envs.harbor import HarborTask
from frontrunner.errors import SandboxError


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine; `path` is None where none can be used, and `why` says why not."""

    path: str | None
    why: str = ""


def find() -> Engine:
    """The first engine that answers: docker, then podman."""
    reasons: list[str] = []
    for name in ("docker", "podman"):
        path = shutil.which(name)
        if path is None:
            reasons.append(f"{name} is not installed")
            continue
        try:
            done = subprocess.run(
                [path, "info"], capture_output=True, text=True, timeout=20, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            reasons.append(f"{name} does not answer")
            continue
        if done.returncode == 0:
            return Engine(path)
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        reasons.append(f"{name} cannot be used ({lines[-1].strip()[:160]})")
    return Engine(None, "; ".join(reasons))


def check(task: HarborTask, engine: Engine) -> str:
    """`valid` if the solution earns 1 and doing nothing does not; else why not."""
    if engine.path is None:
        return f"unchecked: needs a container and {engine.why}"
    if not (task.folder / "solution").is_dir():
        return "unchecked: there is no solution"
    try:
        image = _image(task, engine.path)
        gold = _reward(task, engine.path, image, solve=True)
        base = _reward(task, engine.path, image, solve=False)
    except SandboxError as error:
        return f"unchecked: {error}"
    if gold < 1:
        return "gold does not pass"
    return "valid" if base < 1 else "the tests pass without a solution"


def _image(task: HarborTask, engine: str) -> str:
    """The agent's image: the one that the task names, or built from its Dockerfile."""
    environment = task.config.environment
    if environment.docker_image:
        return environment.docker_image
    name = f"frontrunner/{task.folder.name.lower()}"
    folder = str(task.folder / "environment")
    _run([engine, "build", "-q", "-t", name, folder], environment.build_timeout_sec, "build")
    return name


def _reward(task: HarborTask, engine: str, image: str, *, solve: bool) -> float:
    """The reward after the solution, or after nothing."""
    verifier = task.config.verifier
    with tempfile.TemporaryDirectory(prefix="frontrunner-") as temporary:
        logs = Path(temporary)
        for name in ("verifier", "artifacts", "agent"):
            (logs / name).mkdir()
            (logs / name).chmod(0o777)
        steps = ["bash /solution/solve.sh"] if solve else []
        separate = bool(verifier.collect)
        steps += [step.command for step in verifier.collect] or ["bash /tests/test.sh"]
        mounts = [(logs, "/logs", "rw"), (task.folder / "solution", "/solution", "ro")]
        mounts += [] if separate else [(task.folder / "tests", "/tests", "ro")]
        limit = (task.config.agent.timeout_sec or 3600) + verifier.timeout_sec
        _box(engine, image, " && ".join(steps), mounts, task, limit)
        if separate:
            base = str(task.facts.get("image", image))
            mounts = [(logs, "/logs", "rw"), (task.folder / "tests", "/tests", "ro")]
            _box(engine, base, "bash /tests/test.sh", mounts, task, verifier.timeout_sec)
        return read_reward(logs / "verifier")


def _box(
    engine: str,
    image: str,
    script: str,
    mounts: Sequence[tuple[Path, str, str]],
    task: HarborTask,
    limit: float,
) -> None:
    name = f"frontrunner-{uuid.uuid4().hex[:12]}"
    volumes = [f"--volume={source.resolve()}:{at}:{mode}" for source, at, mode in mounts]
    environment = task.config.environment
    network = ["--network=none"] if environment.offline else []
    workdir = [f"--workdir={environment.workdir}"] if environment.workdir else []
    memory = [f"--memory={environment.memory_mb}m"] if environment.memory_mb else []
    command = [
        engine, "run", "--rm", f"--name={name}", "--entrypoint=", *network, *workdir, *memory,
        *volumes, image, "bash", "-c", script,
    ]  # fmt: skip
    try:
        _run(command, limit, "run", tests_may_fail=True)
    finally:
        # A client that was killed leaves its container behind.
        subprocess.run([engine, "rm", "-f", name], capture_output=True, check=False, timeout=60)


def _run(command: list[str], limit: float, what: str, *, tests_may_fail: bool = False) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"the container's {what} failed: {error}"[:300]) from None
    # 125 to 127: the engine itself, or the start of the command, failed.
    if done.returncode in (125, 126, 127) or (done.returncode and not tests_may_fail):
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise SandboxError(f"the container's {what} failed: {lines[-1].strip()[:200]}")


def read_reward(folder: Path) -> float:
    """Harbor's `reward.json` (its key `reward`, or its only one), else `reward.txt`.

    Raises SandboxError when there is none or it is no finite number: such a grading is invalid.
    """
    try:
        if (folder / "reward.json").is_file():
            tree = json.loads((folder / "reward.json").read_text(encoding="utf-8"))
            values = tree if isinstance(tree, dict) else {}
            value = values.get("reward", next(iter(values.values())) if len(values) == 1 else None)
        else:
            value = float((folder / "reward.txt").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SandboxError(f"the tests left no reward that can be read: {error}") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SandboxError("the reward is not a finite number")
    return float(value)
