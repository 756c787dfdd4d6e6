"""Static signs of tampering: what a submission's source uses that no bug fix needs.

Test code and agent code share one interpreter while grading, so code that can reach pytest's
state, stack frames or the report could forge a result from inside. This check names what gives
such reach. Only what the base file did not already use counts: a package that legitimately uses
`sys._getframe` may go on doing so. It is one layer; canaries and the guard in the box are others.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from frontrunner.verify.syntax import parse


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Modules that give reach into the test runner, the interpreter, processes, files or the network.
MODULES = _words(
    """_ast _ctypes _frozen_importlib _imp _io _posixsubprocess _pyio _pytest _socket _thread
    ast asyncio atexit bdb builtins cffi cgitb code codeop compileall concurrent cProfile ctypes
    dis distutils doctest ensurepip faulthandler fcntl fileinput ftplib gc glob http imaplib imp
    importlib inspect interpreters linecache mailbox marshal mmap mock modulefinder
    multiprocessing nt opcode os pathlib pdb pickle pkgutil pluggy posix posixpath profile pstats
    pty py_compile pyclbr pydoc pytest readline resource rlcompleter runpy select selectors shelve
    shutil signal site smtplib socket socketserver sqlite3 ssl subprocess symtable sysconfig
    syslog telnetlib tempfile termios testcapi testinternalcapi threading timeit tkinter trace
    traceback tracemalloc unittest urllib venv webbrowser xmlrpc xxsubinterpreters zipapp
    zipimport zipfile"""
)
# Submodules of harmless modules: they run or open what a text names.
SUBMODULES = _words("logging.config logging.handlers")
# Attributes, whatever object they are read from, also as strings and imported names.
ATTRIBUTES = _words(
    """__base__ __bases__ __builtins__ __closure__ __code__ __defaults__ __getattribute__
    __globals__ __import__ __kwdefaults__ __loader__ __self__ __spec__ __subclasses__ __traceback__
    CodeType ForwardRef FrameType TracebackType _clear_type_cache _current_exceptions
    _current_frames _evaluate _exit _getframe ag_frame addaudithook breakpointhook cell_contents
    cr_frame currentframe dictConfig displayhook exc_info excepthook f_back fileConfig
    f_builtins f_code f_globals f_lineno f_locals f_trace getouterframes getinnerframes gi_frame
    get_field get_objects get_referents get_referrers get_type_hints last_traceback meta_path
    path_hooks path_importer_cache setprofile settrace setrecursionlimit tb_frame tb_next unfreeze
    unraisablehook with_traceback"""
)
# Members of modules that a package may use for other things.
MEMBERS = {
    "sys": _words("modules path stdout stderr stdin exit last_value"),
    "io": _words("open open_code FileIO OpenWrapper"),
    "codecs": _words("open"),
    "logging": _words("FileHandler config handlers"),
    "inspect": _words("stack trace getmembers_static"),
    "os": _words(
        """abort dup dup2 environ execl execle execlp execlpe execv execve execvp execvpe fdopen
        fork forkpty kill killpg listdir open pipe posix_spawn posix_spawnp putenv remove rename
        scandir sendfile spawnl spawnv symlink system unlink walk write writev"""
    ),
}
# Modules that are plausible names of a package's own attributes (`error.code`): refused as members
# of an imported module only, where the others are refused as members of anything.
_COMMON = _words("code glob http mock profile resource select signal site ssl trace")
_KNOWN_MODULES = MODULES | MEMBERS.keys()
# Functions that read an attribute by name.
_READERS = _words("getattr setattr attrgetter methodcaller")
NAMES = _words(
    """__builtins__ __import__ __loader__ __spec__ breakpoint compile delattr eval exec exit globals
    locals open quit vars"""
)
_COOKIE = re.compile(r"coding[:=][ \t]*([-\w.]+)")
_PLAIN = re.compile(r"(?i)utf[-_]?8|ascii|us[-_]ascii")
# Defined by a class, these make a wrong value compare as right. Order alone (`__lt__`, `__gt__`) is
# what sorting needs, and is not refused; a test that only orders can be lied to.
_SPOOFS = _words(
    """__bool__ __class__ __contains__ __eq__ __ge__ __instancecheck__ __le__ __ne__
    __subclasscheck__ __subclasshook__"""
)

_HIDDEN = ATTRIBUTES | _SPOOFS | (NAMES - {"open", "exit", "quit", "compile"})
_BLANK, _BETWEEN = re.compile(r"\s"), re.compile(r"\W+")


class Unparsable(ValueError):
    """The source is not Python."""


def findings(base: str | None, new: str, pristine: str | None = None) -> list[str]:
    """What `new` uses and `base` does not, as short phrases; empty means nothing was found.

    `pristine` is the file without the task's bug: what it uses is allowed as well, since a bug may
    be that just this is missing. Raises `Unparsable` when `new` is not Python.

    >>> findings("import math", "import math, gc")
    ['import of gc']
    """
    try:
        known = _known(base) if base is not None else None
    except Unparsable:
        known = None
    found = known.changed(new) if known is not None else None
    used = set(_features(new) if found is None else found)
    if known is not None:
        used -= known.features
    if used and pristine is not None:
        with contextlib.suppress(Unparsable):
            used -= _known(pristine).features
    return sorted(used)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a base file. An edit touches one or two of its statements as a rule, and
    parsing them alone takes a hundredth of the time."""

    lines: tuple[str, ...]
    ends: tuple[int, ...]
    """Line after each top-level statement, ascending, the last one being the file's end."""
    imported: dict[str, str]
    features: frozenset[str]

    def changed(self, new: str) -> frozenset[str] | None:
        """Features of the changed statements; None when they cannot be told by themselves."""
        lines, old = new.split("\n"), self.lines
        least = min(len(lines), len(old))
        first = next((n for n in range(least) if lines[n] != old[n]), least)
        left = least - first
        same = next((n for n in range(left) if lines[-1 - n] != old[-1 - n]), left)
        if first < 2 or "\r" in new or "\f" in new:
            return None  # a coding cookie; line ends that are none to Python
        start = max((end for end in self.ends if end <= first), default=0)
        stop = min((end for end in self.ends if end >= len(old) - same), default=len(old))
        text = "\n".join(lines[start : len(lines) - (len(old) - stop)])
        try:
            nodes = list(ast.walk(_parse(text)))
        except Unparsable:
            return None  # perhaps it goes on in the next statement
        if any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in nodes):
            return None  # changes what names mean elsewhere
        return frozenset(_of_nodes(nodes, self.imported))


