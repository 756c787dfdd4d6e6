"""Rollouts against the real tools, sandbox and verifier, driven by scripted policies."""

import threading
from collections.abc import Callable, Iterator

import pytest

from frontrunner.config import Config
from frontrunner.effort.ladder import default_ladder
from frontrunner.envs import taskset
from frontrunner.envs.chat import ChatFormat
from frontrunner.envs.mutations import repair
from frontrunner.envs.sandbox import LocalSandbox
from frontrunner.envs.taskset import TaskSet
from frontrunner.errors import SandboxError
from frontrunner.protocols import TestReport
from frontrunner.rollout.agent import Job
from frontrunner.rollout.collector import Collector, TestMemory
from frontrunner.rollout.samples import groups_of, to_sample
from frontrunner.rollout.schedule import eval_jobs, training_jobs
from frontrunner.testing import ScriptedEngine, byte_tokenizer
from frontrunner.types import Rollout, Task, dump, load
from frontrunner.verify.grader import TestGrader

PACKAGES = ("toolz", "hyperlink", "isodate")


@pytest.fixture(scope="module")
def tasks() -> TaskSet:
    return taskset.load("quickstart")


@pytest.fixture(scope="module")
def few(tasks: TaskSet) -> list[Task]:
    """Two small, fast tasks per package."""
    return [t for p in PACKAGES for t in [t for t in tasks.tasks if t.package == p][:2]]


@pytest.fixture(scope="module")
def sandbox(tasks: TaskSet) -> Iterator[LocalSandbox]:
    with LocalSandbox(tasks.trees(), num_workers=2) as box:
        yield box


def config(**rollout: object) -> Config:
    return Config.model_validate({"rollout": {"max_turns": 6, "max_new_tokens": 400, **rollout}})


def collect(
    tasks: TaskSet,
    sandbox: LocalSandbox,
    jobs: list[Job],
    policy: Callable[[str], str],
    settings: Config,
) -> list[Rollout]:
    chat = ChatFormat(byte_tokenizer())
    engine = ScriptedEngine(chat, policy, max_context=16_000)
    verifier = TestGrader(sandbox, tasks.tree, tasks.base_files)
    with Collector(engine, chat, tasks, sandbox, verifier, settings) as collector:
        return collector.collect(jobs)


def jobs_for(few: list[Task]) -> list[Job]:
    level = default_ladder().levels[0]
    return [Job(f"j{n}", task, level, seed=n) for n, task in enumerate(few)]


def expert(tasks: TaskSet, few: list[Task]) -> Callable[[str], str]:
    """View, repair by the known edit, test, submit; finds its task in the prompt."""
    by_instruction = {t.instruction: t for t in few}

    def policy(prompt: str) -> str:
        task = next(t for i, t in by_instruction.items() if i in prompt)
        turn = prompt.count("<|im_start|>assistant") - 1
        if turn == 0:
            return f"view {task.function}"
        if turn == 1:
            (source,) = tasks.gold(task).values()
            view = prompt.rsplit("<|im_start|>user\n", 1)[-1].split("<|im_end|>")[0]
            edit = repair(source, task.mutation, [r.partition(" ")[2] for r in view.split("\n")])
            assert edit is not None
            return f"edit {edit[0]} => {edit[1]}"
        return "test" if turn == 2 else "submit"

    return policy


@pytest.mark.parametrize("lockstep", [True, False])
def test_an_expert_solves_what_it_repairs(
    tasks: TaskSet, few: list[Task], sandbox: LocalSandbox, lockstep: bool
) -> None:
    rollouts = collect(tasks, sandbox, jobs_for(few), expert(tasks, few), config(lockstep=lockstep))
    assert [r.task_id for r in rollouts] == [t.id for t in few]
    for rollout in rollouts:
        assert rollout.success == 1.0, rollout.verdict
        assert [t.action for t in rollout.turns] == ["view", "edit", "test", "submit"]
        assert rollout.turns[2].observation == "passed"
        assert rollout.status == "submitted"
        assert load(Rollout, dump(rollout)) == rollout


def test_the_ledger_counts_every_token_once(
    tasks: TaskSet, few: list[Task], sandbox: LocalSandbox
) -> None:
    (rollout,) = collect(tasks, sandbox, jobs_for(few[:1]), expert(tasks, few), config())
    context = 0
    for turn in rollout.turns:
        assert turn.usage.fresh == len(turn.prompt)
        assert turn.usage.cached == context
        assert turn.usage.output == len(turn.output)
        context += len(turn.prompt) + len(turn.output)
    assert rollout.turns[2].usage.tool_seconds == few[0].test_seconds
    sample = to_sample(rollout, 0.5)
    assert len(sample.token_ids) == context
    assert sum(sample.loss_mask) == rollout.num_tokens


def test_the_conversation_is_what_the_chat_template_writes(
    tasks: TaskSet, few: list[Task], sandbox: LocalSandbox
) -> None:
    (rollout,) = collect(tasks, sandbox, jobs_for(few[:1]), expert(tasks, few), config())
    tokenizer = byte_tokenizer()
    text = tokenizer.decode(list(to_sample(rollout, 0.0).token_ids))
    messages = [{"role": "user", "content": few[0].instruction}]
    for turn in rollout.turns:
        messages.append({"role": "assistant", "content": turn.text})
        messages.append({"role": "user", "content": turn.observation})
    rendered = tokenizer.apply_chat_template(messages[:-1], tokenize=False)
    assert text.partition("<|im_end|>\n")[2] == rendered.rstrip("\n")


