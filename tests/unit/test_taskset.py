import ast
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_package import CODE, InProcessSandbox, install, site

from frontrunner.envs import build, packages, synthesis, taskset
from frontrunner.envs.check import check_tasks
from frontrunner.envs.mutations import functions, repair
from frontrunner.envs.workspace import Workspace
from frontrunner.errors import UserError
from frontrunner.types import Task

__all__ = ["site"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a built manifest and the cache of the build."""
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder / "site"))
        patch.setenv("FRONTRUNNER_CACHE", str(folder / "cache"))
        install(folder / "site")
        taskset.save(folder / "tiny.jsonl", *make(InProcessSandbox()))
    return folder


@pytest.fixture
def manifest(built: Path, site: Path, tmp_path: Path) -> Path:
    """A private copy of the manifest, with `tiny` installed and the cache filled."""
    shutil.copytree(built / "cache", tmp_path / "cache")
    return Path(shutil.copy(built / "tiny.jsonl", tmp_path))


def make(sandbox: InProcessSandbox, num: int = 50) -> tuple[taskset.Header, list[Task]]:
    return build.Builder(sandbox, 2, 0, lambda _: None).build(["tiny"], num, num)


def test_a_build_keeps_only_bugs_that_tests_notice(manifest: Path) -> None:
    tasks = taskset.load(manifest)
    assert len(tasks) >= 5
    assert {task.function for task in tasks.tasks} == {"clamp", "total", "Counter.up"}
    reasons = check_tasks(tasks, tasks.tasks, InProcessSandbox(), 2)
    assert set(reasons.values()) == {"valid"}
    assert tasks.header.yields["all"]["valid"] == len(tasks)
    assert tasks.header.yields["all"]["tried"] > len(tasks)


def test_a_build_is_the_same_every_time_and_resumes_from_its_cache(manifest: Path) -> None:
    sandbox = InProcessSandbox()
    header, tasks = make(sandbox)
    assert sandbox.num_runs == 0
    loaded = taskset.load(manifest)
    assert loaded.tasks == tuple(tasks)
    assert loaded.header == header


def test_a_build_survives_a_torn_cache(manifest: Path) -> None:
    (cache,) = (packages.cache_dir() / "build").glob("results-*.jsonl")
    lines = cache.read_text().splitlines()
    cache.write_text("\n".join(lines[:-3]) + "\n" + lines[-3][:20])
    sandbox = InProcessSandbox()
    _, tasks = make(sandbox)
    assert 0 < sandbox.num_runs <= 9
    assert tuple(tasks) == taskset.load(manifest).tasks


def test_a_build_stops_at_the_numbers_asked_for(site: Path) -> None:
    _, tasks = make(InProcessSandbox(), 2)
    assert max(Counter(task.split for task in tasks).values()) == 2


def test_flaky_tests_judge_nothing(site: Path) -> None:
    _, tasks = make(InProcessSandbox(flaky="test_clamp_inside"))
    listed = {test for task in tasks for test in task.fail_to_pass + task.pass_to_pass}
    assert not any(test.endswith("::test_clamp_inside") for test in listed)


def test_base_and_gold_differ_by_the_mutation(manifest: Path) -> None:
    tasks = taskset.load(manifest)
    for task in tasks.tasks:
        assert tasks.gold(task) == {"tiny/calc.py": CODE}
        (base,) = tasks.base_files(task).values()
        assert base != CODE
        ast.parse(base)


def test_splits_share_no_function(manifest: Path) -> None:
    tasks = taskset.load(manifest)
    sides = [{task.function for task in tasks.split(side)} for side in ("train", "heldout")]
    assert not sides[0] & sides[1]
    assert sum(len(tasks.split(side)) for side in ("train", "heldout")) == len(tasks)


def test_a_task_is_found_by_the_beginning_of_its_id(manifest: Path) -> None:
    tasks = taskset.load(manifest)
    task = tasks.tasks[0]
    assert tasks.task(task.id) is task
    assert tasks.task(task.id[:-2]) is task
    with pytest.raises(UserError, match="no task of tiny"):
        tasks.task("other")
    with pytest.raises(UserError, match="tasks of tiny match 'tiny-'"):
        tasks.task("tiny-")


def test_another_version_is_refused(
    manifest: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRONTRUNNER_CACHE", str(site / "empty"))
    install(site, version="2.0")
    tasks = taskset.load(manifest)
    with pytest.raises(UserError, match=r"tiny 2\.0 is installed but the task set needs 1\.0"):
        tasks.trees()


def test_a_changed_tree_is_refused(manifest: Path) -> None:
    tasks = taskset.load(manifest)
    file = tasks.tree(tasks.tasks[0]) / "tiny/calc.py"
    file.chmod(0o644)
    file.write_text(CODE + "\n")
    with pytest.raises(UserError, match="is not the file that task"):
        tasks.base_files(tasks.tasks[0])


def edit_line(number: int, change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        lines = text.splitlines()
        record = json.loads(lines[number - 1])
        change(record)
        lines[number - 1] = json.dumps(record)
        return "\n".join(lines)

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: "", "is empty"),
        (lambda text: text.splitlines()[0], "holds no tasks"),
        (lambda text: text[:-30], r"line \d+: Invalid JSON"),
        (edit_line(1, lambda r: r.update(format="x")), "line 1: format is 'x'"),
        (edit_line(1, lambda r: r.pop("packages")), "line 1: field packages"),
        (edit_line(1, lambda r: r["packages"].clear()), "line 2: .* is not in the header"),
        (edit_line(2, lambda r: r["mutation"].update(line="x")), r"line 2: field mutation\.line"),
        (edit_line(3, lambda r: r.update(split="test")), "line 3: field split"),
        (edit_line(2, lambda r: r.update(function="g")), "its content belongs to id"),
        (lambda text: text + text.splitlines()[1], "occurs twice"),
        (
            edit_line(
                2, lambda r: r.update(split={"train": "heldout", "heldout": "train"}[r["split"]])
            ),
            "is in both splits",
        ),
    ],
)
def test_a_damaged_manifest_is_located(
    manifest: Path, damage: Callable[[str], str], message: str
) -> None:
    manifest.write_text(damage(manifest.read_text()))
    with pytest.raises(UserError, match=message) as error:
        taskset.load(manifest)
    assert str(manifest) in str(error.value)


def test_an_unknown_set_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"no task set 'nothing'.*quickstart"):
        taskset.load("nothing")


def test_the_shipped_set_keeps_its_promises() -> None:
    tasks = taskset.load("quickstart")
    assert len(tasks.split("train")) >= 600
    assert len(tasks.split("heldout")) >= 200
    assert {s.name: s.version for s in packages.SOURCES} == {
        name: pin.version for name, pin in tasks.header.packages.items()
    }
    assert taskset.manifest_path("quickstart").stat().st_size < 1_500_000
    for task in tasks.tasks:
        assert len(task.fail_to_pass) <= 4
        assert len(task.pass_to_pass) <= 4
        assert len(task.mutation.after) <= synthesis.MAX_AFTER
        assert f"`{task.function}`" in task.instruction


def test_no_function_body_of_the_shipped_set_is_in_both_splits() -> None:
    tasks = taskset.load("quickstart")
    keys: dict[tuple[str, str, str], str] = {}
    sides: dict[str, set[str]] = {}
    for task in tasks.tasks:
        place = (task.package, task.path, task.function)
        if place not in keys:
            module = ast.parse(tasks.gold(task)[task.path])
            for function in functions(module):
                key = synthesis.body_key(function.node)
                keys[task.package, task.path, function.qualname] = key
        sides.setdefault(keys[place], set()).add(task.split)
    assert all(len(side) == 1 for side in sides.values())


def test_every_shipped_bug_can_be_seen_and_undone_with_the_tools() -> None:
    tasks = taskset.load("quickstart")
    for task in tasks.tasks[::20]:
        (gold,) = tasks.gold(task).values()
        workspace = Workspace(tasks.tree(task), tasks.base_files(task))
        rows = workspace.view(task.function).split("\n")
        edit = repair(gold, task.mutation, [row.partition(" ")[2] for row in rows])
        assert edit is not None
        workspace.edit(*edit)
        assert workspace.submission == {task.path: gold}