@lru_cache(maxsize=1024)
def _known(base: str) -> _Known:
    module = _parse(base)
    starts = [
        min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        for node in module.body
    ]
    # Statements that share a line are not told apart.
    ends = [
        node.end_lineno
        for node, following in zip(module.body, [*starts, 1 << 30][1:], strict=True)
        if node.end_lineno is not None and following > node.end_lineno
    ]
    lines = tuple(base.split("\n"))
    if "\r" in base or "\f" in base:
        ends = []  # Python may count other lines than these
    imported = _imported_names(list(ast.walk(module)))
    return _Known(lines, (*ends, len(lines)), imported, frozenset(_features(base)))


def _parse(source: str) -> ast.Module:
    # As bytes, because the importer honours a coding cookie and a parser of text ignores it.
    try:
        return parse(source.encode())
    except (SyntaxError, ValueError, RecursionError, MemoryError, LookupError) as error:
        raise Unparsable(str(error)) from error


def _features(source: str) -> Iterator[str]:
    for line in re.split(r"\r\n|\r|\n", source, maxsplit=2)[:2]:
        cookie = _COOKIE.search(line) if "#" in line else None
        if cookie is not None and not _PLAIN.fullmatch(cookie[1]):
            yield f"coding {cookie[1][:20]}"
    nodes = list(ast.walk(_parse(source)))
    yield from _of_nodes(nodes, _imported_names(nodes))


