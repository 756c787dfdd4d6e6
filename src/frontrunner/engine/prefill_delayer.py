"""May prefill run now?

Where a prefill pass interrupts decoding, n prefills one by one stall all decoding rows n times;
held back for a moment and run together they stall them once. The price is time to first token.

A batch of prefills grows when a request arrives, or, with a queue, when a row of the batch becomes
free. A decision is a pure function of a `PrefillView` and a little state that decays: estimates of
the time between arrivals and between departures, and since when the oldest request waits. Nothing
is held when

- nothing runs (an idle engine answers at once),
- a chunk goes on or a preempted row comes back,
- little of the cache is in use (`low_usage`),
- as many can be admitted as `queue_ratio` of the running rows,
- no further one is expected within the time that is left,
- the oldest request has waited for `max_passes` passes or `max_seconds`, whichever comes first.

A head that does not fit into the cache is not held by this class and is not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillView:
    """One pass as the delayer sees it. Times in seconds on one clock."""

    now: float
    num_running: int
    free_rows: int
    num_waiting: int
    waiting_tokens: int
    prefill_tokens: int
    """Prompt tokens that one pass takes."""
    oldest: int
    """Number of the request at the head of the queue."""
    oldest_seconds: float
    """When it arrived."""
    continues: bool = False
    """A chunk goes on in this pass, or the head is a preempted row."""
    blocked_by_kv: bool = False
    usage: float = 1.0
    """Share of the cache that is set aside for running rows."""


class PrefillDelayer:
    """Holds and batches nearby prefills, bounded in passes and in time."""

    def __init__(
        self,
        *,
        max_passes: int = 30,
        max_seconds: float = 1.0,
        queue_ratio: float = 0.25,
        low_usage: float = 0.0,
        decay: float = 0.2,
    ) -> None:
        self.max_passes, self.max_seconds = max_passes, max_seconds
        self.queue_ratio, self.low_usage, self.decay = queue_ratio, low_usage, decay
        self.outcomes: Counter[str] = Counter()
        self.wait_passes: Counter[int] = Counter()
        """How many passes released heads were held for."""
        self.wait_seconds = 0.0
        """Sum over released heads."""
        self.reset()

    def reset(self) -> None:
        """Forget estimates and timers, as after a pause."""
        self._arrivals, self._departures = _Gap(self.decay), _Gap(self.decay)
        self._held: tuple[int, int] = (-1, 0)

    def arrived(self, now: float) -> None:
        """A request was submitted."""
        self._arrivals.note(now)

    def departed(self, now: float) -> None:
        """A running request is done, its row is free."""
        self._departures.note(now)

    def decide(self, view: PrefillView) -> bool:
        """True if new prompts may enter this pass."""
        reason = self._reason(view)
        self.outcomes[reason] += 1
        oldest, passes = self._held
        passes = passes if oldest == view.oldest else 0
        if reason == "held":
            self._held = (view.oldest, passes + 1)
        elif reason != "blocked_by_kv":
            self.wait_passes[passes] += 1
            if passes:
                self.wait_seconds += view.now - view.oldest_seconds
            self._held = (-1, 0)
        return reason != "held"

    def metrics(self) -> dict[str, float]:
        """Passes by outcome, and how long released heads were held."""
        released = sum(self.wait_passes.values())
        passes = sum(number * times for number, times in self.wait_passes.items())
        values = {f"prefill_{reason}": float(n) for reason, n in self.outcomes.items()}
        values["prefill_wait_passes"] = passes / max(1, released)
        values["prefill_wait_seconds"] = self.wait_seconds / max(1, released)
        return values

    def _reason(self, view: PrefillView) -> str:
        if view.blocked_by_kv:
            return "blocked_by_kv"
        if view.num_running == 0:
            return "idle"
        if view.continues:
            return "continues"
        if view.usage < self.low_usage:
            return "low_usage"
        wanted = max(1, math.ceil(self.queue_ratio * view.num_running))
        if min(view.num_waiting, view.free_rows) >= wanted:
            return "batch_full"
        if view.waiting_tokens >= view.prefill_tokens:
            return "batch_full"
        passes = self._held[1] if self._held[0] == view.oldest else 0
        if passes >= self.max_passes:
            return "max_passes"
        left = self.max_seconds - (view.now - view.oldest_seconds)
        if left <= 0:
            return "max_seconds"
        scarce = self._arrivals if view.num_waiting <= view.free_rows else self._departures
        return "held" if scarce.expected(view.now) <= left else "nobody_expected"


class _Gap:
    """Mean time between events, weighing the last ones most."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._last = math.nan
        self._mean = math.nan

    def note(self, now: float) -> None:
        gap = now - self._last
        if math.isnan(self._mean):
            self._mean = gap  # still nan after the first event
        else:
            self._mean += self._decay * (gap - self._mean)
        self._last = now

    def expected(self, now: float) -> float:
        """Seconds until the next event; silence since the last one counts against it."""
        if math.isnan(self._mean):
            return math.inf
        return max(self._mean, now - self._last)
