"""Collects rollouts: many conversations at once between the engine and the tools.

In lockstep (the default) every conversation answers, then all tool calls run, then the next round
starts: what the engine computes together is then a function of the seed alone, and a run can be
repeated and resumed to the bit. Gradings, which no conversation depends on, run beside. Without
lockstep a conversation goes on as soon as its own tool call is done, which is faster where engine
and sandbox do not share the same cores.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Self

from frontrunner.config import Config
from frontrunner.envs.chat import ChatFormat
from frontrunner.envs.taskset import TaskSet
from frontrunner.envs.tools import BugFixEnvironment
from frontrunner.envs.workspace import Workspace
from frontrunner.errors import SandboxError
from frontrunner.protocols import Engine, Sandbox, TestReport, Verifier
from frontrunner.rollout.agent import Act, Conversation, Job
from frontrunner.types import Rollout, Task, Verdict

MIN_TIMEOUT = 0.8
TIMEOUT_FACTOR = 10.0
"""Seconds, and multiples of a task's reference duration, that its tests may run."""

OnRollout = Callable[[Rollout], None]
Graded = Future[tuple[Job, Rollout]]


def seed_of(*parts: object) -> int:
    """A 62-bit seed that depends on every part; parts are told apart."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


class TestMemory:
    """Test reports by task and edits: rollouts of a group test the same code again and again.

    A run that is in progress is waited for. One that is out of time is not remembered: a quieter
    machine may let it end.
    """

    __test__ = False  # not a test class, whatever pytest makes of the name

    def __init__(self, size: int = 65536) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Future[TestReport]] = OrderedDict()

    def get(self, key: str, run: Callable[[], TestReport]) -> TestReport:
        """The report known under `key`, else that of `run()`, whose errors are passed on."""
        with self._lock:
            known = self._known.get(key)
            if known is None:
                mine = self._known[key] = Future()
                while len(self._known) > self._size:
                    self._known.popitem(last=False)
        if known is not None:
            return known.result()
        keep = False
        try:
            report = run()
            mine.set_result(report)
            keep = not report.timed_out
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            if not keep:
                with self._lock:
                    self._known.pop(key, None)
        return report


class Collector:
    """Turns jobs into graded rollouts, in the order of the jobs."""

    def __init__(
        self,
        engine: Engine,
        chat: ChatFormat,
        tasks: TaskSet,
        sandbox: Sandbox,
        verifier: Verifier,
        config: Config,
    ) -> None:
        self.engine, self.chat, self.tasks = engine, chat, tasks
        self.sandbox, self.verifier, self.config = sandbox, verifier, config
        self._reports = TestMemory()
        # A test run blocks its thread until a box is free; two more keep quick tools moving.
        workers = (config.env.workers or os.cpu_count() or 1) + 2
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tools")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def collect(self, jobs: Sequence[Job], on_rollout: OnRollout | None = None) -> list[Rollout]:
        """One rollout per job. A job whose box failed is sampled again with another seed, up to
        `rollout.retries` times; after that its last, invalid rollout is returned."""
        self.engine.forget()  # a resumed run then computes the same batches
        done: dict[str, Rollout] = {}
        attempts = dict.fromkeys((job.key for job in jobs), 0)
        order = {job.key: n for n, job in enumerate(jobs)}
        queue = deque(jobs)
        active: dict[str, Conversation] = {}
        ready: list[Conversation] = []
        acting: dict[Future[None], Conversation] = {}
        grading: set[Graded] = set()
        while queue or active or grading:
            while queue and len(active) < self.config.rollout.concurrency:
                conversation = self._start(queue.popleft())
                active[conversation.job.key] = conversation
                ready.append(conversation)
            for conversation in ready:
                request = conversation.request()
                if request is not None:
                    self.engine.submit(request)
                else:
                    del active[conversation.job.key]
                    grading.add(self._pool.submit(self._grade, conversation))
            for result in self.engine.step() if self.engine.num_pending else []:
                conversation = active[result.request_id]
                text = conversation.absorb(result)
                acting[self._pool.submit(self._act, conversation, text)] = conversation
            ready = []
            for future in self._harvest(acting):
                conversation = acting.pop(future)
                future.result()
                if conversation.status is None:
                    ready.append(conversation)
                    continue
                # What it is worth changes no other conversation: the next round need not wait.
                del active[conversation.job.key]
                grading.add(self._pool.submit(self._grade, conversation))
            ready.sort(key=lambda c: order[c.job.key])
            idle = not (queue or active)
            for graded in self._graded(grading, wait_for_one=idle):
                grading.remove(graded)
                job, rollout = graded.result()
                attempts[job.key] += 1
                if not rollout.valid and attempts[job.key] <= self.config.rollout.retries:
                    seed = seed_of(job.seed, "retry", attempts[job.key])
                    queue.appendleft(replace(job, seed=seed))
                    continue
                done[job.key] = rollout
                if on_rollout:
                    on_rollout(rollout)
        return [done[job.key] for job in jobs]

    def _harvest(self, futures: dict[Future[None], Conversation]) -> list[Future[None]]:
        """Tool calls to go on with: all of them together in lockstep, else whichever is done."""
        if not futures:
            return []
        idle = self.engine.num_pending == 0
        if self.config.rollout.lockstep:
            if not idle:
                return []
            wait(futures)
            return list(futures)
        done, _ = wait(futures, timeout=None if idle else 0, return_when=FIRST_COMPLETED)
        return list(done)

    @staticmethod
    def _graded(futures: set[Graded], *, wait_for_one: bool) -> list[Graded]:
        if not futures:
            return []
        timeout = None if wait_for_one else 0
        done, _ = wait(futures, timeout=timeout, return_when=FIRST_COMPLETED)
        return list(done)

    def _start(self, job: Job) -> Conversation:
        task = job.task
        base = self.tasks.base_files(task)
        tree = self.tasks.tree(task)
        tests = task.shown_tests

        # An endless loop must not hold up the round: no longer than the task's tests could need.
        limit = max(MIN_TIMEOUT, TIMEOUT_FACTOR * task.test_seconds)
        timeout = min(self.config.env.test_timeout, limit)

        def run_tests(edits: dict[str, str | None]) -> TestReport:
            files = {**base, **edits}
            key = hashlib.sha256(repr((task.id, sorted(edits.items()))).encode()).hexdigest()
            report = self._reports.get(
                key, lambda: self.sandbox.run_tests(tree, files, tests, timeout=timeout)
            )
            # Priced by the limit: what the clock says when it is reached differs from run to run.
            return replace(report, wall_seconds=timeout) if report.timed_out else report

        environment = BugFixEnvironment(
            Workspace(tree, base),
            run_tests,
            focus=task.function,
            num_tests=len(tests),
            test_seconds=task.test_seconds,
        )
        return Conversation(
            job,
            self.chat,
            environment,
            self.config.rollout,
            self.engine.max_context,
            self.config.env.help,
        )

    def _act(self, conversation: Conversation, text: str) -> None:
        """Run one tool call (in a thread); a fault that is not the policy's ends the rollout."""
        start = time.perf_counter()
        try:
            tool, observation, seconds = conversation.environment.act(text)
        except SandboxError as error:
            conversation.abort(f"sandbox: {error}")
            return
        except Exception as error:  # the one boundary where a rollout's failure is classified
            conversation.abort(f"environment: {type(error).__name__}: {error}")
            return
        conversation.observe(text, Act(tool, observation, seconds, time.perf_counter() - start))

    def _grade(self, conversation: Conversation) -> tuple[Job, Rollout]:
        """Grade what was handed in (in a thread); work that was never handed in scores 0."""
        return conversation.job, conversation.finish(self._verdict(conversation))

    def _verdict(self, conversation: Conversation) -> Verdict:
        task: Task = conversation.job.task
        if conversation.status == "invalid":
            return Verdict("invalid", 0.0, conversation.fault)
        if conversation.status != "submitted":
            return Verdict("graded", 0.0, str(conversation.status), verifier=self.verifier.version)
        submission = conversation.environment.submission
        if not submission:
            return Verdict("graded", 0.0, "no change", verifier=self.verifier.version)
        try:
            return self.verifier.grade(task, submission)
        except Exception as error:  # a fault of ours is never the policy's
            return Verdict("invalid", 0.0, f"verifier: {type(error).__name__}: {error}")
