"""Tasks by mutation: candidate bugs, the tests that may notice them, wording and addresses.

Nothing is executed here; `build` runs the tests. The base policy's training data is worded by the
same `instruction`, so the templates live here and nowhere else.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from frontrunner.envs.mutations import Function, apply, content, functions, repair, sites
from frontrunner.envs.reach import Reached, is_test_file
from frontrunner.envs.tools import EDIT
from frontrunner.envs.variants import removals
from frontrunner.envs.workspace import MAX_WIDTH, folded, symbols
from frontrunner.types import Mutation, Split, Task

MIN_LINES, MAX_LINES = 3, 16
"""Lines of a function as the policy sees it (docstring and blank lines folded away)."""
MAX_TRIED = 9
"""Candidates per function that are tried at most."""
MAX_AFTER = 60
"""Longest replacement text, so that a manifest carries no source worth the name."""
MAX_COVERING, NUM_NEIGHBOURS = 9, 3
MAX_TEST_SECONDS, MAX_TOTAL_SECONDS = 0.1, 0.3
"""Profiled durations (about twice the plain ones)."""
HELDOUT_SHARE = 0.28
RAREST_FIRST = (
    "control",
    "arguments",
    "call",
    "boolean",
    "arithmetic",
    "negation",
    "comparison",
    "constant",
)
_NEVER = ("_version.py", "setup.py", "conftest.py", "__main__.py")

_WITH_TEST = (
    (
        "`{function}` in {module} gives a wrong result: {test} fails with {exception}. "
        "Find and fix the bug."
    ),
    "{test} fails with {exception}. The cause is in `{function}` ({module}). Please fix it.",
    "After a recent change {test} fails with {exception}. Please repair `{function}` in {module}.",
    "There is a bug in `{function}` of {module}. {test} shows it: {exception}. Fix the function.",
)
_SYMPTOM = (
    "`{function}` in {module} is broken: it gives wrong results. Please fix it.",
    "Something is wrong with `{function}` in {module}. Find the bug and fix it.",
    "A recent change broke `{function}` in {module}. Please make it work again.",
    "`{function}` from {module} does not do what it should. Please correct it.",
)
_TEMPLATES = _WITH_TEST + _SYMPTOM
NUM_VARIANTS = len(_TEMPLATES)


def instruction(function: str, module: str, test: str, exception: str, variant: int) -> str:
    """What a user would have written about a bug, in at most 40 words.

    `function` is the qualified name in `module` (`Path.child`), `test` the bare name of a failing
    test (`test_child`), `exception` the type it fails with (`AssertionError`). `variant` counts
    modulo `NUM_VARIANTS`; the upper half tells only that the function is broken. Neither file nor
    line of the bug is ever named.
    """
    template = _TEMPLATES[variant % NUM_VARIANTS]
    return template.format(function=function, module=module, test=test, exception=exception)


def symptom(message: str, fallback: str) -> tuple[str, str]:
    """(test, exception) of a report's first failure: `test_x: ValueError: text` -> the two names.

    `fallback` is the node id that stands in when the message names no test, as when the test file
    itself cannot be imported.
    """
    bare = fallback.split("[")[0].rsplit("::", 1)[-1]
    match = re.match(r"(\w+)(?:\[.*?\])?: ([\w.()<>]+)(?::|$)", message)
    if match:
        return match[1], re.findall(r"\w+", match[2])[-1]  # `pkg.Oops`, `Oops.wrap(KeyError)`
    match = re.match(r"\S+\.py: E +(?:\w+\.)*(\w+):", message)
    return bare, match[1] if match else "an error"


def module_name(path: str) -> str:
    """`toolz/itertoolz.py` -> `toolz.itertoolz`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def content_id(
    package: str,
    version: str,
    path: str,
    function: str,
    mutation: Mutation,
    tests: Sequence[str],
    hidden: bool = False,
) -> str:
    """Content address of a task: `toolz-3f9c2a71d0b4`."""
    facts = [package, version, path, function, *content(mutation), *tests, *["hidden"] * hidden]
    return f"{package}-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]}"


def task_id(task: Task) -> str:
    """The address that a task must have, whatever its `id` says."""
    tests = task.fail_to_pass + task.pass_to_pass
    return content_id(
        task.package,
        task.version,
        task.path,
        task.function,
        task.mutation,
        tests,
        hidden=task.hidden,
    )


