"""Seals: where a token is put into a test, and what a run must show."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from frontrunner.verify.canaries import WORDS
from frontrunner.verify.seals import Seals, make_seals

SUITE = '''
def test_plain():
    """Says something."""
    assert 1 + 1 == 2  # as ever

def test_block():
    for x in range(2):
        assert x < 2

def test_text():
    text = """
not indented"""
    assert text

class TestBase:
    def test_inherited(self):
        return None

class TestMore(TestBase):
    def test_own(self):
        assert True; assert True

def test_broken():
    assert 1 == 2

def test_early():
    if True:
        return
    assert True

def test_line(): assert True

def test_raise():
    raise ValueError
'''
FILE = "pkg/test_a.py"
NAMES = (
    "test_plain",
    "test_block",
    "test_text",
    "TestMore::test_inherited",
    "TestMore::test_own",
)
PLACES = tuple(f"_{word}_" for word in WORDS)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / FILE).write_text(SUITE)
    return tmp_path


def shown(seals: Seals, optimise: int = 0) -> str:
    """Message of the last test after the others ran, without a test runner."""
    for name in [name for name in vars(sys) if name.startswith(PLACES)]:
        delattr(sys, name)  # what another run with the same random numbers left
    *tests, last = seals.tests
    space: dict[str, object] = {}
    exec(compile(seals.files[FILE], FILE, "exec", optimize=optimise), space)
    for test in tests:
        owner: object = None
        for name in test.split("[")[0].split("::")[1:]:
            made = owner() if isinstance(owner, type) else owner
            owner = space[name] if made is None else getattr(made, name)
        try:
            owner()  # type: ignore[operator]
        except AssertionError:
            continue
    path, name = last.split("::")
    exec(seals.files[path], space)
    try:
        space[name]()  # type: ignore[operator]
    except AssertionError as error:
        return f"{name}: AssertionError: {error}"
    return ""


def seal(tree: Path, *names: str) -> Seals:
    return make_seals(tree, [f"{FILE}::{name}" for name in names], random.Random(1))


def test_every_test_that_reaches_its_end_leaves_its_token(tree: Path) -> None:
    seals = seal(tree, *NAMES)
    assert len(set(seals.tokens.values())) == len(NAMES)
    assert seals.broken(shown(seals)) == frozenset()


def test_a_test_that_stops_before_its_end_leaves_none(tree: Path) -> None:
    seals = seal(tree, "test_plain", "test_broken", "test_early")
    assert seals.broken(shown(seals)) == {f"{FILE}::test_broken", f"{FILE}::test_early"}
    assert seals.broken("test_plain: AssertionError") == set(seals.tokens)


def test_a_run_without_assertions_leaves_none(tree: Path) -> None:
    seals = seal(tree, *NAMES)
    assert seals.broken(shown(seals, optimise=1)) == set(seals.tokens)


def test_tests_without_a_place_for_a_token_are_left_out(tree: Path) -> None:
    seals = seal(tree, "test_line", "test_raise", "test_gone", "TestMore::test_gone")
    assert seals.tokens == {}
    assert make_seals(tree, ["pkg/none.py::test_a"], random.Random(1)).tokens == {}


def test_parameters_share_their_function(tree: Path) -> None:
    assert len(set(seal(tree, "test_plain[1]", "test_plain[2]").tokens.values())) == 1


def test_tokens_and_places_differ_each_time(tree: Path) -> None:
    tests = [f"{FILE}::test_plain"]
    one, two = (make_seals(tree, tests, random.Random(seed)) for seed in (1, 2))
    assert one.tests[-1] != two.tests[-1]
    assert one.tokens != two.tokens
    assert one.files[FILE] != two.files[FILE]
