"""Runs pytest in this process and reports each test over a pipe (standard library and pytest).

Everything here shares the interpreter with untrusted code. What protects the report: a keyed
digest on each line, outcomes decided and written in a frame that began before any untrusted import
and holds what it needs in local variables, the guard over pytest's internals and over this file's
own objects (`box_guard`), and the canaries and seals that the grader adds.
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import linecache
import os
import random
import re
import sys
import tempfile
import types
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import _pytest.config
import pytest

from frontrunner.envs.box_report import Emit

Check = Callable[[bool], str]
"""What changed in the interpreter, or ''; the argument asks for a thorough look."""
Keep = Callable[[object, Sequence[Callable[..., Any]]], None]
"""Tells the guard to watch an object with its class, and functions."""
Phase = tuple[str, str, bool]
"""`setup`, `call` or `teardown`; pytest's outcome; whether we saw a call end without an error."""

_ARGS = (
    "--assert=plain",
    "--capture=no",
    "--tb=no",
    "--continue-on-collection-errors",
    "-q",
    "-c/opt/pytest.ini",
    "--rootdir=/repo",
    *(f"-pno:{name}" for name in ("cacheprovider", "faulthandler", "junitxml", "pastebin")),
)
_MESSAGE_CHARS = 400
_ADDRESS = re.compile(r"\b0x[0-9a-f]{8,16}\b")
_PRELOADED = (
    "bisect calendar cmath colorsys copy csv datetime decimal fractions gzip heapq html numbers "
    "queue random secrets shlex statistics string textwrap timeit uuid xml.etree.ElementTree zlib"
)
_DECIDING = (
    "pytest_collection_modifyitems",
    "pytest_fixture_setup",
    "pytest_pycollect_makeitem",
    "pytest_pyfunc_call",
    "pytest_runtest_call",
    "pytest_runtest_logreport",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
    "pytest_runtestloop",
)
_COMPLETE = (0, 1, 5)
"""Exit codes of a session that ran to its end: passed, failed, nothing to run."""


def _matches(node_id: str, wanted: dict[str, int]) -> int | None:
    """Rank of the requested id that selects this test: itself, its class, file or directory."""
    if node_id in wanted:
        return wanted[node_id]
    for prefix in _prefixes(node_id):
        if prefix in wanted:
            return wanted[prefix]
    return None


def _prefixes(node_id: str) -> list[str]:
    path, *names = node_id.split("[", 1)[0].split("::")
    found = ["::".join([path, *names[:count]]) for count in range(len(names), -1, -1)]
    while "/" in path:
        path = path.rpartition("/")[0]
        found.append(path)
    return found


def _describe(name: str, error: BaseException) -> str:
    """`test_x: AssertionError: assert f(2) == 4`; the statement stands in for an empty message.

    Addresses of objects become `0x...`: they differ from run to run, tell an agent nothing, and one
    of them in an observation makes a resumed run sample other tokens.
    """
    text = str(error).strip().split("\n", 1)[0]
    trace = error.__traceback__
    if not text and trace is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        text = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip()
    text = _ADDRESS.sub("0x...", text)
    return f"{name}: {type(error).__name__}: {text}"[:_MESSAGE_CHARS]


def _code(item: pytest.Item) -> types.CodeType | None:
    """Code object of a test function; None for tests of other kinds."""
    function = getattr(item, "obj", None)
    return getattr(getattr(function, "__func__", function), "__code__", None)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _replaced(items: Sequence[pytest.Item]) -> str:
    """Names a test whose code is not what its file says.

    Decorated functions are let through: a decorator may rightly put another function there.
    """
    written: dict[str, dict[str, types.CodeType]] = {}
    lines: dict[str, list[bytes]] = {}
    for item in items:
        path = str(item.path)
        if path not in written:
            loader = importlib.machinery.SourceFileLoader("judged", path)
            code = loader.get_code("judged")
            written[path] = {part.co_qualname: part for part in _nested(code)} if code else {}
            lines[path] = loader.get_data(path).split(b"\n")
        name = item.nodeid.split("[", 1)[0].partition("::")[2].replace("::", ".")
        expected, found = written[path].get(name), _code(item)
        if expected is not None and found is not None and found != expected:
            first = lines[path][expected.co_firstlineno - 1].lstrip()
            if not first.startswith(b"@"):
                return f"{item.name} was replaced"
    return ""


