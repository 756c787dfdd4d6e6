import pytest

from frontrunner.effort.ladder import Ladder
from frontrunner.envs import taskset
from frontrunner.rollout.difficulty import Posterior, choose, posteriors
from frontrunner.rollout.schedule import training_jobs
from frontrunner.types import Rollout, Turn, Usage, Verdict

TASKS = taskset.load("quickstart").split("train")[:20]


def rollout(task: str, success: float, version: int = 0, kind: str = "graded") -> Rollout:
    turn = Turn((1,), (2,), (0.0,), version, "x", "submit", "", Usage(1, 0, 0, 1, 0.0))
    verdict = Verdict(kind, success, "")  # type: ignore[arg-type]
    return Rollout(task, "low", 0, (turn,), "submitted", {}, verdict)


def test_posteriors_count_graded_successes_and_failures() -> None:
    made = [
        rollout("a", 1.0),
        rollout("a", 0.0),
        rollout("a", 1.0),
        rollout("a", 0.0, 0, "invalid"),
    ]
    known = posteriors(made, 0)
    assert known == {("a", "low"): Posterior(3.0, 2.0)}
    assert known["a", "low"].weight == pytest.approx(3 * 2 / (5 * 6))
    low, high = known["a", "low"].interval()
    assert 0 < low < 0.6 < high < 1


def test_older_policies_count_less() -> None:
    known = posteriors([rollout("a", 1.0, 0), rollout("a", 0.0, 2)], 2, forgetting=0.5)
    assert known["a", "low"] == Posterior(1.25, 2.0)


def test_cold_start_is_uniform_over_all_tasks() -> None:
    first = [choose(TASKS, ["low"], {}, seed)[0].id for seed in range(2000)]
    counts = [first.count(task.id) for task in TASKS]
    assert min(counts) > 60
    assert max(counts) < 150


def test_mastered_tasks_come_up_less_and_none_twice_in_a_step() -> None:
    known = {(TASKS[0].id, "low"): Posterior(99, 1)}
    first = [choose(TASKS, ["low"], known, seed)[0].id for seed in range(1000)]
    assert first.count(TASKS[0].id) < 15
    many = choose(TASKS, ["low"] * 20, known, 0)
    assert len({task.id for task in many}) == 20


def test_jobs_by_difficulty_are_a_function_of_the_seed() -> None:
    ladder = Ladder.build(("low", "high"), {}, {})
    known = posteriors([rollout(TASKS[0].id, 1.0)] * 9, 0)
    jobs = training_jobs(TASKS, ladder, 4, 2, 7, 3, known)
    assert jobs == training_jobs(TASKS, ladder, 4, 2, 7, 3, known)
    assert jobs != training_jobs(TASKS, ladder, 4, 2, 8, 3, known)
    assert len(jobs) == 8
    assert {job.level.name for job in jobs} == {"low", "high"}
    assert all(a.task == b.task for a, b in zip(jobs[::2], jobs[1::2], strict=True))
