"""The line protocol between the runner and its watcher (standard library, in the box)."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable
from typing import Any

Emit = Callable[[dict[str, Any]], None]


def reporter(fd: int, key: bytes) -> Emit:
    """A function that writes one authenticated JSON line per call; `key` is not kept."""
    state = hashlib.blake2b(key=key, digest_size=16)
    count = itertools.count()
    write, encode = os.write, json.JSONEncoder(separators=(",", ":")).encode

    def emit(record: dict[str, Any]) -> None:
        body = f"{next(count)} {encode(record)}".encode()
        digest = state.copy()
        digest.update(body)
        line = digest.hexdigest().encode() + b" " + body + b"\n"
        while line:
            line = line[write(fd, line) :]

    return emit


class LineReader:
    """The other end of `reporter`: yields the records, refuses what is not from it."""

    def __init__(self, key: bytes, limit: int) -> None:
        self._state = hashlib.blake2b(key=key, digest_size=16)
        self._count = 0
        self._rest = b""
        self._room = limit
        self.forged = False

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Records completed by `data`; after one bad line nothing more is believed."""
        records: list[dict[str, Any]] = []
        self._room -= len(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        self.forged |= self._room < 0
        for line in lines:
            given, _, body = line.partition(b" ")
            digest = self._state.copy()
            digest.update(body)
            count, _, text = body.partition(b" ")
            genuine = digest.hexdigest().encode() == given and count == b"%d" % self._count
            self.forged |= not genuine
            if self.forged:
                return records
            self._count += 1
            records.append(json.loads(text))
        return records
