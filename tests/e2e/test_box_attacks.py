"""What no code in a box can do: reach the original, other projects, the host or the network, gain
a right, outlive its run, or use more than its share."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from shop_package import BUGGY, SUITE, SUITE_PATH, TARGET, TASK, make_shop

from frontrunner.envs.sandbox import LocalSandbox


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shop(tmp_path_factory.mktemp("trees") / "shop")


@pytest.fixture(scope="module")
def box(tree: Path) -> Iterator[LocalSandbox]:
    with LocalSandbox([tree], num_workers=1, scratch_mb=16, memory_mb=512) as made:
        yield made


def outcomes(box: LocalSandbox, tree: Path, body: str, timeout: float = 10.0) -> dict[str, str]:
    files: dict[str, str | None] = {TARGET: BUGGY, "shop/tests/test_x.py": body}
    report = box.run_tests(tree, files, ["shop/tests/test_x.py"], timeout=timeout)
    assert report.outcomes, report
    assert set(report.outcomes.values()) == {"passed"}, report
    return report.outcomes


def test_the_original_is_nowhere(box: LocalSandbox, tree: Path) -> None:
    body = """
import os, sys, importlib.util, pathlib
def test_files():
    found = []
    for folder, _, names in os.walk("/"):
        if folder.startswith(("/opt/python", "/usr", "/lib")):
            continue
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path) and os.path.isfile(path):
                data = open(path, "rb").read()
                if b"result +" + b"= price" in data or "core." in name.removeprefix("test_core."):
                    found.append(path)
                    assert b"result = 1" in data, path
    assert found == ["/repo/shop/core.py"], found
def test_other_pythons():
    for folder in pathlib.Path("/usr/lib").glob("python[0-9]*"):
        assert not list(folder.iterdir()), folder
    for name in ("site-packages", "ensurepip"):
        assert not os.listdir(os.path.join(os.path.dirname(os.__file__), name))
def test_mounts():
    for folder in ("/trees", "/libs", "/opt/box", "/proc", "/scratch"):
        assert os.listdir(folder) == [], folder
def test_packages():
    for name in ("toolz", "numpy", "frontrunner", "pip"):
        assert importlib.util.find_spec(name) is None, name
"""
    assert len(outcomes(box, tree, body)) == 4


def test_nothing_of_the_host_is_visible(box: LocalSandbox, tree: Path) -> None:
    os.environ["FRONTRUNNER_SECRET"] = "visible"
    body = """
import os, sys
def test_environment():
    assert "FRONTRUNNER_SECRET" not in os.environ
    assert set(os.environ) <= {"PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH",
        "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTEST_DISABLE_PLUGIN_AUTOLOAD",
        "SOURCE_DATE_EPOCH", "PWD", "PYTEST_VERSION", "PYTEST_CURRENT_TEST"}
def test_root():
    assert set(os.listdir("/")) <= {"deps", "dev", "etc", "lib", "lib32", "lib64", "libs", "opt",
        "proc", "repo", "scratch", "tmp", "trees", "usr"}
    assert sorted(os.listdir("/etc")) == ["group", "ld.so.cache", "passwd"]
    assert os.uname().nodename == "box"
def test_identity():
    assert os.getuid() == 1000 and os.getgroups() in ([], [1000], [65534])
    assert os.getpid() == 1
def test_descriptors():
    open_fds = []
    for fd in range(3, 256):
        try:
            os.fstat(fd)
            open_fds.append(fd)
        except OSError:
            pass
    assert len(open_fds) == 1, open_fds
"""
    try:
        outcomes(box, tree, body)
    finally:
        del os.environ["FRONTRUNNER_SECRET"]


def test_nothing_outside_can_be_written(box: LocalSandbox, tree: Path) -> None:
    body = """
import os, pytest
@pytest.mark.parametrize("path", ["/", "/usr/lib", "/lib", "/etc", "/opt/python", "/opt/lib",
    "/trees", "/libs", "/opt", "/dev", "/proc", "/opt/box"])
def test_write(path):
    with pytest.raises(OSError):
        open(os.path.join(path, "mark"), "w")
    with pytest.raises(OSError):
        os.chmod(path, 0o777)
def test_package_files():
    with pytest.raises(OSError):
        open("/repo/shop/tests/test_core.py", "w")
"""
    outcomes(box, tree, body)
    assert (tree / SUITE_PATH).read_text() == SUITE


def test_no_network(box: LocalSandbox, tree: Path) -> None:
    name = f"\0frontrunner-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as unix, socket.socket() as inet:
        unix.bind(name)
        unix.listen()
        inet.bind(("127.0.0.1", 0))
        inet.listen()
        body = f"""
import socket, pytest
@pytest.mark.parametrize("family, address", [
    (socket.AF_INET, ("127.0.0.1", {inet.getsockname()[1]})),
    (socket.AF_INET, ("1.1.1.1", 53)),
    (socket.AF_INET6, ("2606:4700:4700::1111", 53)),
    (socket.AF_UNIX, {name!r}),
])
def test_connect(family, address):
    with socket.socket(family) as s:
        s.settimeout(2)
        with pytest.raises(OSError):
            s.connect(address)