@pytest.mark.parametrize(
    ("policy", "status", "reason"),
    [
        (lambda _: "submit", "submitted", "no change"),
        (lambda _: "I would rather not.", "max_turns", "max_turns"),
        (lambda _: "search " + "x" * 390, "max_turns", "max_turns"),
    ],
)
def test_work_that_is_not_handed_in_scores_zero_and_pays(
    tasks: TaskSet,
    few: list[Task],
    sandbox: LocalSandbox,
    policy: Callable[[str], str],
    status: str,
    reason: str,
) -> None:
    (rollout,) = collect(tasks, sandbox, jobs_for(few[:1]), policy, config())
    assert (rollout.status, rollout.verdict.reason) == (status, reason)
    assert rollout.valid
    assert rollout.success == 0.0
    assert rollout.num_tokens > 0


def test_a_full_context_ends_the_rollout(
    tasks: TaskSet, few: list[Task], sandbox: LocalSandbox
) -> None:
    chat = ChatFormat(byte_tokenizer())
    engine = ScriptedEngine(chat, lambda _: "list toolz", max_context=600)
    verifier = TestGrader(sandbox, tasks.tree, tasks.base_files)
    with Collector(
        engine, chat, tasks, sandbox, verifier, config(max_turns=50, max_new_tokens=40)
    ) as collector:
        (rollout,) = collector.collect(jobs_for(few[:1]))
    assert rollout.status == "context_overflow"
    assert rollout.valid
    assert rollout.success == 0.0
    assert len(to_sample(rollout, 0.0).token_ids) <= 600 + 400


class FailingSandbox:
    """A real sandbox whose box breaks on the first calls."""

    def __init__(self, inner: LocalSandbox, failures: int) -> None:
        self.inner, self.failures = inner, failures
        self._lock = threading.Lock()

    def run_tests(self, *args: object, **kwargs: object) -> object:
        with self._lock:
            self.failures -= 1
            if self.failures >= 0:
                raise SandboxError("the box failed twice: injected")
        return self.inner.run_tests(*args, **kwargs)


def test_a_broken_box_is_sampled_again_never_scored(
    tasks: TaskSet, few: list[Task], sandbox: LocalSandbox
) -> None:
    (rollout,) = collect(
        tasks, FailingSandbox(sandbox, 1), jobs_for(few[:1]), expert(tasks, few), config()
    )
    assert rollout.success == 1.0
    assert rollout.seed != jobs_for(few[:1])[0].seed


def test_a_box_that_stays_broken_leaves_an_invalid_record(
    tasks: TaskSet, few: list[Task], sandbox: LocalSandbox
) -> None:
    (rollout,) = collect(
        tasks, FailingSandbox(sandbox, 99), jobs_for(few[:1]), expert(tasks, few), config()
    )
    assert rollout.status == "invalid"
    assert not rollout.valid
    assert groups_of([rollout], 1)[0].rollouts == ()


class CountingSandbox:
    """A real sandbox that remembers what it was asked to run."""

    def __init__(self, inner: LocalSandbox) -> None:
        self.inner, self.calls = inner, []

    def run_tests(self, tree: object, files: object, tests: object, **kwargs: object) -> object:
        self.calls.append(tests)
        return self.inner.run_tests(tree, files, tests, **kwargs)


def test_the_same_code_is_tested_once(
    tasks: TaskSet, few: list[Task], sandbox: LocalSandbox
) -> None:
    task, level = few[0], default_ladder().levels[0]
    counting = CountingSandbox(sandbox)
    jobs = [Job(f"j{n}", task, level, seed=n) for n in range(4)]
    rollouts = collect(tasks, counting, jobs, expert(tasks, few), config())
    assert [r.turns[2].observation for r in rollouts] == ["passed"] * 4
    assert counting.calls.count(task.fail_to_pass + task.pass_to_pass) == 1


def test_errors_and_timeouts_are_not_remembered() -> None:
    memory = TestMemory()
    late = TestReport({}, "", timed_out=True, exited_early=False, wall_seconds=3.0)
    good = TestReport({"t": "passed"}, "", timed_out=False, exited_early=False, wall_seconds=0.1)

    def broken() -> TestReport:
        raise SandboxError("injected")

    with pytest.raises(SandboxError):
        memory.get("k", broken)
    assert memory.get("k", lambda: late) is late
    assert memory.get("k", lambda: good) is good
    assert memory.get("k", lambda: late) is good


def test_more_jobs_than_fit_in_flight(
    tasks: TaskSet, few: list[Task], sandbox: LocalSandbox
) -> None:
    rollouts = collect(tasks, sandbox, jobs_for(few), expert(tasks, few), config(concurrency=2))
    assert [r.task_id for r in rollouts] == [t.id for t in few]
    assert all(r.success == 1.0 for r in rollouts)


def test_training_meets_every_task_and_level(few: list[Task]) -> None:
    ladder = default_ladder()
    seen = set()
    for step in range(6):
        jobs = training_jobs(few, ladder, 3, 2, seed=0, step=step)
        assert jobs == training_jobs(few, ladder, 3, 2, seed=0, step=step)
        assert all(
            a.task == b.task and a.level == b.level
            for a, b in zip(jobs[::2], jobs[1::2], strict=True)
        )
        seen |= {(j.task.id, j.level.name) for j in jobs}
    assert len(seen) == len(few) * len(ladder)


def test_evaluation_uses_the_same_seeds_every_time(few: list[Task]) -> None:
    ladder = default_ladder()
    jobs = eval_jobs(few, ladder, 2, seed=3)
    assert jobs == eval_jobs(few, ladder, 2, seed=3)
    assert len({j.seed for j in jobs}) == len(jobs) == len(few) * 3 * 2
