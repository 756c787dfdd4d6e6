"""Notices changes to pytest's and the interpreter's internals (standard library, in the box).

Code under test can reach the objects that judge it. A replaced function, method, builtin or code
object of pytest, pluggy, unittest or the builtins ends the run as tampering. Comparison is by
identity, so an object with a lying `__eq__` does not help, and runs at C speed, so that it can be
repeated around every test.
"""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_WATCHED = (
    "_pytest",
    "pluggy",
    "unittest",
    "builtins",
    "json",
    "contextlib",
    "operator",
    "importlib",
)
# What every test passes through: looked at around every test. Looking touches the objects, which
# costs a page copy each after the fork, so the list is short.
_CRITICAL = (
    "builtins",
    "_pytest.runner",
    "_pytest.python",
    "_pytest.unittest",
    "_pytest.python_api",
    "_pytest.raises",
    "_pytest.reports",
    "pluggy._callers",
    "pluggy._hooks",
    "unittest.case",
)
# Looked at once, when all tests have run.
_OTHER = (
    "_pytest.config",
    "_pytest.fixtures",
    "_pytest.main",
    "_pytest.monkeypatch",
    "_pytest.nodes",
    "_pytest.outcomes",
    "_pytest.skipping",
    "importlib._bootstrap_external",
    "json.encoder",
    "pluggy._manager",
)
_CODE = (types.FunctionType, types.BuiltinFunctionType, classmethod, staticmethod, property, type)


class _Group:
    """Some entries of one namespace, and what they were."""

    def __init__(self, name: str, space: Mapping[str, Any], keys: list[str]) -> None:
        self._name, self._space, self._keys = name, space, keys
        self._get = operator.itemgetter(*keys, *keys[:1])  # always two or more: always a tuple
        self._kept = self._get(space)  # holds them, so that no identity is used again
        self._functions = [x for x in self._kept if isinstance(x, types.FunctionType)]
        self._ids = tuple(map(id, self._kept))
        self._codes = tuple(map(id, map(_code_of, self._functions)))

    def intact(
        self,
        ids: Callable[[object], int] = id,
        each: type[map[Any]] = map,
        listed: type[tuple[Any, ...]] = tuple,
        code: Callable[[Any], Any] = operator.attrgetter("__code__"),
    ) -> bool:
        try:
            now = self._get(self._space)
        except KeyError:
            return False
        return (
            listed(each(ids, now)) == self._ids
            and listed(each(ids, each(code, self._functions))) == self._codes
        )

    def changed(self) -> str:
        """Name of the first entry that is not what it was."""
        for key, kept in zip(self._keys, self._kept, strict=False):
            if self._space.get(key) is not kept:
                return f"{self._name}.{key} was replaced"
        return f"code of {self._name} was replaced"


_code_of = operator.attrgetter("__code__")


def _watched(value: object) -> bool:
    """Whether an entry is code. What pytest's legacypath plugin adds, each session adds anew."""
    if not isinstance(value, _CODE):
        return False
    code = value.fget if isinstance(value, property) else value
    return getattr(code, "__module__", "") != "_pytest.legacypath"


def _groups(module: types.ModuleType) -> Iterable[_Group]:
    name, space = module.__name__, vars(module)
    keys = [key for key, value in space.items() if _watched(value)]
    if keys:
        yield _Group(name, space, keys)
    if name == "builtins":
        return  # built-in types cannot be changed
    for kind in [value for value in space.values() if isinstance(value, type)]:
        members = [key for key, value in vars(kind).items() if _watched(value)]
        if kind.__module__ == name and members:
            yield _Group(f"{name}.{kind.__name__}", vars(kind), members)


def _of(names: Iterable[str]) -> list[_Group]:
    modules = [sys.modules[name] for name in names if name in sys.modules]
    return [group for module in modules for group in _groups(module)]


class Guard:
    """Remembers the internals as they are when it is made."""

    def __init__(self) -> None:
        self._critical = _of(_CRITICAL)
        self._other = _of(_OTHER)
        self._tracers = (sys.gettrace, sys.getprofile)

    def check(self, thorough: bool) -> str:
        """What changed, in words, or ''."""
        for groups in (self._critical, self._other) if thorough else (self._critical,):
            for group in groups:
                if not group.intact():
                    return group.changed()
        if any(tracer() is not None for tracer in self._tracers):
            return "a trace function was installed"
        return ""