@pytest.mark.parametrize("family", [socket.AF_NETLINK, socket.AF_PACKET, 40, 38])
def test_families(family):
    with pytest.raises(PermissionError):
        socket.socket(family, socket.SOCK_RAW)
"""
        outcomes(box, tree, body)


def test_no_privilege_and_no_way_to_one(box: LocalSandbox, tree: Path) -> None:
    body = """
import ctypes, os, pytest
libc = ctypes.CDLL(None, use_errno=True)
def refused(result, *codes):
    assert result == -1, "allowed"
    assert ctypes.get_errno() in (codes or (1,)), ctypes.get_errno()
def test_capabilities():
    data = (ctypes.c_uint32 * 6)()
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    assert libc.capget(header, data) == 0
    assert list(data) == [0] * 6
    assert all(libc.prctl(23, cap, 0, 0, 0) == 0 for cap in range(40))
    assert libc.prctl(39, 0, 0, 0, 0) == 1
def test_masks_stay():
    for path in (b"/trees", b"/proc", b"/libs"):
        refused(libc.umount2(path, 2))
        refused(libc.mount(b"tmpfs", path, b"tmpfs", 0, None))
@pytest.mark.parametrize("flag", [0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000])
def test_namespaces(flag):
    refused(libc.unshare(flag))
    refused(libc.syscall(56, flag | 17, 0, 0, 0, 0))
    refused(libc.syscall(435, 0, 0), 38)
def test_calls():
    for number in (101, 155, 161, 165, 166, 250, 298, 308, 310, 321, 323, 425, 428, 430, 304):
        refused(libc.syscall(number, 0, 0, 0, 0, 0, 0))
def test_other_processes():
    with pytest.raises(ProcessLookupError):
        os.kill(2, 0)
    assert os.getppid() == 0
def test_ids():
    for change in (os.setuid, os.setgid):
        with pytest.raises(OSError):
            change(0)
"""
    if os.uname().machine != "x86_64":
        pytest.skip("system call numbers are those of x86-64")
    outcomes(box, tree, body)


def alive(marker: str) -> int:
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += marker in path.read_bytes().decode(errors="replace")
        except OSError:
            continue
    return count


def test_a_background_process_ends_with_the_run(box: LocalSandbox, tree: Path) -> None:
    body = """
import subprocess, sys, os
def test_leave():
    code = "import os, time; os.setsid(); time.sleep(61.25)"
    for _ in range(3):
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
"""
    outcomes(box, tree, body)
    deadline = time.monotonic() + 1
    while alive("61.25") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive("61.25")


def test_a_fork_bomb_stays_in_the_box(box: LocalSandbox, tree: Path) -> None:
    body = """
import os, time
def test_bomb():
    count = 0
    try:
        for _ in range(500):
            if os.fork() == 0:
                time.sleep(30)
                os._exit(0)
            count += 1
    except BlockingIOError:
        pass
    assert 1 < count < 100, count
"""
    outcomes(box, tree, body)


def test_the_disk_cannot_be_filled(box: LocalSandbox, tree: Path) -> None:
    body = """
import os, pytest
@pytest.mark.parametrize("folder", ["/repo", "/tmp", "/dev/shm", "/repo/shop"])
def test_fill(folder):
    size = 0
    with pytest.raises(OSError):
        for index in range(50):
            with open(f"{folder}/big{index}", "wb") as file:
                size += file.write(bytes(4 << 20))
                file.flush()
    assert size <= 20 << 20
def test_many_files():
    with pytest.raises(OSError):
        for index in range(20000):
            open(f"/dev/shm/n{index}", "w").close()
"""
    outcomes(box, tree, body)


def test_memory_is_limited(box: LocalSandbox, tree: Path) -> None:
    body = """
import pytest
def test_hog():
    with pytest.raises(MemoryError):
        x = bytearray(1 << 30)
"""
    outcomes(box, tree, body)
    many = """
import os, time
def test_hogs():
    for _ in range(8):
        if os.fork() == 0:
            x = bytearray(300 << 20)
            time.sleep(20)
            os._exit(0)
    time.sleep(4)
    assert False
"""
    files: dict[str, str | None] = {"shop/tests/test_x.py": many}
    report = box.run_tests(tree, files, ["shop/tests/test_x.py"], timeout=10)
    assert "passed" not in report.outcomes.values()
    assert box.run_tests(tree, {}, list(TASK.fail_to_pass), timeout=10).outcomes


def test_signals_do_not_stop_the_clock(box: LocalSandbox, tree: Path) -> None:
    body = """
import os, signal, time
def test_stubborn():
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    os.kill(-1, signal.SIGKILL) if False else None
    while True:
        time.sleep(1)
"""
    files: dict[str, str | None] = {"shop/tests/test_x.py": body}
    start = time.monotonic()
    report = box.run_tests(tree, files, ["shop/tests/test_x.py"], timeout=1)
    assert report.timed_out
    assert time.monotonic() - start < 2.0