def body_key(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Digest of a function without names and docstring: copies under other names collide."""
    body = node.body[ast.get_docstring(node, clean=False) is not None :]
    text = ast.dump(node.args) + "".join(ast.dump(statement) for statement in body)
    names: dict[str, int] = {}

    def anonymous(match: re.Match[str]) -> str:
        return f"{match[1]}='{names.setdefault(match[2], len(names))}'"

    text = re.sub(r"\b(id|arg)='(\w+)'", anonymous, text)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def split_of(key: str, seed: int) -> Split:
    """Train or held-out, from a `body_key`: a function and all its copies land on one side."""
    number = int(hashlib.sha256(f"{seed}/{key}".encode()).hexdigest()[:8], 16)
    return "heldout" if number < HELDOUT_SHARE * 2**32 else "train"


@dataclass(frozen=True, slots=True)
class Target:
    """A function that can carry a bug, with its candidate mutations, the preferred first."""

    package: str
    path: str
    function: str
    key: str
    """`body_key` of the pristine function."""
    mutations: tuple[Mutation, ...]
    removed: tuple[Mutation, ...] = ()
    """Removed functionality, the whole body first."""


def targets(package: str, tree: Path, skip: tuple[str, ...] = ()) -> list[Target]:
    """Functions of a tree that a policy can find by name and see whole, in path order."""
    texts = {path: text for path, text in _modules(tree) if text is not None}
    names = Counter(s.name for path, text in texts.items() for s in symbols(path, text))
    found = []
    for path, text in texts.items():
        if is_test_file(path) or path.startswith(skip) or path.endswith(_NEVER):
            continue
        try:
            module = ast.parse(text)
        except (SyntaxError, ValueError):
            continue  # written for another Python version
        for function in functions(module):
            if names[function.qualname] == 1:
                chosen = _candidates(path, text, function)
                if chosen:
                    key = body_key(function.node)
                    gone = tuple(removals(function))
                    name = function.qualname
                    found.append(Target(package, path, name, key, tuple(chosen), gone))
    return found


def _modules(tree: Path) -> Iterator[tuple[str, str | None]]:
    for file in sorted(tree.rglob("*.py")):
        data = file.read_bytes()
        path = file.relative_to(tree).as_posix()
        if b"\r" in data or b"\x0c" in data or data.startswith(b"\xef\xbb\xbf"):
            yield path, None  # line numbers of `ast` and of the workspace would differ
            continue
        try:
            yield path, data.decode()
        except UnicodeDecodeError:
            yield path, None


def _candidates(path: str, text: str, function: Function) -> list[Mutation]:
    """Mutations of one function that an agent can see and undo; kinds alternate, rare first."""
    lines = text.split("\n")
    shown = folded(lines, function.first - 1, function.last)
    if not MIN_LINES <= len(shown) <= MAX_LINES:
        return []
    seen = {_shape(lines, function)}
    by_kind: dict[str, list[Mutation]] = {}
    for mutation in sites(text, function):
        before = lines[mutation.line - 1].encode()[: mutation.col]
        if mutation.kind == "arguments" and before.endswith((b"isinstance(", b"issubclass(")):
            continue  # always the same bug, and a type error wherever it is
        if len(mutation.after) > MAX_AFTER or mutation.line - 1 not in shown:
            continue
        mutant = apply(text, mutation).split("\n")
        shape = _shape(mutant, function)
        if shape and shape not in seen and _repairable(lines, mutant, shown, mutation):
            seen.add(shape)
            by_kind.setdefault(mutation.kind, []).append(mutation)
    for kind, found in by_kind.items():
        found.sort(key=lambda m: _order(f"{path}/{function.qualname}/{kind}/{tuple(content(m))}"))
    rounds = (
        [by_kind[kind][turn] for kind in RAREST_FIRST if turn < len(by_kind.get(kind, ()))]
        for turn in range(MAX_TRIED)
    )
    return [mutation for found in rounds for mutation in found][:MAX_TRIED]


def _order(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _shape(lines: list[str], function: Function) -> str:
    """The function's syntax tree as text, empty when it does not parse."""
    try:
        code = textwrap.dedent("\n".join(lines[function.first - 1 : function.last]))
        return ast.dump(ast.parse(code))
    except SyntaxError:
        return ""


def _repairable(
    lines: list[str], mutant: list[str], shown: Sequence[int], mutation: Mutation
) -> bool:
    """Whether the policy sees the site whole and one `edit` restores the pristine line."""
    row = mutant[mutation.line - 1]
    edit = repair("\n".join(lines), mutation, [mutant[n] for n in shown])
    if len(row) > MAX_WIDTH or edit is None:
        return False
    command = EDIT.fullmatch(f"{edit[0]} => {edit[1]}")
    if command is None or command.groups() != edit:
        return False
    return row.replace(*edit) == lines[mutation.line - 1]


def select_tests(target: Target, reached: Sequence[Reached]) -> tuple[list[str], list[str]]:
    """(tests that call the function, neighbours that do not), fast ones from at most two files.

    Tests named after the function come first, then those that call little else.
    """
    wanted = f"{target.path}::{target.function}"
    bare = target.function.rsplit(".", 1)[-1].strip("_").lower()

    def rank(row: Reached) -> tuple[bool, int, float]:
        return bare not in row.test.lower(), len(row.functions), row.seconds

    covering = [r for r in reached if wanted in r.functions and r.seconds <= MAX_TEST_SECONDS]
    chosen: list[Reached] = []
    files: list[str] = []
    for row in sorted(covering, key=rank):
        file = row.test.split("::")[0]
        total = sum(r.seconds for r in chosen) + row.seconds
        if (file not in files and len(files) == 2) or total > MAX_TOTAL_SECONDS:
            continue
        files += [file] * (file not in files)
        chosen.append(row)
        if len(chosen) == MAX_COVERING:
            break
    others = [r for r in reached if wanted not in r.functions and r.test.split("::")[0] in files]
    others.sort(key=lambda r: (r.seconds, r.test))
    return [r.test for r in chosen], [r.test for r in others[:NUM_NEIGHBOURS]]
