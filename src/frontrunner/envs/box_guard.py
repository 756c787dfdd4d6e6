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
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def _parts(function: types.FunctionType) -> tuple[object, ...]:
    """Everything that can be exchanged in a function without another function being there."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    defaults = (function.__defaults__, function.__kwdefaults__)
    values = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return (function.__code__, *defaults, *values, *cells)


class _Own:
    """An object of the judge, its class and some functions, and what they were made of."""

    def __init__(self, owner: object, functions: Sequence[types.FunctionType]) -> None:
        self._owner, self._kind = owner, type(owner)
        own = [value for value in vars(self._kind).values() if _is_function(value)]
        self._functions = [*own, *functions]
        self._slots = tuple(vars(self._kind).get("__slots__", ()))
        self._kept = self._now()
        self._ids = tuple(map(id, self._kept))

    def _now(self) -> list[object]:
        found: list[object] = [type(self._owner), *vars(self._kind).values()]
        found += [getattr(self._owner, name) for name in self._slots]
        for function in self._functions:
            found += _parts(function)
        return found

    def intact(self) -> bool:
        return tuple(map(id, self._now())) == self._ids


def _is_function(value: object) -> bool:
    return isinstance(value, types.FunctionType)


class Guard:
    """Remembers the internals as they are when it is made."""

    def __init__(self) -> None:
        self._critical = _of(_CRITICAL)
        self._other = _of(_OTHER)
        self._tracers = (sys.gettrace, sys.getprofile)
        self._own: list[_Own] = []

    def keep(self, owner: object, functions: Sequence[Callable[..., Any]]) -> None:
        """Watches the reporter too: `owner` with its class and slots, `functions`, and itself."""
        mine = [value for kind in (_Own, _Group, Guard) for value in vars(kind).values()]
        every = [*functions, *mine, _parts, _is_function]
        self._own.append(_Own(owner, [f for f in every if isinstance(f, types.FunctionType)]))

    def check(self, thorough: bool) -> str:
        """What changed, in words, or ''."""
        for groups in (self._critical, self._other) if thorough else (self._critical,):
            for group in groups:
                if not group.intact():
                    return group.changed()
        if not all(own.intact() for own in self._own):
            return "the reporter was changed"
        if any(tracer() is not None for tracer in self._tracers):
            return "a trace function was installed"
        return ""
