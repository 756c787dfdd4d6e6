"""Paths of a project's files, checked on both sides of a box (standard library)."""

from __future__ import annotations

from pathlib import PurePosixPath


def safe_path(path: str) -> tuple[str, ...]:
    """Parts of a relative path that stays inside the tree. Raises `ValueError` otherwise."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path or len(path) > 1024:
        raise ValueError(f"unsafe path: {path!r}")
    return parts