def _of_nodes(nodes: Sequence[ast.AST], imported: dict[str, str]) -> Iterator[str]:
    bases = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from _modules(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _from(node)
        elif isinstance(node, ast.Attribute):
            yield from _attribute(node, imported)
            if node.attr in _READERS and id(node) not in called:
                yield f"use of {node.attr} as a value"
        elif isinstance(node, ast.Name):
            yield from _name(node, imported, id(node) in called, id(node) in bases)
        elif isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            text = node.value
            yield from _text(text if isinstance(text, str) else text.decode("latin-1"))
        elif isinstance(node, ast.MatchClass):
            for name in node.kwd_attrs:
                yield from _member(name, "")
        elif isinstance(node, ast.Call):
            yield from _call(node, imported)
        elif isinstance(node, ast.ClassDef):
            yield from _class(node)


def _imported_names(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """Names bound to modules by an import, and which module that is.

    `from x import os` binds one too: whatever x is, its `os` is taken to be the module. A star
    may bring any of them.
    """
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = (alias.asname or alias.name).partition(".")[0]
                found[name] = alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    found = {**{name: name for name in _KNOWN_MODULES}, **found}
                elif _as_module(alias.name):
                    found[alias.asname or alias.name] = _as_module(alias.name)
    return found


def _as_module(name: str) -> str:
    """The known module that a member with this name is probably an alias of, or ''."""
    bare = name.lstrip("_")
    return next((known for known in (name, bare) if known in _KNOWN_MODULES), "")


def _modules(names: Iterator[str] | list[str]) -> Iterator[str]:
    for name in names:
        top = name.partition(".")[0]
        if top in MODULES or top.lstrip("_") in MODULES:
            yield f"import of {top}"
        if name in SUBMODULES:
            yield f"import of {name}"


def _from(node: ast.ImportFrom) -> Iterator[str]:
    yield from _modules([node.module] if node.module and not node.level else [])
    risky = ATTRIBUTES | NAMES | MEMBERS.get(node.module or "", frozenset())
    for alias in node.names:
        hidden = _as_module(alias.name)
        if alias.name in risky or hidden in MODULES or (hidden and alias.name != hidden):
            yield f"import of {alias.name}"
        if alias.name == "*":
            yield f"import of everything in {node.module}"
        if alias.name in _READERS and alias.asname not in (None, alias.name):
            yield f"import of {alias.name} under another name"


def _name(node: ast.Name, imported: dict[str, str], called: bool, owns: bool) -> Iterator[str]:
    if node.id in NAMES:
        yield f"use of {node.id}"
    if imported.get(node.id) in MEMBERS and not owns:
        yield f"use of {imported[node.id]} as a value"
    if node.id in _READERS and not called:
        yield f"use of {node.id} as a value"


def _member(name: str, owner: str) -> Iterator[str]:
    """Reading the attribute `name` of the imported module `owner`, or of anything for ''."""
    if name in ATTRIBUTES or name == "modules":
        yield f"use of {name}"
    hidden = _as_module(name)
    common = hidden in _COMMON and name == hidden
    if hidden and not (common and not owner):
        yield f"use of {name} as a member"
    if owner and name in MEMBERS.get(owner, ()):
        yield f"use of {owner}.{name}"
    if owner and name in ("__dict__", "__loader__", "__spec__"):
        yield f"use of {owner}.{name}"


def _attribute(node: ast.Attribute, imported: dict[str, str]) -> Iterator[str]:
    owner = imported.get(node.value.id, "") if isinstance(node.value, ast.Name) else ""
    if isinstance(node.ctx, ast.Load):
        yield from _member(node.attr, owner)
    elif node.attr in ATTRIBUTES | _SPOOFS:
        yield f"use of {node.attr}"
    if owner and isinstance(node.ctx, (ast.Store, ast.Del)):
        yield f"patch of {owner}.{node.attr}"


def _text(value: str) -> Iterator[str]:
    # A path of names as `attrgetter` and format strings take it; prose has blanks.
    parts = {value} if _BLANK.search(value) else set(_BETWEEN.split(value))
    aliases = {part for part in parts if part.startswith("_") and _as_module(part)}
    if parts & _HIDDEN or aliases or value.startswith(("_pytest", "pytest")):
        yield f"text {value[:40]!r}"


def _call(node: ast.Call, imported: dict[str, str]) -> Iterator[str]:
    function = node.func
    name = function.id if isinstance(function, ast.Name) else ""
    name = function.attr if isinstance(function, ast.Attribute) else name
    spans = {"getattr": slice(1, 2), "setattr": slice(1, 2), "methodcaller": slice(1)}
    names = node.args[spans.get(name, slice(None))]
    starred = any(isinstance(argument, ast.Starred) for argument in node.args[:2])
    computed = starred or not all(isinstance(argument, ast.Constant) for argument in names)
    if name in _READERS and computed:
        yield f"{name} with a computed name"
    if name == "getattr" and names and isinstance(node.args[0], ast.Name):
        owner, read = imported.get(node.args[0].id, ""), names[0]
        if isinstance(read, ast.Constant) and isinstance(read.value, str):
            yield from _member(read.value, owner)
    elif name in ("attrgetter", "methodcaller"):
        for argument in names:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                for part in argument.value.split("."):
                    yield from _member(part, "")
    if isinstance(function, ast.Name) and name == "type" and len(node.args) == 3:
        yield "a class made by type()"


def _class(node: ast.ClassDef) -> Iterator[str]:
    for item in ast.walk(node):
        names: list[str] = []
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [item.name]
            if item.name in _SPOOFS and _always_true(item):
                yield f"{node.name}.{item.name} that always holds"
        elif isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
            names = [item.id]
        elif isinstance(item, (ast.Import, ast.ImportFrom)):
            names = [alias.asname or alias.name for alias in item.names]
        yield from (f"definition of {node.name}.{name}" for name in names if name in _SPOOFS)


def _always_true(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if function.name == "__bool__":
        return False  # plenty of objects are always true
    returns = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    return bool(returns) and all(isinstance(v, ast.Constant) and v.value for v in returns)
