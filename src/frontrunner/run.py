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

import json
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from frontrunner.backends.local import LocalSystem, open_system
from frontrunner.config import Config, config_hash
from frontrunner.effort.cost import CostModel
from frontrunner.effort.frontier import FrontierFit, fit
from frontrunner.effort.ladder import Ladder
from frontrunner.effort.price import find_price
from frontrunner.effort.reward import price_and_reward, price_rollout
from frontrunner.errors import UserError
from frontrunner.evals.alarms import alarms
from frontrunner.evals.frontier import frontier_json, outcomes
from frontrunner.evals.history import effort_metrics
from frontrunner.report.console import ConsoleTracker, Progress
from frontrunner.report.html import write_report
from frontrunner.report.tracker import JsonlTracker, read_rows
from frontrunner.rollout.samples import groups_of, samples_of
from frontrunner.rollout.schedule import eval_jobs, training_jobs
from frontrunner.rollout.store import RolloutFile, RunDirectory
from frontrunner.train import checkpoint
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


def train(config: Config, directory: Path, *, resume: bool = False) -> Path:
    """One run from base measurement to report; returns the path of report.html."""
    run = RunDirectory.open(directory, config, resume=resume)
    cost_model, ladder = cost_model_of(config), ladder_of(config)
    with open_system(config) as system:
        base = measure(system, config, run, "base", ladder, cost_model)
        fitted = None if ladder.fitted else fit_lambdas(config, run, base, ladder)
        ladder = ladder.with_lambdas(fitted.lambdas) if fitted else ladder
        write_frontier(config, run, ladder, base, None, fitted)
        learn(system, config, run, ladder, cost_model)
        system.engine.load_weights(system.trainer.weights(), system.trainer.step)
        final = measure(system, config, run, "final", ladder, cost_model)
        system.policy.model.save_pretrained(run.path / "model")
        system.policy.tokenizer.save_pretrained(run.path / "model")
    write_frontier(config, run, ladder, base, final, fitted)
    return write_report(run.path)


def measure(
    system: LocalSystem,
    config: Config,
    run: RunDirectory,
    name: str,
    ladder: Ladder,
    cost_model: CostModel,
) -> list[Rollout]:
    """Held-out rollouts at every level, kept in eval/NAME.jsonl; whole chunks are not redone."""
    held_out = system.tasks.split("heldout")[: config.eval.tasks]
    if len(held_out) < 2:
        raise UserError(f"{config.env.tasks}: the task set has no held-out tasks to measure on")
    jobs = eval_jobs(held_out, ladder, config.eval.samples, config.run.seed)
    file = RolloutFile(run.path / "eval" / f"{name}.jsonl")
    size = 4 * config.rollout.concurrency
    done = file.keep(lambda n: n // size * size if n < len(jobs) else len(jobs))
    with Progress(f"measuring {name}", len(jobs), done) as progress:
        for start in range(done, len(jobs), size):
            rollouts = system.collector.collect(
                jobs[start : start + size], lambda _: progress.advance()
            )
            file.append([price_rollout(r, cost_model) for r in rollouts])
            run.touch()
    return file.read()


def fit_lambdas(
    config: Config, run: RunDirectory, base: Sequence[Rollout], ladder: Ladder
) -> FrontierFit:
    """lambda per level from the base frontier, frozen in lambdas.json for the rest of the run."""
    path = run.path / "lambdas.json"
    if path.is_file():
        return FrontierFit.from_json(json.loads(path.read_text()))
    fitted = fit(
        outcomes(base),
        ladder.names,
        num_bootstrap=config.eval.num_bootstrap,
        seed=config.run.seed,
        ratio=config.effort.min_ratio,
    )
    run.write_json("lambdas.json", fitted.to_json())
    return fitted


def learn(
    system: LocalSystem, config: Config, run: RunDirectory, ladder: Ladder, cost_model: CostModel
) -> None:
    """The training loop, from the newest checkpoint to the last step."""
    trainer, size = system.trainer, config.rollout.group_size
    tasks = system.tasks.split("train")
    if not tasks:
        raise UserError(f"{config.env.tasks}: the task set has no training tasks")
    newest = checkpoint.latest(run.path / "checkpoints")
    if newest:
        trainer.restore(newest)
        system.engine.load_weights(trainer.weights(), trainer.step)
    file = RolloutFile(run.path / "rollouts.jsonl")
    file.keep(lambda _: trainer.step * config.rollout.groups * size)
    metrics = JsonlTracker(run.path / "metrics.jsonl")
    metrics.truncate_after(trainer.step)
    console = ConsoleTracker(ladder.names, config.train.steps)

    def collect(step: int) -> tuple[list[Rollout], float]:
        jobs = training_jobs(
            tasks, ladder, config.rollout.groups, size, config.run.seed, step
        )
        start = time.perf_counter()
        rollouts = system.collector.collect(jobs)
        return rollouts, time.perf_counter() - start

    # One worker runs collections and weight updates in the order they are queued, so which
    # version samples which step is decided here and not by timing.
    pending: deque[Future[tuple[list[Rollout], float]]] = deque()
    published: Future[None] | None = None
    next_step = trainer.step
    with ThreadPoolExecutor(1, thread_name_prefix="collect") as worker:
        while trainer.step < config.train.steps:
            while next_step <= min(
                trainer.step + config.train.max_staleness, config.train.steps - 1
            ):
                pending.append(worker.submit(collect, next_step))
                next_step += 1
            sampled, collect_seconds = pending.popleft().result()
            rollouts = [price_and_reward(r, cost_model, ladder[r.effort]) for r in sampled]
            samples = samples_of(groups_of(rollouts, size), config.algo.baseline)
            start = time.perf_counter()
            stepped = trainer.train_step(samples)
            if published and published.done():
                published.result()  # a failed update must not go unnoticed
            published = worker.submit(
                system.engine.load_weights, trainer.weights(), stepped.version
            )
            row = {
                **effort_metrics(rollouts, ladder),
                **stepped.metrics,
                "train/staleness": stepped.version - 1 - min(r.version for r in rollouts),
                "time/collect_seconds": collect_seconds,
                "time/train_seconds": time.perf_counter() - start,
            }
            file.append(rollouts)
            metrics.log(stepped.step, row)
            console.log(stepped.step, row)
            if stepped.step % config.run.checkpoint_every == 0 or (
                stepped.step == config.train.steps
            ):
                trainer.save(run.path / "checkpoints" / f"step-{stepped.step}")
                checkpoint.prune(run.path / "checkpoints", KEEP_CHECKPOINTS)
            run.touch()
    metrics.close()
    console.close()


def write_frontier(
    config: Config,
    run: RunDirectory,
    ladder: Ladder,
    base: Sequence[Rollout],
    final: Sequence[Rollout] | None,
    fitted: FrontierFit | None,
) -> None:
    """frontier.json: everything the report and `report --json` say."""
    path = run.path / "metrics.jsonl"
    rows = read_rows(path) if path.is_file() else []
    tree = frontier_json(
        ladder,
        base,
        final,
        fit=fitted,
        alarms=[a.to_json() for a in alarms(rows, ladder.names)],
        wall_seconds=run.wall_seconds,
        seed=config.run.seed,
        config_hash=config_hash(config),
        num_bootstrap=config.eval.num_bootstrap,
    )
    run.write_json("frontier.json", tree)
