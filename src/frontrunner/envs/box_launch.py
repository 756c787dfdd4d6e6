"""Last step before a box, run as its own process: join control groups, give up root, start bwrap.

    python -I -S box_launch.py < plan.json

A separate process because the parent may have threads, after which only exec is safe to call. As
root it first shows what the box may bind at neutral paths in a mount namespace of its own, since
bubblewrap will run as a user that may not reach the originals. Bubblewrap starts with an empty
environment: a box can read it at /proc/1/environ.
"""

import ctypes
import json
import os
import sys

_NEW_MOUNTS, _PRIVATE, _BIND = 0x20000, 16384 | 1 << 18, 4096 | 16384
_NO_NEW_PRIVS = 38


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise SystemExit(f"{what}: {os.strerror(code)}")


def _gather(folder: str, sources: list[str]) -> None:
    """Binds each source at `folder`/<its index>, visible to this process and its children only."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_NEW_MOUNTS), "new mount namespace (CAP_SYS_ADMIN is needed as root)")
    _check(libc.mount(b"none", b"/", None, ctypes.c_ulong(_PRIVATE), None), "private mounts")
    _check(libc.mount(b"tmpfs", folder.encode(), b"tmpfs", ctypes.c_ulong(0), None), "mount tmpfs")
    os.chmod(folder, 0o755)
    for index, source in enumerate(sources):
        target = f"{folder}/{index}"
        if os.path.isdir(source):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        words = source.encode(), target.encode()
        _check(libc.mount(*words, None, ctypes.c_ulong(_BIND), None), f"bind {source}")


def main() -> None:
    plan = json.load(sys.stdin)
    for path in plan["procs_files"]:
        with open(path, "w") as file:
            file.write(str(os.getpid()))
    if plan["uid"]:
        _gather(plan["folder"], plan["sources"])
        os.setgroups([])
        os.setgid(plan["uid"])
        os.setuid(plan["uid"])
    if ctypes.CDLL(None).prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise SystemExit("prctl(PR_SET_NO_NEW_PRIVS) was refused")
    os.dup2(plan["channel"], 0)
    os.close(plan["channel"])
    os.execve(plan["argv"][0], plan["argv"], {})


if __name__ == "__main__":
    main()
