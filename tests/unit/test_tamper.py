"""The static check: what it names, and what it lets through."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import inspect
import random
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from frontrunner.verify import tamper


@pytest.mark.parametrize(
    ("base", "new"),
    [
        ("", "import gc"),
        ("", "from _pytest import runner"),
        ("", "import os.path as p"),
        ("", "import sys\nsys._getframe()"),
        ("", "from sys import settrace"),
        ("", "eval('1')"),
        ("", "getattr(x, '_getframe')"),
        ("", "class A:\n    def __eq__(self, other): return True"),
        ("", "class A:\n    __eq__ = f"),
        ("import sys", "import sys\nsys.modules"),
        ("import sys", "import sys as s\ns.modules"),
        ("import sys\nsys.maxsize", "import sys\nt = sys\nt.modules"),
        ("import sys\nsys.maxsize", "import sys\ngetattr(sys, 'modules')"),
        ("import os\nos.path", "import os\nos.fork()"),
        ("", "from io import FileIO"),
        (
            "class A:\n    def __eq__(self, o): return self is o",
            "class A:\n def __eq__(s, o): return 1",
        ),
        ("", "type('A', (int,), d)"),
        ("import math", "import math\nmath.pi = 3"),
        ("import collections", "import collections\nm = collections._sys.modules"),
        ("import functools", "import functools\nfunctools.sys"),
        ("import os", "import os\nos.sys"),
        ("", "import warnings as w\nw.sys"),
        ("", "x.modules['gc']"),
        ("", "x.get_objects()"),
        ("", "x.get_referrers(y)"),
        ("", "x.get_referents(y)"),
        ("", "x.unfreeze()"),
        ("", "import operator\noperator.attrgetter('f.__globals__')(x)"),
        ("", "from operator import attrgetter\nattrgetter('a.modules')(x)"),
        ("", "from operator import attrgetter\nattrgetter(a + b)(x)"),
        ("", "from operator import attrgetter as a\nmap(a, names)"),
        ("", "from operator import methodcaller\nmethodcaller(name)"),
        ("", "import operator\nf = operator.attrgetter"),
        ("", "f = getattr\nf(x, name)"),
        ("", "getattr(*pair)"),
        ("import collections", "import collections\ngetattr(collections, '_sys')"),
        ("import collections", "import collections\ncollections.__dict__"),
        ("", "x['_sys']"),
        ("", "'{0.f.__globals__}'"),
        ("", "string.Formatter().get_field(name, (), {})"),
        ("", "match f:\n    case object(__globals__=g):\n        pass"),
        ("", "match m:\n    case object(modules=g):\n        pass"),
        ("", "from toolz.utils import os\nos.system('x')"),
        ("", "from .utils import os"),
        ("", "from collections import _sys as s"),
        ("", "from functools import sys\nsys.modules"),
        ("", "import toolz.utils as u\nu.os.system('x')"),
        ("from .utils import *", "from .utils import *\nsys.modules"),
        ("", "from .utils import *"),
        ("", "import timeit"),
        ("", "import pydoc"),
        ("", "import logging.config"),
        ("", "from logging import config"),
        ("import logging", "import logging\nlogging.config.dictConfig(d)"),
        ("", "import typing\ntyping.get_type_hints(f)"),
        ("", "from typing import get_type_hints"),
        ("", "import _pyio"),
        ("", "import _testcapi"),
        ("", "x = b'__globals__'.decode()"),
        ("", "class A(list):\n    def __contains__(self, x): return True"),
        ("", "class A:\n    def __le__(self, x): return True\n    __ge__ = __le__"),
        ("", "class A:\n    if 1:\n        def __eq__(self, x): return True"),
        ("", "class A:\n    __ne__, __eq__ = f, g"),
        ("", "class A:\n    for __eq__ in (f,): pass"),
        ("", "class A:\n    from operator import contains as __eq__"),
        ("", "class A:\n    (__eq__ := f)"),
        ("", "A.__eq__ = f"),
        ("", "class M(type):\n    def __eq__(cls, other): return True"),
        ("", "class A:\n    def __bool__(self): return False"),
        ("", "# coding: utf-7\nx = 1"),
        ("", "\x0c\x0c\x0c\x0c\x0c# coding: utf-7\nx = 1"),
        ("", "#!/usr/bin/python\r# -*- coding: utf_7 -*-\rx = 1"),
    ],
)
def test_static_findings(base: str, new: str) -> None:
    assert tamper.findings(base, new)


@pytest.mark.parametrize(
    ("base", "new"),
    [
        ("import os", "import os\nos.getcwd()"),
        ("import inspect\nimport sys\nsys._getframe()", "import sys, inspect\nsys._getframe(2)"),
        ("", "import math, itertools, functools, re, collections, typing, warnings"),
        ("", "class A:\n    def __lt__(self, other): return self.x < other.x"),
        ("", "import sys\nfrom io import StringIO\nx = sys.maxsize"),
        ("", "def f(self):\n    self.stack.pop()\n    self.modules = self.path"),
        ("", "from . import helpers\nfrom .io import load"),
        ("", "# -*- coding: utf-8 -*-\nx = 1"),
        ("", "x = 1\n\n# Encoding: the text is decoded as utf-7 first."),
        ("", "from operator import attrgetter, itemgetter\nsorted(x, key=attrgetter('a.b'))"),
        ("", "def f(self):\n    return self.code, self.trace, self.path"),
        ("", "match p:\n    case Point(x=0, y=y):\n        pass"),
        ("from .utils import os", "from .utils import os\nos.getcwd()"),
        (
            "",
            '"""Opens with open; __globals__."""\ndef f(self):\n    self.x = getattr(f, "y")',
        ),
        (
            "class A:\n    def __eq__(self, o): return True",
            "class A:\n    def __eq__(self, o): return 1",
        ),
    ],
)
def test_ordinary_code_has_no_static_finding(base: str, new: str) -> None:
    assert tamper.findings(base, new) == []


@pytest.mark.parametrize(
    "source", ["def f(:", "x = '\0'", "(" * 5000, "# coding: no-such-codec\nx = 1"]
)
def test_source_that_does_not_parse_is_said_to(source: str) -> None:
    with pytest.raises(tamper.Unparsable):
        tamper.findings("", source)


def test_code_hidden_by_a_coding_cookie_is_parsed_as_it_would_run() -> None:
    hidden = "# coding: utf-7\n# +AAo-import gc\n"
    assert "import of gc" in tamper.findings("", hidden)


def test_a_base_that_does_not_parse_excuses_nothing() -> None:
    assert tamper.findings("print 'x'; import gc", "import gc") == ["import of gc"]


def test_sources_can_be_checked_in_threads() -> None:
    """Where a collection runs Python code, threads change places inside of the parser."""

    def switch(*_: object) -> None:
        time.sleep(0)

    deep = "\n".join(f"x{n} = " + "[" * 20 + "a + b * c" + "]" * 20 for n in range(40))
    threshold = gc.get_threshold()
    gc.set_threshold(50)
    gc.callbacks.append(switch)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda n: tamper.findings(None, f"{deep}\ny = {n}"), range(32)))
    finally:
        gc.callbacks.remove(switch)
        gc.set_threshold(*threshold)
    assert found == [[]] * 32


SNIPPETS = (
    "import os",
    "x = os.fork()",
    "    return sys._getframe(1)",
    "getattr(x, name)",
    "else:",
    "    pass",
    '"""',
    chr(92),
    "# nothing",
    "@property",
    "class A:",
    "    def __eq__(self, other): return True",
    "eval('1'); y = 2",
    "(",
    ")",
    "def f():",
    "",
)


def test_changed_statements_alone_give_what_the_whole_file_gives() -> None:
    rng = random.Random(0)
    alone = 0
    for module in (argparse, dataclasses, textwrap):
        base = inspect.getsource(module)
        known = tamper._known(base)
        for _ in range(150):
            lines = base.split("\n")
            at = rng.randrange(len(lines))
            added = rng.choices(SNIPPETS, k=rng.randint(0, 3))
            lines[at : at + rng.choice([0, 0, 1, 1, 3, 30])] = added
            new = "\n".join(lines)
            alone += known.changed(new) is not None
            try:
                expected = sorted(set(tamper._features(new)) - known.features)
            except tamper.Unparsable:
                with pytest.raises(tamper.Unparsable):
                    tamper.findings(base, new)
                continue
            assert tamper.findings(base, new) == expected
    assert alone > 50


def test_what_the_file_without_the_bug_has_may_be_put_back() -> None:
    pristine = "class A:\n    def __eq__(self, o):\n        return self.x == o.x"
    assert tamper.findings("class A:\n    pass", pristine)
    assert tamper.findings("class A:\n    pass", pristine, pristine) == []
    assert tamper.findings("class A:\n    pass", "import gc\n" + pristine, pristine)
