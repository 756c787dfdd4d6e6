"""Imports point one way: a room imports only rooms of lower rank, and heavy libraries stay put."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from project_tree import PACKAGE, ROOT, Import, imports, room, source_files

import frontrunner

RANKS = {
    **dict.fromkeys(("types", "protocols", "config", "errors"), 0),
    **dict.fromkeys(("effort", "algo", "envs", "quant", "spec"), 1),
    **dict.fromkeys(("verify", "engine", "train"), 2),
    **dict.fromkeys(("backends", "integrations", "rollout"), 3),
    **dict.fromkeys(("evals", "report", "testing"), 4),
    "run": 5,
    **dict.fromkeys(("cli", "__main__"), 6),
}
HEAVY = {"torch", "transformers", "vllm", "sglang", "ray", "tinker", "verl", "trl"}
HEAVY_ROOMS = {"engine", "train", "backends", "spec", "quant", "integrations", "testing"}
LAZY_ROOMS = {"run", "cli"}
"""Here a function may import a heavy library, but loading the file may not."""


def target_room(module: str) -> str | None:
    """The room that `frontrunner.x.y` lies in; None for other packages and the root itself."""
    parts = module.split(".")
    return parts[1] if parts[0] == "frontrunner" and len(parts) > 1 else None


def allowed(found: Import) -> bool:
    """Whether a file may import what it imports, by rank."""
    here, there = room(found.path), target_room(found.module)
    if there is None or there == here or there == "__version__":
        return True
    lower = RANKS[there] < RANKS[here]
    return lower or RANKS[here] == RANKS[there] == 0


def test_every_room_has_a_rank() -> None:
    rooms = {room(p) for p in source_files()} - {"__init__", "data"}
    assert rooms <= set(RANKS), f"give a rank to {sorted(rooms - set(RANKS))}"


def test_a_lower_rank_never_imports_a_higher_one() -> None:
    wrong = [str(i) for p in source_files() for i in imports(p) if not allowed(i)]
    assert not wrong, "\n".join(wrong)


def test_the_root_module_imports_nothing() -> None:
    assert list(imports(PACKAGE / "__init__.py")) == []


def test_heavy_libraries_stay_in_their_rooms() -> None:
    wrong = [
        str(i)
        for p in source_files()
        if room(p) not in HEAVY_ROOMS
        for i in imports(p)
        if i.module.split(".")[0] in HEAVY and not (i.lazy and room(p) in LAZY_ROOMS)
    ]
    assert not wrong, "\n".join(wrong)


def test_code_in_the_box_needs_the_standard_library_and_pytest_only() -> None:
    names = ("confine", "guard", "launch", "paths", "report", "runner", "server")
    inside = tuple(f"box_{name}" for name in names)
    known = set(sys.stdlib_module_names) | {"pytest", "_pytest", "pluggy"}
    wrong = [
        str(i)
        for p in source_files()
        if p.stem in inside
        for i in imports(p)
        if i.module.split(".")[0] not in known and not set(i.module.split(".")) & set(inside)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("code", ["import frontrunner.cli.main", "import frontrunner.config"])
def test_the_command_line_loads_without_torch(code: str) -> None:
    loaded = modules_after(code)
    assert not loaded & HEAVY, f"{code} loads {sorted(loaded & HEAVY)}"


def test_help_loads_without_torch_numpy_and_pydantic() -> None:
    code = (
        "import contextlib, io\n"
        "from frontrunner.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    main(['--help'])"
    )
    loaded = modules_after(code)
    slow = HEAVY | {"numpy", "scipy", "pydantic", "matplotlib"}
    assert not loaded & slow, f"--help loads {sorted(loaded & slow)}"


def modules_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running `code`."""
    probe = f"import sys\n{code}\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", probe],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("file", "module", "legal"),
    [
        ("algo/x.py", "frontrunner.types.Group", True),
        ("algo/x.py", "frontrunner.effort.reward.reward", False),
        ("types.py", "frontrunner.errors.UserError", True),
        ("types.py", "frontrunner.algo.baseline", False),
        ("train/x.py", "frontrunner.algo.packing.pack", True),
        ("train/x.py", "frontrunner.engine.engine", False),
        ("run.py", "frontrunner.report.tracker", True),
        ("report/x.py", "frontrunner.run.train", False),
    ],
)
def test_the_rule_itself(file: str, module: str, legal: bool) -> None:
    assert allowed(Import(PACKAGE / file, 1, module, lazy=False)) is legal


def test_lazy_and_type_only_imports_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import a.b\n"
        "def f():\n    from c import d\n",
        encoding="utf-8",
    )
    found = {(i.module, i.lazy) for i in imports(file)}
    assert found == {("typing.TYPE_CHECKING", False), ("a.b", True), ("c.d", True)}
    assert ast.parse(file.read_text(encoding="utf-8"))


def test_grading_does_not_import_torch() -> None:
    code = "import sys, frontrunner.verify.grader, frontrunner.envs.sandbox as s\n"
    code += "print('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(frontrunner.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "False"
