"""The whole system, top to bottom. Read this first.

    1  measure the base model's frontier: every effort level on held-out tasks
    2  fit the tangent at each level, which gives lambda_e
    3  repeat: collect groups -> price and grade -> R = S - lambda_e * C -> advantages -> one step
    4  measure the frontier again and report what moved

`train.max_staleness` = k lets rollouts be up to k policy versions old: collection of later steps
runs beside the optimizer. With k = 0 the same loop is synchronous.

Everything is written to the run directory as it happens. A killed run continues from there: whole
evaluation chunks and checkpoints count, the rest is made again from the same seeds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from frontrunner.backends.local import LocalSystem, open_system
from frontrunner.config import Config, config_hash
from frontrunner.effort.cost import CostModel
from frontrunner.effort.frontier import FrontierFit, fit
from frontrunner.effort.ladder import Ladder
from frontrunner.effort.price import find_price
from frontrunner.effort.reward import price_rollout
from frontrunner.effort.schemes import Scheme, base_levels
from frontrunner.errors import UserError
from frontrunner.evals.alarms import alarms
from frontrunner.evals.frontier import frontier_json, outcomes, points
from frontrunner.evals.history import effort_metrics
from frontrunner.report.console import ConsoleTracker, Progress
from frontrunner.report.html import write_report
from frontrunner.report.tracker import JsonlTracker, read_rows
from frontrunner.rollout.agent import system_prompt
from frontrunner.rollout.collector import Collector
from frontrunner.rollout.difficulty import posteriors
from frontrunner.rollout.pipeline import Pipeline
from frontrunner.rollout.samples import groups_of, samples_of
from frontrunner.rollout.schedule import eval_jobs, training_jobs
from frontrunner.rollout.store import RolloutFile, RunDirectory, read_json
from frontrunner.train import checkpoint
from frontrunner.train.trainer import LocalTrainer
from frontrunner.types import Rollout

KEEP_CHECKPOINTS = 2


def ladder_of(config: Config) -> Ladder:
    """The effort ladder of a config; lambdas are unset unless the recipe gives them."""
    effort = config.effort
    return Ladder.build(effort.levels, effort.prompts, effort.lambdas)


def cost_model_of(config: Config) -> CostModel:
    """How this run prices a rollout."""
    return CostModel(
        find_price(config.cost.price),
        value_of_time_usd_per_hour=config.cost.value_of_time,
        output_tokens_per_second=config.cost.output_tokens_per_second,
        input_tokens_per_second=config.cost.input_tokens_per_second,
        tool_timeout=config.env.test_timeout,
    )


@dataclass(frozen=True, slots=True)
class Work:
    """One run at work: what it is to do, with what, and where it is written."""

    config: Config
    system: LocalSystem
    collector: Collector
    run: RunDirectory
    cost_model: CostModel
    ladder: Ladder


def train(config: Config, directory: Path, *, resume: bool = False) -> Path:
    """One run from base measurement to report; returns the path of report.html."""
    with open_work(config, directory, resume=resume) as work:
        if config.eval.base_run:
            work.run.take_base(Path(config.eval.base_run), config)
        base = measure(work, "base")
        fitted = None if work.ladder.fitted else fit_lambdas(work, base)
        if fitted:
            work = replace(work, ladder=work.ladder.with_lambdas(fitted.lambdas))
        write_frontier(work, base, None, fitted)
        learn(work, scheme_of(work, base))
        trainer, policy = work.system.trainer, work.system.policy
        work.system.engine.load_weights(trainer.weights(), trainer.step)
        final = measure(work, "final")
        checkpoint.save_model(policy.model, policy.tokenizer, work.run.path / "model")
        write_frontier(work, base, final, fitted)
        return write_report(work.run.path)


@contextmanager
def open_work(config: Config, directory: Path, *, resume: bool = False) -> Iterator[Work]:
    """Check what can be checked, then open all parts; the folder is written to last."""
    cost_model, ladder = cost_model_of(config), ladder_of(config)
    RunDirectory.check(directory, config, resume=resume)
    with open_system(config) as system, open_collector(system, config) as collector:
        check_ready(config, system)
        run = RunDirectory.open(directory, config, system.inputs, resume=resume)
        try:
            yield Work(config, system, collector, run, cost_model, ladder)
        finally:
            run.close()


def check_ready(config: Config, system: LocalSystem) -> None:
    """Raises `UserError` for what would otherwise be found out after hours of work."""
    train_tasks, held_out = system.tasks.split("train"), system.tasks.split("heldout")
    if config.train.steps and not train_tasks:
        raise UserError(f"{config.env.tasks}: the task set has no training tasks")
    if config.eval.tasks > len(held_out):
        raise UserError(
            f"eval.tasks = {config.eval.tasks}, but {config.env.tasks} has {len(held_out)} "
            "held-out tasks; lower it"
        )
    longest = max((*train_tasks, *held_out), key=lambda t: len(t.instruction))
    for level in ladder_of(config):
        system_message = system_prompt(level, config.env.help)
        length = len(system.chat.opening(system_message, longest.instruction))
        if length + config.rollout.max_new_tokens > config.engine.max_context:
            raise UserError(
                f"engine.max_context = {config.engine.max_context} is too small: the prompt of "
                f"level {level.name} alone has {length} tokens; raise it"
            )


def open_collector(system: LocalSystem, config: Config) -> Collector:
    """Rollouts from this system's engine, tools and verifier."""
    return Collector(
        system.engine, system.chat, system.tasks, system.sandbox, system.verifier, config
    )


