"""Where the code under test comes from: installed packages whose wheels carry their own tests.

`materialise` copies one package out of the environment into a read-only, content-addressed tree
that holds nothing else, so that an agent's box never needs the pristine installation.
"""

from __future__ import annotations

import hashlib
import json
import os
import py_compile
import shutil
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from frontrunner.errors import UserError

FORMAT = "1"
"""Layout of a tree; part of its address, so that another layout never meets an old cache."""


@dataclass(frozen=True, slots=True)
class Source:
    """A package that tasks are made from, and the parts of it that are left out."""

    name: str
    """Distribution name on the package index."""
    version: str
    """The version that the shipped task set was validated with."""
    skip_tests: tuple[str, ...] = ()
    """Test files (path prefixes in the tree) that are slow, random or need more than the tree."""
    skip_code: tuple[str, ...] = ()
    """Modules whose functions make no good tasks: command lines, locks, plotting."""


SOURCES = (
    Source(
        "toolz",
        "1.0.0",
        ("toolz/sandbox/", "toolz/tests/test_inspect_args.py"),
        ("toolz/sandbox/", "toolz/_signatures.py"),
    ),
    Source("more-itertools", "7.2.0"),
    Source("hyperlink", "21.0.0", ("hyperlink/test/test_hypothesis.py",), ("hyperlink/hypoth",)),
    Source("glom", "25.12.0", ("glom/test/test_cli.py",), ("glom/cli.py", "glom/tutorial.py")),
    Source("face", "26.0.1"),
    Source("pyflakes", "4.1.0"),
    Source("isodate", "0.6.1"),
    Source("aniso8601", "10.0.1"),
    Source("ecdsa", "0.19.2", ("ecdsa/test_rw_lock.py",), ("ecdsa/_rwlock.py",)),
    Source("mpmath", "1.3.0", ("mpmath/tests/torture.py",), ("mpmath/visualization.py",)),
)


def source(name: str) -> Source:
    """The known source called `name`, or a plain one for any other installed package."""
    for known in SOURCES:
        if known.name == name:
            return known
    return Source(name, installed_version(name))


def cache_dir() -> Path:
    """`$FRONTRUNNER_CACHE`, else `~/.cache/frontrunner`; made when missing."""
    folder = Path(os.environ.get("FRONTRUNNER_CACHE") or Path.home() / ".cache" / "frontrunner")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make the cache folder {folder}: {error.strerror}; set FRONTRUNNER_CACHE"
        ) from error
    return folder


def installed_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        raise UserError(f"package {name} is not installed; pip install {name}") from None


@lru_cache(maxsize=64)
def _installed(name: str) -> dict[str, Path]:
    """Tree path -> installed file of a distribution, without metadata, scripts and bytecode."""
    found: dict[str, Path] = {}
    for file in metadata.files(name) or ():
        parts = file.parts
        if len(parts) < 2 or ".." in parts or "__pycache__" in parts:
            continue
        if parts[0].endswith((".dist-info", ".egg-info", ".data")) or file.suffix == ".pyc":
            continue
        if file.suffix in (".so", ".pyd"):
            raise UserError(f"package {name} is not pure Python ({file}); tasks need one that is")
        found[file.as_posix()] = Path(str(file.locate()))
    if not found:
        raise UserError(f"package {name} lists no installed files; reinstall it with pip")
    return dict(sorted(found.items()))


def _read(name: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        raise UserError(
            f"package {name} misses {file}; pip install --force-reinstall {name}"
        ) from None


@lru_cache(maxsize=64)
def digest(name: str) -> str:
    """Content address of an installed package: sha256 (hex) over all paths and contents."""
    installed_version(name)
    total = hashlib.sha256(FORMAT.encode())
    for path, file in _installed(name).items():
        total.update(json.dumps([path, hashlib.sha256(_read(name, file)).hexdigest()]).encode())
    return total.hexdigest()


@lru_cache(maxsize=64)
def libraries(name: str) -> tuple[str, ...]:
    """Installed distributions that a package needs at run time, transitively, without itself."""
    from packaging.requirements import Requirement  # late: only a build and its tests need it

    found: set[str] = set()
    waiting = [name]
    while waiting:
        for line in metadata.requires(waiting.pop()) or ():
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            if requirement.name not in found and _is_installed(requirement.name):
                found.add(requirement.name)
                waiting.append(requirement.name)
    return tuple(sorted(found - {name}))


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def tree_path(name: str, version: str, package_digest: str) -> Path:
    return cache_dir() / "trees" / f"{name}-{version}-{package_digest[:16]}"


def materialise(name: str, version: str | None = None, expected: str | None = None) -> Path:
    """The read-only tree of a package, made on first use; safe to call from many processes.

    `version` and `expected` (a `digest`) are what a task set was validated with. Raises UserError
    when the installed package is another one. A tree that is in the cache is used without the
    package being installed.
    """
    if version is not None and expected is not None:
        tree = tree_path(name, version, expected)
        if tree.is_dir():
            return tree
    found = installed_version(name)
    if version is not None and found != version:
        raise UserError(
            f"{name} {found} is installed but the task set needs {version}; "
            f"pip install {name}=={version}"
        )
    actual = digest(name)
    if expected is not None and actual != expected:
        raise UserError(
            f"{name} {found} is installed but its files differ from those of the task set; "
            f"pip install --force-reinstall --no-deps {name}=={found}"
        )
    tree = tree_path(name, found, actual)
    if not tree.is_dir():
        _build(name, tree)
    return tree


def _build(name: str, tree: Path) -> None:
    """Copy, compile and rename into place; whoever renames first wins."""
    tree.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{tree.name}-", dir=tree.parent))
    try:
        for path, file in _installed(name).items():
            target = work / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_read(name, file))
            if target.suffix == ".py":
                _compile(target, path)
        _seal(work)
        try:
            work.rename(tree)
        except OSError:
            if not tree.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _compile(file: Path, path: str) -> None:
    """Bytecode that is checked against the source's hash: an edited file is never shadowed."""
    try:
        py_compile.compile(
            str(file),
            dfile=path,
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )
    except (py_compile.PyCompileError, UnicodeError):
        return  # templates and files for other Python versions are legal content of a package


def _seal(work: Path) -> None:
    """World-readable files that nobody writes by accident; folders stay renamable by the owner."""
    for entry in [work, *work.rglob("*")]:
        entry.chmod(0o755 if entry.is_dir() else 0o444)
