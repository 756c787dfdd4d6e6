"""Progress for people: one live table on a terminal, one plain line per step anywhere else.

Only the driver draws, and only on stderr, so that stdout stays machine-readable.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_COLUMNS = (("success", "S"), ("cost", "C"), ("reward", "R"), ("length", "tokens"))


class ConsoleTracker:
    """A `Tracker` for the eyes. `levels`: names, lowest effort first."""

    def __init__(
        self, levels: Sequence[str], num_steps: int, *, stream: TextIO | None = None
    ) -> None:
        self._levels = tuple(levels)
        self._num_steps = num_steps
        self._stream = sys.stderr if stream is None else stream
        self._last: dict[str, float] = {}
        self._warned: set[str] = set()
        self._live: Live | None = None
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self._stream), auto_refresh=False)
            self._live.start()

    def log(
        self, step: int, metrics: Mapping[str, float], warnings: Mapping[str, str] | None = None
    ) -> None:
        """Shows one step. A level that had no rollouts in it keeps its last numbers. `warnings`
        are sentences by kind; each kind is printed when it first comes up."""
        given = warnings or {}
        fresh = [f"alarm: {text}" for kind, text in given.items() if kind not in self._warned]
        self._warned.update(given)
        if self._live is None:
            for text in [self.line(step, metrics), *fresh]:
                print(text, file=self._stream, flush=True)
            return
        for text in fresh:
            self._live.console.print(text)
        self._last.update(metrics)
        self._live.update(self._table(step), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def line(self, step: int, metrics: Mapping[str, float]) -> str:
        """`step 12/200  low S 41.0% C $0.0021  high S 58.2% C $0.013`."""
        parts = [f"step {step}/{self._num_steps}"]
        for name in self._levels:
            cells = [
                f"{label} {text}"
                for metric, label in _COLUMNS[:3]
                if (text := _text(metrics, name, metric))
            ]
            if cells:
                parts.append(" ".join([name, *cells]))
        return "  ".join(parts)

    def _table(self, step: int) -> Table:
        from rich.table import Table

        table = Table(title=f"step {step} of {self._num_steps}", title_justify="left")
        table.add_column("effort")
        for _, label in _COLUMNS:
            table.add_column(label, justify="right")
        for name in self._levels:
            table.add_row(name, *(_text(self._last, name, metric) or "-" for metric, _ in _COLUMNS))
        return table


def _text(metrics: Mapping[str, float], level: str, metric: str) -> str:
    value = metrics.get(f"effort/{level}/{metric}")
    if value is None:
        return ""
    if metric == "success":
        return f"{value:.1%}"
    if metric == "cost":
        return f"${value:.3g}"
    return f"{value:+.3f}" if metric == "reward" else f"{value:.0f}"


_SECONDS_PER_LINE = 15.0


class Progress:
    """Counts finished rollouts: one line rewritten on a terminal, a line now and then elsewhere."""

    def __init__(
        self, what: str, total: int, done: int = 0, *, stream: TextIO | None = None
    ) -> None:
        self._what, self._total, self._done, self._first = what, total, done, done
        self._stream = sys.stderr if stream is None else stream
        self._start = self._last = time.monotonic()

    def __enter__(self) -> Self:
        self._show("\n" if not self._stream.isatty() else "\r")
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream.isatty() or self._done == self._total:
            self._show("\n")

    def advance(self) -> None:
        """One more is done."""
        self._done += 1
        now = time.monotonic()
        if self._stream.isatty():
            if now - self._last > 0.2:
                self._last = now
                self._show("\r")
        elif now - self._last > _SECONDS_PER_LINE:
            self._last = now
            self._show("\n")

    def _show(self, end: str) -> None:
        text = f"{self._what}: {self._done} of {self._total} rollouts"
        made, seconds = self._done - self._first, time.monotonic() - self._start
        if made and self._done < self._total:
            text += f", {seconds / made * (self._total - self._done):.0f} s left"
        print(f"{text:<70}", end=end, file=self._stream, flush=True)
