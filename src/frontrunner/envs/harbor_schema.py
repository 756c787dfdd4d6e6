"""The fields of a Harbor `task.toml`, schema 1.4, and the rules that they obey.

A mirror of the published format, so that reading a task needs no Harbor (which wants Python 3.12).
Unknown keys are refused outside `[metadata]`, which is free; ours live in `[metadata.frontrunner]`.
Source: https://docs.harborframework.com and the `harbor` package, 0.25.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

SCHEMA_VERSION = "1.4"

Network = Literal["no-network", "public", "allowlist"]


def _size_mb(value: Any) -> Any:
    """Megabytes of a size as older versions wrote it: `2G`, `512M`."""
    if isinstance(value, str) and value[:-1].replace(".", "", 1).isdigit():
        factor = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}.get(value[-1].upper())
        return value if factor is None else int(float(value[:-1]) * factor)
    return value


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Author(_Table):
    name: str
    email: str | None = None


class Package(_Table):
    """`[task]`: how a task is published."""

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
    """`organisation/name`."""
    version: str | None = None
    description: str = ""
    authors: tuple[Author, ...] = ()
    keywords: tuple[str, ...] = ()


class Healthcheck(_Table):
    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


class Tpu(_Table):
    type: str
    topology: str


class Environment(_Table):
    build_timeout_sec: float = 600.0
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    memory: Annotated[int | None, BeforeValidator(_size_mb)] = None
    """Older name of `memory_mb`."""
    storage: Annotated[int | None, BeforeValidator(_size_mb)] = None
    """Older name of `storage_mb`."""
    gpus: int | None = None
    gpu_types: tuple[str, ...] | None = None
    tpu: Tpu | None = None
    mcp_servers: tuple[dict[str, Any], ...] = ()
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None
    network_mode: Network | None = None
    allowed_hosts: tuple[str, ...] | None = None
    allow_internet: bool | None = None
    """Older form of `network_mode`."""

    @property
    def offline(self) -> bool:
        return self.network_mode == "no-network" or self.allow_internet is False


class _Phase(_Table):
    user: str | int | None = None
    network_mode: Network | None = None
    allowed_hosts: tuple[str, ...] | None = None


class Agent(_Phase):
    timeout_sec: float | None = Field(default=None, gt=0)


class Collect(_Table):
    """A command that gathers evidence after the agent."""

    command: str
    service: str = "main"
    timeout_sec: float = 60.0
    user: str | int | None = None


class Verifier(_Phase):
    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: tuple[Collect, ...] = ()


class Solution(_Table):
    env: dict[str, str] = {}


class Artifact(_Table):
    source: str
    destination: str | None = None
    exclude: tuple[str, ...] = ()
    service: str | None = None

    @model_validator(mode="after")
    def _inside(self) -> Artifact:
        target = PurePosixPath(self.destination or ".")
        if target.is_absolute() or ".." in target.parts or ".." in PurePosixPath(self.source).parts:
            raise ValueError(
                "an artifact stays inside its folder: no '..', no absolute destination"
            )
        return self


class Step(_Table):
    name: str
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: tuple[str | Artifact, ...] = ()


class TaskToml(_Table):
    """The whole file."""

    schema_version: str = "1.0"
    task: Package | None = None
    metadata: dict[str, Any] = {}
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    environment: Environment = Environment()
    solution: Solution = Solution()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: tuple[Step, ...] | None = None
    artifacts: tuple[str | Artifact, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _legacy(cls, data: Any) -> Any:
        """Before 1.1 `schema_version` was called `version`."""
        if isinstance(data, dict) and "version" in data and "schema_version" not in data:
            data = {**data, "schema_version": data["version"]}
            del data["version"]
        return data

    @model_validator(mode="after")
    def _known_version(self) -> TaskToml:
        if self.schema_version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
            raise ValueError(
                f"schema_version {self.schema_version!r}: 1.0 to {SCHEMA_VERSION} can be read"
            )
        return self
