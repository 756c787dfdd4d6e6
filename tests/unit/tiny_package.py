"""A package of our own in a temporary folder, and a sandbox that runs it in-process."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from frontrunner.envs import packages
from frontrunner.protocols import TestReport

CODE = '''\
"""Small sums."""


def clamp(value, low, high):
    """Keep a value between two bounds."""
    if value < low:
        return low
    if value > high:
        return high
    return value


def total(numbers, start=0):
    result = start
    for number in numbers:
        result = result + number
    return result


class Counter:
    def __init__(self):
        self.count = 0

    def up(self, step=1):
        if step < 1:
            raise ValueError("step")
        self.count += step
        return self.count
'''
TESTS = """\
from tiny.calc import Counter, clamp, total


def test_clamp():
    assert clamp(5, 0, 3) == 3
    assert clamp(-1, 0, 3) == 0


def test_clamp_inside():
    assert clamp(2, 0, 3) == 2


def test_total():
    assert total([1, 2]) == 3


def test_total_of_nothing():
    assert total([]) == 0


def test_counter():
    assert Counter().up(2) == 2


def test_truth():
    assert True
"""
FILES = {
    "tiny/__init__.py": "",
    "tiny/calc.py": CODE,
    "tiny/tests/__init__.py": "",
    "tiny/tests/test_calc.py": TESTS,
}


def forget() -> None:
    """Drop what `packages` remembers about installed distributions."""
    for function in (packages._installed, packages.digest, packages.libraries):
        function.cache_clear()


def install(site: Path, version: str = "1.0", files: dict[str, str] | None = None) -> None:
    """Write the package and its metadata as pip would."""
    for path, text in (files or FILES).items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    for old in site.glob("tiny-*.dist-info/*"):
        old.unlink()
    info = site / f"tiny-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")
    listed = [*(files or FILES), f"tiny-{version}.dist-info/METADATA", "../../bin/tiny"]
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in listed))
    for empty in site.glob("tiny-*.dist-info"):
        if not any(empty.iterdir()):
            empty.rmdir()
    forget()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with `tiny` 1.0 in it, and an empty cache."""
    folder = tmp_path / "site"
    install(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("FRONTRUNNER_CACHE", str(tmp_path / "cache"))
    forget()
    yield folder
    forget()


class InProcessSandbox:
    """Runs `tiny`'s tests by `exec`; `flaky` names a test that fails at random."""

    def __init__(self, flaky: str = "") -> None:
        self.num_runs = 0
        self._flaky = flaky
        self._random = random.Random(0)

    def run_tests(
        self,
        tree: Path,
        files: dict[str, str | None],
        tests: Sequence[str],
        *,
        timeout: float,
        max_failures: int = 0,
    ) -> TestReport:
        self.num_runs += 1
        space: dict[str, object] = {}
        exec(files.get("tiny/calc.py") or (tree / "tiny/calc.py").read_text(), space)
        text = (tree / "tiny/tests/test_calc.py").read_text()
        without_import = text.partition("\n")[2]
        exec(without_import, space)
        outcomes, message = {}, ""
        for test in tests:
            name = test.split("::")[1]
            try:
                space[name]()  # type: ignore[operator]
                if name == self._flaky and self._random.random() < 0.5:
                    raise AssertionError
                outcomes[test] = "passed"
            except Exception as error:
                outcomes[test] = "failed"
                message = message or f"{name}: {type(error).__name__}: {error}"
        return TestReport(outcomes, message, False, False, 0.001)

    def close(self) -> None:
        pass
