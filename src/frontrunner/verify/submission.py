"""Which part of a submission is judged: source of the package itself, and nothing that tests it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

MAX_FILE_BYTES = 512 << 10
MAX_FILES = 64
_TEST_FOLDERS = frozenset({"test", "tests"})
_SPECIAL = frozenset({"conftest.py", "sitecustomize.py", "usercustomize.py", "setup.py"})


@dataclass(frozen=True, slots=True)
class Effective:
    """A submission after the rules: what is applied, and what was ignored."""

    files: dict[str, str | None]
    dropped: tuple[str, ...]

    @property
    def digest(self) -> str:
        text = json.dumps(self.files, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _allowed(path: str, text: str | None, root: str) -> bool:
    parts = PurePosixPath(path).parts
    if not parts or "/".join(parts) != path or ".." in parts or "\0" in path or len(path) > 512:
        return False
    name = parts[-1]
    is_test = name.startswith("test_") or name.endswith("_test.py") or name in _SPECIAL
    if parts[0] != root or not name.endswith(".py") or is_test:
        return False
    if _TEST_FOLDERS.intersection(parts[:-1]) or any(part.endswith(".py") for part in parts[:-1]):
        return False
    if text is None:  # without it the package would be found as something else
        return name != "__init__.py"
    return _encodable(text)


def _encodable(text: str) -> bool:
    try:
        return len(text.encode()) <= MAX_FILE_BYTES
    except UnicodeEncodeError:
        return False


def effective(
    submission: Mapping[str, str | None], base: Mapping[str, str], target: str
) -> Effective:
    """The files of `submission` that count, for a task whose bug is in `target`.

    Kept: Python source below the package of `target`, outside its tests. Everything else is
    ignored: tests, conftest and configuration files, start-up hooks, compiled files, metadata, and
    modules beside the package, which could shadow others. Files equal to `base` are no change.
    """
    root = PurePosixPath(target).parts[0]
    kept: dict[str, str | None] = {}
    dropped: list[str] = []
    for path, text in sorted(submission.items()):
        if path in base and base[path] == text:
            continue
        if _allowed(path, text, root) and len(kept) < MAX_FILES:
            kept[path] = text
        else:
            dropped.append(path)
    return Effective(kept, tuple(dropped))
