"""Kernel confinement of one test run, by system calls alone (standard library, runs in the box).

The order matters: namespaces -> private root -> resource limits -> capabilities -> seccomp. Each
step needs a right that a later step gives up for good.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Mapping, Sequence

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x8000000, 0x10000000, 0x20000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_PR_SET_SECCOMP, _PR_CAP_AMBIENT = 22, 47
_CAPABILITY_VERSION_3 = 0x20080522

# Every flag that makes a namespace (NEWTIME shares its bit with the exit signal and needs unshare).
_CLONE_NEW_ANY = 0x7E020000
_IPV4, _IPV6, _UNIX = 2, 10, 1

# Name -> (x86-64, arm64). Calls that a test of a Python package never needs, and that reach the
# kernel's mount, tracing, key, module or namespace code.
_DENIED = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "swapon": (167, 224),
    "reboot": (169, 142),
    "acct": (163, 89),
    "personality": (135, 92),
}
_CLONE, _CLONE3, _SOCKET = (56, 220), (435, 435), (41, 198)
_AUDIT_ARCH = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() or None)
    _check(_libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def enter_namespaces() -> None:
    """New user, mount, pid and ipc namespaces; the next fork becomes pid 1. Raises `OSError`.

    Leaves this process with every capability inside the new user namespace and none outside it.
    """
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC
    _check(_libc.unshare(flags), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        _write(f"/proc/self/{name}", text)
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def forbid_user_namespaces() -> None:
    """No namespace can be made below this one, whatever the seccomp filter lets through."""
    _write("/proc/sys/user/max_user_namespaces", "0")


def mount_tmpfs(target: str, megabytes: int, mode: str = "0755", files: int = 8192) -> None:
    options = f"size={megabytes}m,nr_inodes={files},mode={mode}"
    _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, options)


def mask(target: str) -> None:
    """Covers a directory with an empty read-only one."""
    flags = _MS_NOSUID | _MS_NODEV | _MS_RDONLY
    _mount("tmpfs", target, "tmpfs", flags, "size=4k,nr_inodes=2,mode=0555")


def bind(source: str, target: str) -> None:
    _mount(source, target, "", _MS_BIND | _MS_REC)


def detach(target: str) -> None:
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


def mount_overlay(lower: str, scratch: str, target: str) -> None:
    """`scratch`/upper over read-only `lower`, seen at `target`. Raises `OSError` when refused."""
    data = f"lowerdir={lower},upperdir={scratch}/upper,workdir={scratch}/work,userxattr"
    _mount("overlay", target, "overlay", _MS_NOSUID | _MS_NODEV, data)


def die_with_parent() -> None:
    _check(_libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl pdeathsig")


def set_limits(limits: Mapping[str, int]) -> None:
    """Soft and hard limits by their short names: `{"AS": 1 << 30, "NOFILE": 256}`."""
    for name, value in limits.items():
        kind: int = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))


def drop_privileges() -> None:
    """Gives up every capability and the way back to any, and installs the seccomp filter."""
    _libc.prctl(_PR_CAP_AMBIENT, 4, 0, 0, 0)
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, struct.pack("=6I", *[0] * 6)), "capset")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl no_new_privs")
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    _install_filter()


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def has_filter() -> bool:
    """Whether this machine's system call numbers are known."""
    return os.uname().machine in _AUDIT_ARCH and sys.maxsize > 1 << 32


def _install_filter() -> None:
    if not has_filter():
        return
    code = seccomp_program(*_AUDIT_ARCH[os.uname().machine])
    program = _Program(len(code) // 8, code)
    _check(_libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0), "prctl seccomp")


def seccomp_program(column: int, arch: int) -> bytes:
    """The filter as classic BPF: deny-list, no new namespaces, sockets of three families only.

    `socket` is filtered because network namespaces do not separate every family (vsock reaches the
    hypervisor from any of them).
    """
    load, equal, at_least, any_bit, leave = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill, deny, missing = 0x7FFF0000, 0x80000000, 0x50000 | 1, 0x50000 | 38
    # Jump targets are resolved from labels once the length is known.
    steps: list[tuple[int, str, str, int]] = [
        (load, "", "", 4),
        (equal, "", "kill", arch),
        (load, "", "", 0),
        (at_least, "deny", "", 0x40000000),  # the x32 table, which the numbers do not cover
    ]
    steps += [(equal, "deny", "", numbers[column]) for numbers in _DENIED.values()]
    steps += [
        (equal, "missing", "", _CLONE3[column]),  # its flags are behind a pointer: libc falls back
        (equal, "", "socket?", _CLONE[column]),
        (load, "", "", 16),
        (any_bit, "deny", "allow", _CLONE_NEW_ANY),
        (equal, "", "allow", _SOCKET[column]),
        (load, "", "", 16),
    ]
    steps += [(equal, "allow", "", family) for family in (_UNIX, _IPV4, _IPV6)]
    labels = {"socket?": len(steps) - 5}
    for label, value in (("deny", deny), ("allow", allow), ("kill", kill), ("missing", missing)):
        labels[label] = len(steps)
        steps.append((leave, "", "", value))
    lines = []
    for index, (op, true, false, value) in enumerate(steps):
        jumps = [labels[label] - index - 1 if label else 0 for label in (true, false)]
        lines.append(struct.pack("=HBBI", op, *jumps, value))
    return b"".join(lines)


def hide_memory() -> None:
    """Closes this process's /proc files to others of the same user."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl dumpable")


def close_fds(keep: Sequence[int]) -> None:
    """Closes every descriptor above 2 except those in `keep`."""
    low = 3
    for fd in sorted(keep):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
