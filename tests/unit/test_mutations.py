import ast

import pytest

from frontrunner.envs.mutations import KINDS, apply, functions, repair, sites
from frontrunner.types import Mutation

SOURCE = '''\
def first(items, key):
    """Doc with 1 < 2."""
    for item in items:
        if item < 3 and not key:
            continue
        if key(item, items) or max(item, 2) is not None:
            return item + 1
        break
    if items:
        return f"{1 + 2}"


class Box:
    def half(self, x):
        x -= 1
        return x // 2
'''


def mutants(source: str) -> list[tuple[Mutation, str]]:
    return [
        (mutation, apply(source, mutation))
        for function in functions(ast.parse(source))
        for mutation in sites(source, function)
    ]


def line(source: str, mutation: Mutation) -> str:
    return apply(source, mutation).split("\n")[mutation.line - 1].strip()


def test_functions_are_named_as_in_the_module() -> None:
    found = [(f.qualname, f.first, f.last) for f in functions(ast.parse(SOURCE))]
    assert found == [("first", 1, 10), ("Box.half", 14, 16)]


def test_every_kind_of_mutation_is_found() -> None:
    assert {mutation.kind for mutation, _ in mutants(SOURCE)} == set(KINDS)


def test_mutants_parse_and_differ_on_one_line() -> None:
    for mutation, mutant in mutants(SOURCE):
        ast.parse(mutant)
        pairs = list(zip(SOURCE.split("\n"), mutant.split("\n"), strict=True))
        changed = [number for number, (old, new) in enumerate(pairs, 1) if old != new]
        assert changed == [mutation.line]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("a < b", {"a <= b", "a > b"}),
        ("a is not b", {"a is b"}),
        ("(a) not in (b)", {"(a) in (b)"}),
        ("a and b", {"a or b"}),
        ("f(a, b)", {"f(b, a)"}),
        ("any(a)", {"all(a)"}),
        ("a % b", {"a // b"}),
        ("a[1]", {"a[2]", "a[0]"}),
        ("True", {"False"}),
        ("'%s' % a", set()),
        ("0xff", set()),
        ("f'{a < b}'", set()),
    ],
)
def test_operators(code: str, expected: set[str]) -> None:
    source = f"def f():\n    return {code}\n"
    (function,) = functions(ast.parse(source))
    got = {line(source, m).removeprefix("return ") for m in sites(source, function)}
    assert got == expected


def test_columns_count_bytes() -> None:
    source = "def f(a):\n    return 'é' if a == 'ü' else 'ö' * a\n"
    (function,) = functions(ast.parse(source))
    got = {line(source, m) for m in sites(source, function)}
    assert "return 'é' if a != 'ü' else 'ö' * a" in got


def test_repair_is_one_unambiguous_replacement() -> None:
    source = "def f(a, b):\n    return a < b < a < b or a + 1 + 1 == 1\n"
    for text in (SOURCE, source):
        for mutation, mutant in mutants(text):
            rows = mutant.split("\n")
            edit = repair(text, mutation, rows)
            if edit is None:
                assert mutant.count(rows[mutation.line - 1].strip()) > 1
                continue
            assert mutant.count(edit[0]) == 1
            assert mutant.replace(*edit) == text


def test_repair_names_the_place_by_the_word_before_it() -> None:
    source = "def f(a, b):\n    if a[0] < b:\n        return a\n    return b < 0\n"
    edits = {repair(source, m, mutant.split("\n")) for m, mutant in mutants(source)}
    assert {("0] <=", "0] <"), ("a[1", "a[0"), ("b >", "b <")} <= edits


def test_no_repair_where_two_lines_are_the_same() -> None:
    source = "def f(a):\n    if a:\n        return True\n    if a > 1:\n        return False\n"
    found = [m for m, _ in mutants(source) if m.after == "False"]
    assert [repair(source, m, apply(source, m).split("\n")) for m in found] == [None]
