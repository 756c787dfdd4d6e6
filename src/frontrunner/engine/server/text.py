"""Text of an answer while it is being sampled, and the tool calls in it.

Text goes out as soon as it can no longer change: not while a character lacks bytes, not while it
may be the beginning of a stop string or of a tool call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

TOOL_OPEN, TOOL_CLOSE = "<tool_call>", "</tool_call>"
UNFINISHED = "\ufffd"
"""What decoders write for bytes that are no whole character (yet)."""


class TextStream:
    """Tokens in, text out. The text ends before the first stop string; what follows `hold` is kept
    back for the end."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop_strings: Sequence[str] = (),
        hold: str = "",
    ) -> None:
        self._decode, self._stop_strings, self._hold = decode, stop_strings, hold
        self._ids: list[int] = []
        self._start = self._stop = 0
        """Tokens `start..stop` were decoded last: decoders need some context before new tokens."""
        self._pending = ""
        self._ended = self._held = False

    def add(self, ids: Sequence[int]) -> str:
        """Take new tokens; returns the text that is safe to show now."""
        self._ids += ids
        known = self._decode(self._ids[self._start : self._stop])
        text = self._decode(self._ids[self._start :])
        if len(text) > len(known) and not text.endswith(UNFINISHED):
            self._start, self._stop = self._stop, len(self._ids)
            self._take(text[len(known) :])
        return self._release(final=False)

    def finish(self) -> str:
        """The rest of the text, unfinished characters and what was held included."""
        known = self._decode(self._ids[self._start : self._stop])
        self._take(self._decode(self._ids[self._start :])[len(known) :])
        self._stop = len(self._ids)
        return self._release(final=True)

    def _take(self, text: str) -> None:
        if self._ended:
            return
        self._pending += text
        found = [n for s in self._stop_strings if (n := self._pending.find(s)) >= 0]
        if found:
            self._pending, self._ended = self._pending[: min(found)], True

    def _release(self, *, final: bool) -> str:
        if final:
            count = len(self._pending)
        elif self._held:
            count = 0
        elif self._hold and self._hold in self._pending:
            self._held = True
            count = self._pending.index(self._hold)
        else:
            marks = [*([] if self._ended else self._stop_strings), *filter(None, [self._hold])]
            count = len(self._pending) - max((_overlap(self._pending, m) for m in marks), default=0)
        text, self._pending = self._pending[:count], self._pending[count:]
        return text


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that `mark` begins with."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((n for n in sizes if text.endswith(mark[:n])), 0)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a function by the model; `arguments` is JSON text."""

    name: str
    arguments: str


def split_tool_calls(text: str) -> tuple[str, list[ToolCall]]:
    """Content and calls of an answer. A block that is not a call stays in the content."""
    content, calls = "", []
    head, *blocks = text.split(TOOL_OPEN)
    content += head
    for block in blocks:
        body, _, rest = block.partition(TOOL_CLOSE)
        call = _call_of(body)
        if call:
            calls.append(call)
            content += rest.strip()
        else:
            content += TOOL_OPEN + block
    return (content.rstrip() if calls else content), calls


def _call_of(body: str) -> ToolCall | None:
    try:
        tree: Any = json.loads(body)
    except (ValueError, RecursionError):  # the model wrote something else
        return None
    if not isinstance(tree, dict) or not isinstance(tree.get("name"), str):
        return None
    arguments = tree.get("arguments", {})
    return ToolCall(
        tree["name"], arguments if isinstance(arguments, str) else json.dumps(arguments)
    )
