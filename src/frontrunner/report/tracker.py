"""metrics.jsonl: one JSON object per step, the truth that every other tracker copies.

    {"step": 12, "effort/low/success": 0.41, ...}

Numbers that are not finite are written as null, since JSON has none. A process killed while it
writes leaves a torn last line; opening the file again cuts it off.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frontrunner.errors import UserError
from frontrunner.rollout.store import write_atomically


class JsonlTracker:
    """Appends rows to a file. `fsync` also survives a machine that loses power, at some cost."""

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            cut_torn_line(path)
        self.path = path
        self._fsync = fsync
        self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One row, on disk (or in the system's buffers without `fsync`) when this returns."""
        row: dict[str, float | int | None] = {"step": step}
        for name, value in metrics.items():
            if name != "step":
                row[name] = value if math.isfinite(value) else None
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        if self._fsync:
            os.fsync(self._file.fileno())

    def truncate_after(self, step: int) -> None:
        """Drops rows of later steps: a run resumed from a checkpoint writes them again."""
        self._file.close()
        rows = [row for row in read_rows(self.path) if row["step"] <= step]
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        self._file = self.path.open("a", encoding="utf-8")

    def close(self) -> None:
        self._file.close()


def cut_torn_line(path: Path) -> None:
    """Removes what follows the last newline. Works on any file of one record per line."""
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        position = end
        while position > 0:
            start = max(0, position - 65536)
            file.seek(start)
            found = file.read(position - start).rfind(b"\n")
            if found >= 0:
                position = start + found + 1
                break
            position = start
        if position < end:
            file.truncate(position)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All complete rows. Raises `UserError` naming the line that is no metrics row."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(complete_lines(path), start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number}, is not JSON: {error.msg}.") from None
        if not isinstance(row, dict) or "step" not in row:
            raise UserError(f"{path}, line {number}, has no 'step'; is this a metrics file?")
        rows.append(row)
    return rows


def complete_lines(path: Path) -> list[str]:
    """Lines that end in a newline; a torn last line is left out. Blank lines are skipped."""
    *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return [line for line in lines if line.strip()]
