import ast
import os
from pathlib import Path

import pytest
from tiny_package import CODE, FILES, InProcessSandbox, site

from frontrunner.envs import build, decontamination, taskset
from frontrunner.envs.check import check_tasks
from frontrunner.envs.leaks import LeakScan
from frontrunner.envs.mutations import apply, functions
from frontrunner.envs.validation import Options
from frontrunner.envs.variants import combinations, combined_parts, removals
from frontrunner.protocols import TestReport
from frontrunner.types import Mutation, Task, dump, load

__all__ = ["site"]

ELIF = "def f(a):\n    if a:\n        b = 1\n    elif a > 2:\n        b = 2\n    return b\n"


def make(options: Options) -> tuple[taskset.Header, list[Task]]:
    builder = build.Builder(InProcessSandbox(), 2, 0, lambda _: None, options)
    return builder.build(["tiny"], 50, 50)


@pytest.mark.parametrize("text", [CODE, ELIF])
def test_what_a_removal_leaves_still_parses(text: str) -> None:
    for function in functions(ast.parse(text)):
        for mutation in removals(function):
            ast.parse(apply(text, mutation))


def test_combinations_apply_every_part() -> None:
    singles = [Mutation("constant", n, 4, n, 5, "9") for n in (1, 2, 3)]
    text = "a = 1\nb = 2\nc = 3\n"
    found = combinations(singles)
    assert {len(m.more) for m in found} == {1, 2}
    assert any(apply(text, m) == "a = 9\nb = 9\nc = 9\n" for m in found)
    assert all(load(Mutation, dump(m)) == m for m in found)
    assert all(len(combined_parts(m, singles)) == 1 + len(m.more) for m in found)


def test_every_part_of_a_combined_bug_is_noticed_and_removals_are_valid(
    site: Path, tmp_path: Path
) -> None:
    header, tasks = make(Options(("single", "combined", "removed"), per_function=12))
    kinds = {task.mutation.kind for task in tasks}
    assert {"combined", "removed", "comparison"} <= kinds
    taskset.save(tmp_path / "set" / "tasks.jsonl", header, tasks)
    loaded = taskset.load(tmp_path / "set")
    reasons = check_tasks(loaded, loaded.tasks, InProcessSandbox(), 2)
    assert set(reasons.values()) == {"valid"}
    only, _ = make(Options(("combined",))), None
    assert {task.mutation.kind for task in only[1]} == {"combined"}


def test_hidden_tests_are_graded_and_neither_named_nor_run_before(site: Path) -> None:
    _, plain = make(Options())
    _, hidden = make(Options(hidden=True))
    assert not {t.id for t in plain} & {t.id for t in hidden}
    for task in hidden:
        assert not set(task.shown_tests) & set(task.fail_to_pass)
        assert not any(t.rsplit("::", 1)[-1] in task.instruction for t in task.fail_to_pass)


def test_near_duplicates_of_a_held_out_set_are_left_out(site: Path, tmp_path: Path) -> None:
    header, tasks = make(Options())
    taskset.save(tmp_path / "t.jsonl", header, tasks)
    known = taskset.load(tmp_path / "t.jsonl")
    builder = build.Builder(InProcessSandbox(), 2, 0, lambda _: None, against=known)
    assert builder.build(["tiny"], 50, 50)[1] == []


def test_similarity_ignores_names_and_constants_but_not_structure() -> None:
    def of(text: str) -> decontamination.Shingles:
        (function,) = functions(ast.parse(text))
        return decontamination.shingles(function.node)

    one = of("def f(a):\n    for x in a:\n        g(x + 1)\n    return a\n")
    assert decontamination.similarity(one, of(
        "def h(q):\n    'doc'\n    for z in q:\n        k(z + 7)\n    return q\n"
    )) == 1.0  # fmt: skip
    assert decontamination.similarity(one, of("def f(a):\n    return {1: a[0]}\n")) < 0.5


@pytest.mark.parametrize(
    ("extra", "kind"),
    [
        ({"tiny/copy.txt": CODE}, "copy"),
        ({"tiny/calc.py.orig": CODE}, "backup"),
        ({".git/HEAD": "ref"}, "version control"),
        ({"dist/tiny.whl": "PK"}, "archive"),
        ({"tiny/__pycache__/calc.cpython-311.pyc": "0" * 16}, "bytecode"),
        ({}, ""),
    ],
)
def test_the_leak_scan_finds_what_tells_the_answer(
    tmp_path: Path, extra: dict[str, str], kind: str
) -> None:
    for path, text in {**FILES, **extra}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = LeakScan(tmp_path).leak("tiny/calc.py", "clamp", CODE)
    assert found.partition(":")[0] == kind


def test_the_leak_scan_finds_a_file_singled_out_by_its_time(tmp_path: Path) -> None:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    later = (tmp_path / "tiny/calc.py").stat().st_mtime + 3600
    os.utime(tmp_path / "tiny/calc.py", (later, later))
    assert LeakScan(tmp_path).leak("tiny/calc.py", "clamp", CODE).startswith("modification time")


def test_a_fault_of_the_sandbox_is_not_checked_and_not_invalid(site: Path, tmp_path: Path) -> None:
    from frontrunner.errors import SandboxError

    class Broken(InProcessSandbox):
        def run_tests(self, *_: object, **__: object) -> TestReport:
            raise SandboxError("gone")

    header, tasks = make(Options())
    taskset.save(tmp_path / "t.jsonl", header, tasks)
    loaded = taskset.load(tmp_path / "t.jsonl")
    reasons = check_tasks(loaded, loaded.tasks, Broken(), 2)
    assert all(reason.startswith("not checked") for reason in reasons.values())
