"""Random tests whose outcome is known: they show whether the test runner still tells the truth.

Code that patches pytest, `assert` helpers or unittest so that everything passes also makes the
must-fail canaries pass. Names, numbers, styles and files differ in every run, and the files sit
beside the real tests, so that code cannot know which is which without reading them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

WORDS = ("basic", "empty", "nested", "order", "single", "many", "default", "types", "errors")


@dataclass(frozen=True, slots=True)
class Canaries:
    """Two test files and what each of their tests must say."""

    files: dict[str, str]
    first: tuple[str, ...]
    """Node ids to run before the real tests."""
    last: tuple[str, ...]
    must_pass: frozenset[str]
    must_fail: frozenset[str]


def _plain(name: str, rng: random.Random, holds: bool) -> tuple[str, str]:
    values = rng.sample(range(100), 4)
    right = sorted(values) if holds else sorted(values)[::-1]
    return name, f"def {name}():\n    assert sorted({values}) == {right}\n"


def _case(name: str, rng: random.Random, holds: bool) -> tuple[str, str]:
    left, right = rng.randrange(2, 99), rng.randrange(2, 99)
    answer = left * right + (0 if holds else rng.randrange(1, 9))
    group = "Test" + name.removeprefix("test_").title().replace("_", "")
    body = f"        self.assertEqual({left} * {right}, {answer})\n"
    return f"{group}::{name}", (f"class {group}(unittest.TestCase):\n    def {name}(self):\n{body}")


def _raises(name: str, rng: random.Random, holds: bool) -> tuple[str, str]:
    text = rng.choice(["x", "q", "--"]) if holds else str(rng.randrange(999))
    return name, f"def {name}():\n    with pytest.raises(ValueError):\n        int({text!r})\n"


def _approx(name: str, rng: random.Random, holds: bool) -> tuple[str, str]:
    value = round(rng.uniform(1, 9), 3)
    answer = value * 3 + (0 if holds else rng.uniform(0.5, 2))
    return name, f"def {name}():\n    assert {value} * 3 == pytest.approx({answer!r})\n"


_STYLES = (_plain, _case, _raises, _approx)


def make_canaries(folder: str, package: str, rng: random.Random) -> Canaries:
    """Two files in `folder` (`""` for the root), each with a test that holds and one that fails.

    They import `package`, as its real tests do.
    """
    files: dict[str, str] = {}
    groups: list[tuple[str, ...]] = []
    must_pass: set[str] = set()
    must_fail: set[str] = set()
    for _ in range(2):
        path = f"test_{rng.choice(WORDS)}_{rng.getrandbits(40):x}.py"
        path = f"{folder}/{path}" if folder else path
        parts = [f"import unittest\n\nimport pytest\n\nimport {package}  # noqa: F401\n"]
        ids = []
        styles = rng.sample(_STYLES, 2)
        for style, holds in zip(styles, rng.sample([True, False], 2), strict=True):
            name = f"test_{rng.choice(WORDS)}_{rng.choice(WORDS)}_{rng.getrandbits(16):x}"
            node, text = style(name, rng, holds)
            parts.append(text)
            ids.append(f"{path}::{node}")
            (must_pass if holds else must_fail).add(ids[-1])
        files[path] = "\n\n".join(parts)
        groups.append(tuple(ids))
    return Canaries(files, groups[0], groups[1], frozenset(must_pass), frozenset(must_fail))
