"""Runs pytest in this process and reports each test over a pipe (standard library and pytest).

Everything here shares the interpreter with untrusted code. What protects the report: a keyed
digest on each line, our own observation of every test call beside pytest's, the guard over
pytest's internals (`box_guard`), and the canaries that the grader adds.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import json
import linecache
import os
import random
import sys
import tempfile
import types
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import _pytest.config
import pytest

Emit = Callable[[dict[str, Any]], None]
Check = Callable[[bool], str]
"""What changed in the interpreter, or ''; the argument asks for a thorough look."""

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


def reporter(fd: int, key: bytes) -> Emit:
    """A function that writes one authenticated JSON line per call; `key` is not kept."""
    state = hashlib.blake2b(key=key, digest_size=16)
    count = 0
    write, encode = os.write, json.JSONEncoder(separators=(",", ":")).encode

    def emit(record: dict[str, Any]) -> None:
        nonlocal count
        body = f"{count} {encode(record)}".encode()
        count += 1
        digest = state.copy()
        digest.update(body)
        line = digest.hexdigest().encode() + b" " + body + b"\n"
        while line:
            line = line[write(fd, line) :]

    return emit


class LineReader:
    """The other end of `reporter`: yields the records, refuses what is not from it."""

    def __init__(self, key: bytes, limit: int) -> None:
        self._state = hashlib.blake2b(key=key, digest_size=16)
        self._count = 0
        self._rest = b""
        self._room = limit
        self.forged = False

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Records completed by `data`; after one bad line nothing more is believed."""
        records: list[dict[str, Any]] = []
        self._room -= len(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        self.forged |= self._room < 0
        for line in lines:
            given, _, body = line.partition(b" ")
            digest = self._state.copy()
            digest.update(body)
            count, _, text = body.partition(b" ")
            genuine = digest.hexdigest().encode() == given and count == b"%d" % self._count
            self.forged |= not genuine
            if self.forged:
                return records
            self._count += 1
            records.append(json.loads(text))
        return records


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
    """`test_x: AssertionError: assert f(2) == 4`; the statement stands in for an empty message."""
    text = str(error).strip().split("\n", 1)[0]
    trace = error.__traceback__
    if not text and trace is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        text = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip()
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


class _Reports:
    """Pytest plugin: selects and orders the requested tests, and emits one record for each.

    It is registered before the fork and armed after it.
    """

    def __init__(self) -> None:
        self._emit: Emit = lambda record: None
        self._check: Check = str
        self._wanted: dict[str, int] = {}
        self._names: dict[str, set[str]] = {}
        self._codes: dict[str, object] = {}
        self._hooks: list[Any] = []
        self._plugins: list[Any] = []
        self._outcome = ""
        self._returned = False
        self._said = False
        self.num_reported = 0

    def arm(self, emit: Emit, tests: Sequence[str], check: Check) -> None:
        self._emit, self._check = emit, check
        self._wanted = {test: rank for rank, test in reversed(list(enumerate(tests)))}
        for test in tests:
            path, *names = test.split("[", 1)[0].split("::")
            self._names.setdefault(path, set()).add(names[0] if names else "")

    def pytest_collection(self, session: pytest.Session) -> None:
        """Remembers who may answer the hooks that decide an outcome: no code under test ran yet."""
        self._hooks = [getattr(session.config.hook, name) for name in _DECIDING]
        self._plugins = list(session.config.pluginmanager.get_plugins())

    def _stranger(self) -> str:
        known = set(map(id, self._plugins))
        for hook in self._hooks:
            for answer in hook.get_hookimpls():
                home = str(getattr(answer.plugin, "__file__", ""))
                if id(answer.plugin) not in known and not home.endswith("/conftest.py"):
                    return f"a plugin was added to {hook.name}"
        return ""

    def pytest_pycollect_makeitem(self, collector: Any, name: str) -> list[Any] | None:
        """Skips, at the price of a set lookup, what was not asked for."""
        names = self._names.get(collector.nodeid)
        return [] if names and "" not in names and name not in names else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.guard()
        ranked = [(_matches(item.nodeid, self._wanted), item) for item in items]
        chosen = [pair for pair in ranked if pair[0] is not None]
        items[:] = [item for _, item in sorted(chosen, key=lambda pair: pair[0] or 0)]
        self._accuse(_replaced(items))
        for item in items:
            self._codes[item.nodeid] = _code(item)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            for test in self._wanted:
                if test == report.nodeid or test.startswith(report.nodeid + "::"):
                    self._finish(test, "error")
            line = str(report.longrepr).strip().rpartition("\n")[2].removeprefix("E").strip()
            self._say(f"{report.nodeid}: {line}"[:_MESSAGE_CHARS])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
        known = self._codes.get(pyfuncitem.nodeid)
        intact = known is _code(pyfuncitem)
        result = yield
        if not intact or known is not _code(pyfuncitem):
            self._accuse(f"{pyfuncitem.name} was replaced")
        self._returned = True
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        if call.when == "setup":
            self._outcome = ""
        report = yield
        if call.when == "teardown":  # by now a test's own patches are undone
            self.guard()
        if report.failed:
            self._outcome = "failed" if call.when == "call" else "error"
            if call.excinfo is not None and not self._said:
                self._say(_describe(item.name, call.excinfo.value))
        elif report.skipped and not self._outcome:
            self._outcome = "skipped"
        elif call.when == "call":
            self._outcome = self._passed(item, call)
        self._returned = False
        if call.when == "teardown":
            self._finish(item.nodeid, self._outcome or "error")
        return report

    def _passed(self, item: pytest.Item, call: pytest.CallInfo[None]) -> str:
        # A unittest case does not go through `pytest_pyfunc_call`.
        plain = type(item) is pytest.Function
        return "passed" if call.excinfo is None and (self._returned or not plain) else "failed"

    def guard(self, thorough: bool = False) -> None:
        self._accuse(self._check(thorough) or self._stranger())

    def _accuse(self, found: str) -> None:
        if found:
            self._emit({"tampering": found})

    def _finish(self, node_id: str, outcome: str) -> None:
        self.num_reported += 1
        self._emit({"test": node_id, "outcome": outcome})

    def _say(self, message: str) -> None:
        if not self._said:
            self._said = True
            self._emit({"message": message})


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

    def run(self, emit: Emit, tests: Sequence[str], max_failures: int, check: Check) -> None:
        """Runs exactly `tests`, which lie below the working directory, in their order.

        Ends with a `done` record unless the code under test ended the session.
        """
        random.seed(0)
        files = dict.fromkeys(test.split("::", 1)[0] for test in tests)
        present = [name for name in files if os.path.exists(name)]
        if any(_has_conftest(name) for name in present):
            self._plugin = _Reports()
            self._plugin.arm(emit, tests, check)
            args = [*_ARGS, f"--maxfail={max_failures}", *present]
            complete = pytest.main(args, plugins=[self._plugin]) in _COMPLETE
        else:
            self._plugin.arm(emit, tests, check)
            complete = not present or self._run_prepared(present, max_failures)
        self._plugin.guard(thorough=True)
        if complete:
            emit({"done": self._plugin.num_reported})

    def _run_prepared(self, files: list[str], max_failures: int) -> bool:
        config, session = self._config, self._session
        config.args[:] = files
        config.option.maxfail = max_failures
        try:
            config.hook.pytest_collection(session=session)
            config.hook.pytest_runtestloop(session=session)
        except session.Failed:  # the limit on failures was reached
            return True
        return True


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
    """Interpreter state of a run: only the project and its libraries are importable."""
    sys.path[:] = [*path, *(entry for entry in sys.path if entry != "/opt/box")]
    sys.path_importer_cache.clear()
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.partition(".")[0] == "frontrunner"]:
        del sys.modules[name]
