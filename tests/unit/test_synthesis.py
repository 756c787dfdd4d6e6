import ast
from pathlib import Path

import pytest
from tiny_package import FILES

from frontrunner.envs import synthesis
from frontrunner.envs.mutations import apply, functions
from frontrunner.envs.reach import Reached, is_test_file
from frontrunner.envs.synthesis import NUM_VARIANTS, Target
from frontrunner.types import Mutation


def tree_of(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode())
    return folder


def key(source: str) -> str:
    (function,) = functions(ast.parse(source))
    return synthesis.body_key(function.node)


@pytest.mark.parametrize("variant", range(NUM_VARIANTS))
def test_instructions_name_function_and_module_in_few_words(variant: int) -> None:
    text = synthesis.instruction("Path.child", "pkg.paths", "test_child", "TypeError", variant)
    assert "`Path.child`" in text
    assert "pkg.paths" in text
    assert ".py" not in text
    assert len(text.split()) <= 40
    assert ("test_child" in text) == (variant < NUM_VARIANTS // 2) == ("TypeError" in text)


def test_variants_differ_and_wrap_around() -> None:
    args = ("f", "m", "test_f", "KeyError")
    texts = [synthesis.instruction(*args, variant) for variant in range(NUM_VARIANTS + 1)]
    assert len(set(texts)) == NUM_VARIANTS
    assert texts[0] == texts[-1]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("test_x: AssertionError: assert 1 == 2", ("test_x", "AssertionError")),
        ("test_x[a:b]: pkg.Oops: no", ("test_x", "Oops")),
        ("test_x: KeyError", ("test_x", "KeyError")),
        ("test_x: Oops.wrap(KeyError): no", ("test_x", "KeyError")),
        ("p/t.py: E   pkg.Oops: no", ("test_y", "Oops")),
        ("", ("test_y", "an error")),
        ("t.py: something odd", ("test_y", "an error")),
    ],
)
def test_symptoms_name_test_and_exception(message: str, expected: tuple[str, str]) -> None:
    assert synthesis.symptom(message, "t.py::T::test_y[1]") == expected


def test_ids_follow_the_content() -> None:
    mutation = Mutation("comparison", 1, 2, 1, 3, "<=")
    one = synthesis.content_id("toolz", "1.0", "a.py", "f", mutation, ["t::x"])
    two = synthesis.content_id("toolz", "1.0", "a.py", "f", mutation, ["t::y"])
    assert one != two
    assert one == synthesis.content_id("toolz", "1.0", "a.py", "f", mutation, ("t::x",))
    name, _, digest = one.rpartition("-")
    assert name == "toolz"
    assert len(digest) == 12


def test_copies_of_a_function_share_a_key_whatever_their_names() -> None:
    one = key('def f(a, b=1):\n    """Doc."""\n    return a + b\n')
    assert one == key("def g(x, y=1):\n    return x + y\n")
    assert one != key("def g(x, y=1):\n    return y + x\n")


def test_splits_are_stable_and_near_the_share() -> None:
    sides = [synthesis.split_of(f"{n:016x}", seed=0) for n in range(2000)]
    assert sides == [synthesis.split_of(f"{n:016x}", seed=0) for n in range(2000)]
    assert abs(sides.count("heldout") / 2000 - synthesis.HELDOUT_SHARE) < 0.04
    assert sides != [synthesis.split_of(f"{n:016x}", seed=1) for n in range(2000)]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("pkg/tests/helpers.py", True),
        ("pkg/test_x.py", True),
        ("pkg/x_test.py", True),
        ("pkg/conftest.py", True),
        ("pkg/testing_tools.py", False),
        ("pkg/latest.py", False),
    ],
)
def test_test_files_are_told_by_name(path: str, expected: bool) -> None:
    assert is_test_file(path) == expected


def test_targets_are_functions_that_the_tools_can_find_and_repair(tmp_path: Path) -> None:
    found = synthesis.targets("tiny", tree_of(tmp_path, FILES))
    assert [t.function for t in found] == ["clamp", "total", "Counter.up"]
    text = FILES["tiny/calc.py"]
    for target in found:
        assert 0 < len(target.mutations) <= synthesis.MAX_TRIED
        mutants = {apply(text, mutation) for mutation in target.mutations}
        assert len(mutants) == len(target.mutations)
        assert text not in mutants


def test_kinds_alternate_in_a_target(tmp_path: Path) -> None:
    body = "def f(a, b):\n    c = a < b and 1\n    c = c + (a > b)\n    return g(a, b, 7) + c\n"
    (target,) = synthesis.targets("p", tree_of(tmp_path, {"p/m.py": body}))
    kinds = [m.kind for m in target.mutations]
    assert kinds[:4] == ["boolean", "arithmetic", "comparison", "constant"]


@pytest.mark.parametrize(
    "files",
    [
        {"p/m.py": "def f(a):\r\n    b = a\r\n    return b < 1\r\n"},
        {"p/m.py": "def f(a):\n    b = a\n    return b < 1\n", "p/n.py": "def f():\n    pass\n"},
        {"p/m.py": "def f(a):\n    return a < 1\n"},
        {"p/m.py": "def f(a):\n    b = (\n    return b < 1\n"},
        {"p/tests/m.py": "def f(a):\n    b = a\n    return b < 1\n"},
        {"p/m.py": "def f(a):\n    b = a\n    return isinstance(a, b)\n"},
    ],
    ids=["crlf", "ambiguous", "short", "syntax", "test", "nothing to mutate"],
)
def test_what_makes_no_target(tmp_path: Path, files: dict[str, str]) -> None:
    assert synthesis.targets("p", tree_of(tmp_path, files)) == []


def test_selected_tests_are_specific_fast_and_few() -> None:
    target = Target("p", "p/m.py", "Box.grow", "k", ())
    name = "p/m.py::Box.grow"

    def row(test: str, seconds: float, functions: set[str]) -> Reached:
        return Reached(test, seconds, frozenset(functions))

    reached = [
        row("a.py::test_wide", 0.01, {name, "x", "y"}),
        row("a.py::test_grow", 0.01, {name, "x", "y", "z"}),
        row("b.py::test_narrow", 0.01, {name}),
        row("b.py::test_slow", 9.0, {name}),
        row("c.py::test_third_file", 0.01, {name, *"abcdefgh"}),
        row("b.py::test_other", 0.02, {"x"}),
        row("c.py::test_far", 0.001, {"x"}),
        *(row(f"b.py::test_many[{n}]", 0.02, {name, *"abcde"}) for n in range(20)),
    ]
    covering, neighbours = synthesis.select_tests(target, reached)
    assert covering[:3] == ["a.py::test_grow", "b.py::test_narrow", "a.py::test_wide"]
    assert len(covering) == synthesis.MAX_COVERING
    assert "b.py::test_slow" not in covering
    assert neighbours == ["b.py::test_other"]