def measure(work: Work, name: str) -> list[Rollout]:
    """Held-out rollouts at every level, kept in eval/NAME.jsonl; whole chunks are not redone."""
    config, collector = work.config, work.collector
    held_out = work.system.tasks.split("heldout")[: config.eval.tasks]
    jobs = eval_jobs(held_out, work.ladder, config.eval.samples, config.eval.seed)
    file = RolloutFile(work.run.path / "eval" / f"{name}.jsonl")
    size = 4 * config.rollout.concurrency
    done = file.keep(lambda n: n // size * size if n < len(jobs) else len(jobs))
    with Progress(f"measuring {name}", len(jobs), done) as progress:
        for start in range(done, len(jobs), size):
            rollouts = collector.collect(jobs[start : start + size], lambda _: progress.advance())
            file.append([price_rollout(r, work.cost_model) for r in rollouts])
            work.run.touch()
    return file.read()


def fit_lambdas(work: Work, base: Sequence[Rollout]) -> FrontierFit:
    """lambda per level from the base frontier, frozen in lambdas.json for the rest of the run."""
    path = work.run.path / "lambdas.json"
    if path.is_file():
        return FrontierFit.from_json(read_json(path, "levels", "explanations"))
    fitted = fit(
        outcomes(base),
        work.ladder.names,
        num_bootstrap=work.config.eval.num_bootstrap,
        seed=work.config.eval.seed,
        ratio=work.config.effort.min_ratio,
    )
    work.run.write_json("lambdas.json", fitted.to_json())
    return fitted


def scheme_of(work: Work, base: Sequence[Rollout]) -> Scheme:
    """How this run rewards, in the state in which training starts."""
    algo, ladder = work.config.algo, work.ladder
    return Scheme(
        algo.reward,
        ladder.lambdas,
        base_levels(base, ladder.names),
        work.config.train.steps,
        algo.budget,
        algo.concavity,
    )


def resume_training(
    system: LocalSystem, config: Config, run: RunDirectory, scheme: Scheme
) -> JsonlTracker:
    """Load the newest checkpoint, if there is one, and forget what was written after it."""
    trainer, sizes = system.trainer, config.rollout
    newest = checkpoint.latest(run.path / "checkpoints")
    if newest:
        trainer.restore(newest)
        scheme.restore(checkpoint.read_notes(newest))
        system.engine.load_weights(trainer.weights(), trainer.step)
    RolloutFile(run.path / "rollouts.jsonl").keep(
        lambda _: trainer.step * sizes.groups * sizes.group_size
    )
    metrics = JsonlTracker(run.path / "metrics.jsonl")
    metrics.truncate_after(trainer.step)
    return metrics


def learn(work: Work, scheme: Scheme) -> None:
    """The training loop, from the newest checkpoint to the last step."""
    config, run, ladder = work.config, work.run, work.ladder
    trainer, sizes, seed = work.system.trainer, config.rollout, config.run.seed
    tasks = work.system.tasks.split("train")
    metrics = resume_training(work.system, config, run, scheme)
    if due(config, trainer.step):  # a kill may have come between checkpoint and measurement
        measure_during(work)
    file = RolloutFile(run.path / "rollouts.jsonl")
    history = read_rows(metrics.path)
    console = ConsoleTracker(ladder.names, config.train.steps)
    by_difficulty = config.env.sampling == "difficulty"
    seen = file.read() if by_difficulty else []

    def collect(step: int) -> list[Rollout]:
        # What is surely known by then, however far collection runs ahead.
        version = max(0, step - config.train.max_staleness)
        known = seen[: version * sizes.groups * sizes.group_size]
        odds = posteriors(known, version) if by_difficulty else None
        jobs = training_jobs(tasks, ladder, sizes.groups, sizes.group_size, seed, step, odds)
        return work.collector.collect(jobs)

    with Pipeline(
        work.system.engine,
        collect,
        first_step=trainer.step,
        last_step=config.train.steps - 1,
        max_staleness=config.train.max_staleness,
    ) as pipeline:
        while trainer.step < config.train.steps:
            sampled, collect_seconds = pipeline.take()
            priced = [price_rollout(r, work.cost_model) for r in sampled]
            rollouts = scheme.rewarded(priced, sizes.group_size)
            scheme.observe(rollouts, sizes.group_size)
            start = time.perf_counter()
            groups = groups_of(rollouts, sizes.group_size)
            oldest = min((r.version for r in rollouts if r.turns), default=trainer.step)
            stepped = trainer.train_step(samples_of(groups, config.algo.baseline))
            seen.extend(rollouts if by_difficulty else ())
            pipeline.publish(trainer.weights(), stepped.version)
            row = {
                **effort_metrics(rollouts, ladder),
                **stepped.metrics,
                **scheme.metrics(),
                "train/staleness": stepped.version - 1 - oldest,
                "time/collect_seconds": collect_seconds,
                "time/train_seconds": time.perf_counter() - start,
            }
            file.append(rollouts)
            metrics.log(stepped.step, row)
            history.append({"step": stepped.step, **row})
            raised = alarms(history, ladder.names)
            console.log(stepped.step, row, {f"{a.kind} {a.effort}": a.message for a in raised})
            save_if_due(trainer, config, run, scheme)
            if due(config, stepped.step):
                pipeline.call(measure_during, work)
    metrics.close()
    console.close()


def due(config: Config, step: int) -> bool:
    """The frontier is measured after this step (the last step has its own measurement)."""
    every = config.eval.every
    return bool(every) and 0 < step < config.train.steps and step % every == 0


def measure_during(work: Work) -> None:
    """The frontier on the way: eval/step-N.jsonl and its points in eval/during.json."""
    step = work.system.trainer.step
    rollouts = measure(work, f"step-{step}")
    path = work.run.path / "eval" / "during.json"
    known = read_json(path) if path.is_file() else {}
    measured = points(rollouts, work.ladder, num_bootstrap=work.config.eval.num_bootstrap)
    work.run.write_json("eval/during.json", {**known, str(step): [asdict(p) for p in measured]})


def save_if_due(trainer: LocalTrainer, config: Config, run: RunDirectory, scheme: Scheme) -> None:
    """A checkpoint every few steps and after the last one; older ones go."""
    if trainer.step % config.run.checkpoint_every == 0 or trainer.step == config.train.steps:
        folder = run.path / "checkpoints"
        trainer.save(folder / f"step-{trainer.step}", scheme.state())
        checkpoint.prune(folder, KEEP_CHECKPOINTS)
    run.touch()


def write_frontier(
    work: Work,
    base: Sequence[Rollout],
    final: Sequence[Rollout] | None,
    fitted: FrontierFit | None,
) -> None:
    """frontier.json: everything the report and `report --json` say."""
    path = work.run.path / "metrics.jsonl"
    rows = read_rows(path) if path.is_file() else []
    tree = frontier_json(
        work.ladder,
        base,
        final,
        fit=fitted,
        alarms=[a.to_json() for a in alarms(rows, work.ladder.names)],
        wall_seconds=work.run.wall_seconds,
        seed=work.config.run.seed,
        config_hash=config_hash(work.config),
        num_bootstrap=work.config.eval.num_bootstrap,
    )
    during = work.run.path / "eval" / "during.json"
    if during.is_file():
        tree["points"]["during"] = read_json(during)
    work.run.write_json("frontier.json", tree)