def _fold(phases: Sequence[Phase]) -> str:
    """Outcome of one test from its phases; a test that never reported a call did not pass."""
    outcome = ""
    for when, said, returned in phases:
        if said == "failed":
            outcome = "failed" if when == "call" else "error"
        elif said == "skipped":
            outcome = outcome or "skipped"
        elif when == "call":
            outcome = "passed" if returned else "failed"
    return outcome or "error"


class _Reports:
    """Pytest plugin: selects and orders the requested tests, and notes how each phase ended.

    It is registered before the fork and armed after it. Once armed, no slot is assigned again:
    what changes is inside the containers, so the guard can watch the slots by identity.
    """

    __slots__ = (
        "_check",
        "_codes",
        "_early",
        "_emit",
        "_known",
        "_names",
        "_plugins",
        "_returned",
        "_said",
        "_wanted",
        "phases",
    )

    def __init__(self) -> None:
        self._emit: Emit = lambda record: None
        self._check: Check = str
        self._wanted: dict[str, int] = {}
        self._names: dict[str, set[str]] = {}
        self._codes: dict[str, object] = {}
        self._known: list[tuple[Any, dict[int, Any]]] = []
        self._plugins: list[Any] = []
        self._returned: set[str] = set()
        self._said: list[str] = []
        self._early: set[str] = set()
        self.phases: list[Phase] = []

    def arm(self, emit: Emit, tests: Sequence[str], check: Check) -> None:
        self._emit, self._check = emit, check
        self._wanted.update({test: rank for rank, test in reversed(list(enumerate(tests)))})
        for test in tests:
            path, *names = test.split("[", 1)[0].split("::")
            self._names.setdefault(path, set()).add(names[0] if names else "")

    def pytest_collection(self, session: pytest.Session) -> None:
        """Remembers who may answer the hooks that decide an outcome: no code under test ran yet."""
        for name in _DECIDING:
            hook = getattr(session.config.hook, name)
            answers = {id(answer): answer.function for answer in hook.get_hookimpls()}
            self._known.append((hook, answers))
        self._plugins += session.config.pluginmanager.get_plugins()

    def stranger(self) -> str:
        """A deciding hook that is answered by what was not there before, or ''."""
        plugins = set(map(id, self._plugins))
        for hook, answers in self._known:
            for answer in hook.get_hookimpls():
                if answers.get(id(answer), answer.function) is not answer.function:
                    return f"an answer to {hook.name} was replaced"
                home = str(getattr(answer.plugin, "__file__", ""))
                if id(answer.plugin) not in plugins and not home.endswith("/conftest.py"):
                    return f"a plugin was added to {hook.name}"
        return ""

    def pytest_pycollect_makeitem(self, collector: Any, name: str) -> list[Any] | None:
        """Skips, at the price of a set lookup, what was not asked for."""
        names = self._names.get(collector.nodeid)
        return [] if names and "" not in names and name not in names else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._accuse(self._check(False) or self.stranger())
        ranked = [(_matches(item.nodeid, self._wanted), item) for item in items]
        chosen = [pair for pair in ranked if pair[0] is not None]
        items[:] = [item for _, item in sorted(chosen, key=lambda pair: pair[0] or 0)]
        self._accuse(_replaced(items))
        for item in items:
            self._codes[item.nodeid] = _code(item)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            for test in self._wanted:
                inside = test == report.nodeid or test.startswith(report.nodeid + "::")
                if inside and test not in self._early:
                    self._early.add(test)
                    self._emit({"test": test, "outcome": "error"})
            line = str(report.longrepr).strip().rpartition("\n")[2].removeprefix("E").strip()
            self._say(f"{report.nodeid}: {line}"[:_MESSAGE_CHARS])

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Where pytest runs the session itself (`Session.run` otherwise goes round this hook)."""
        _loop(session, self, self._emit, self._check, _fold)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
        known = self._codes.get(pyfuncitem.nodeid)
        intact = known is _code(pyfuncitem)
        result = yield
        if not intact or known is not _code(pyfuncitem):
            self._accuse(f"{pyfuncitem.name} was replaced")
        self._returned.add(pyfuncitem.nodeid)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and call.excinfo is not None:
            self._say(_describe(item.name, call.excinfo.value))
        # A unittest case does not go through `pytest_pyfunc_call`.
        returned = item.nodeid in self._returned or type(item) is not pytest.Function
        self.phases.append((call.when, report.outcome, call.excinfo is None and returned))
        return report

    def _accuse(self, found: str) -> None:
        if found:
            self._emit({"tampering": found})

    def _say(self, message: str) -> None:
        if not self._said:
            self._said.append(message)
            self._emit({"message": message})


def _loop(
    session: pytest.Session,
    reports: _Reports,
    emit: Emit,
    check: Check,
    fold: Callable[[Sequence[Phase]], str],
) -> None:
    """Runs the collected tests and writes each outcome as it is known.

    Everything that decides is a local variable of a running frame, which other Python code can
    read but not assign.
    """
    stranger, phases, items = reports.stranger, reports.phases, tuple(session.items)
    for item, following in zip(items, (*items[1:], None), strict=False):
        phases.clear()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        outcome = fold(phases)
        found = check(False) or stranger()  # by now a test's own patches are undone
        if found:
            emit({"tampering": found})
        emit({"test": item.nodeid, "outcome": outcome})
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)


class Session:
    """A pytest session made before the fork, up to the point where it would look for tests.

    Making it takes longer than running a light test. Projects with a conftest.py, which may add
    command-line options, get an ordinary session instead.
    """

    def __init__(self) -> None:
        self._plugin = _Reports()
        self._config = _pytest.config._prepareconfig([*_ARGS], [self._plugin])
        self._config._do_configure()
        self._session = pytest.Session.from_config(self._config)
        self._config.hook.pytest_sessionstart(session=self._session)
        self._config.pluginmanager._dirpath2confmods.clear()

    def run(
        self, emit: Emit, tests: Sequence[str], max_failures: int, check: Check, keep: Keep
    ) -> None:
        """Runs exactly `tests`, which lie below the working directory, in their order.

        Ends with a `done` record unless the code under test ended the session.
        """
        random.seed(0)
        files = dict.fromkeys(test.split("::", 1)[0] for test in tests)
        present = [name for name in files if os.path.exists(name)]
        ordinary = any(_has_conftest(name) for name in present)
        reports = _Reports() if ordinary else self._plugin
        reports.arm(emit, tests, check)
        keep(reports, (emit, _fold, _loop, _code, _replaced, _matches, _describe))
        if ordinary:
            args = [*_ARGS, f"--maxfail={max_failures}", *present]
            complete = pytest.main(args, plugins=[reports]) in _COMPLETE
        else:
            config, session, loop, fold = self._config, self._session, _loop, _fold
            config.args[:] = present
            config.option.maxfail = max_failures
            try:
                if present:
                    config.hook.pytest_collection(session=session)
                    loop(session, reports, emit, check, fold)
            except session.Failed:  # the limit on failures was reached
                pass
            complete = True
        found = check(True) or reports.stranger()
        if found:
            emit({"tampering": found})
        if complete:
            emit({"done": True})


def _has_conftest(path: str) -> bool:
    folder = path
    while folder:
        folder = folder.rpartition("/")[0]
        if os.path.exists(f"{folder}/conftest.py" if folder else "conftest.py"):
            return True
    return os.path.isdir(path)


def warm_up() -> None:
    """Loads what pytest loads late, by running tests in a throw-away session, and common modules.

    What is loaded here is paid for once, and cannot be shadowed by a file of the project.
    """
    for name in _PRELOADED.split():
        importlib.import_module(name)
    folder = tempfile.mkdtemp()
    text = "import unittest\nimport pytest\ndef test_a(): pass\ndef test_b(): assert 0\n"
    with open(f"{folder}/test_warm_up.py", "w") as file:
        file.write(text + "class TestC(unittest.TestCase):\n    def test_d(self): pass\n")
    path = list(sys.path)
    pytest.main([*_ARGS, f"--rootdir={folder}", folder])
    sys.path[:] = path
    del sys.modules["test_warm_up"]


def prepare(path: Sequence[str]) -> None:
    """Interpreter state of a run: only the project and its libraries are importable, and the
    garbage collector does not lead to the objects that judge."""
    for name in ("get_objects", "get_referents", "get_referrers", "unfreeze"):
        vars(gc).pop(name, None)
    sys.path[:] = [*path, *(entry for entry in sys.path if entry != "/opt/box")]
    sys.path_importer_cache.clear()
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.partition(".")[0] == "frontrunner"]:
        del sys.modules[name]
