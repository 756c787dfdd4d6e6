"""Collection beside training: which weight version samples which step.

One worker thread runs collections and weight updates in the order in which they are queued:

    staleness 0   collect 0 | update 1, collect 1 | update 2, collect 2 | ...
    staleness 1   collect 0, collect 1 | update 1, collect 2 | update 2, collect 3 | ...

(what stands between two bars is queued between two optimizer steps). So the version of a step's
rollouts is decided by this order and never by timing, and `max_staleness` = 0 is the synchronous
loop without being a second loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from frontrunner.protocols import Engine
from frontrunner.types import Rollout


class Pipeline:
    """Keeps up to `max_staleness` + 1 steps of rollouts queued or in flight."""

    def __init__(
        self,
        engine: Engine,
        collect: Callable[[int], list[Rollout]],
        *,
        first_step: int,
        last_step: int,
        max_staleness: int,
    ) -> None:
        self._engine, self._collect = engine, collect
        self._next, self._last = first_step, last_step
        self._done, self._max_staleness = first_step, max_staleness
        self._pending: deque[Future[tuple[list[Rollout], float]]] = deque()
        self._updates: deque[Future[None]] = deque()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="collect")

    def take(self) -> tuple[list[Rollout], float]:
        """Rollouts of the next step, and the seconds it took to collect them. Blocks."""
        while self._next <= min(self._done + self._max_staleness, self._last):
            self._pending.append(self._worker.submit(self._timed, self._next))
            self._next += 1
        taken = self._pending.popleft().result()
        while self._updates and self._updates[0].done():
            self._updates.popleft().result()  # a failed update must not go unnoticed
        return taken

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Queue new weights; collections queued after this sample from them."""
        self._done += 1
        self._updates.append(self._worker.submit(self._engine.load_weights, dict(weights), version))

    def call(self, work: Callable[..., object], *args: object) -> None:
        """Run `work(*args)` when everything queued before it is done, and wait for it: the engine
        then holds the weights published last."""
        self._worker.submit(work, *args).result()

    def _timed(self, step: int) -> tuple[list[Rollout], float]:
        start = time.perf_counter()
        return self._collect(step), time.perf_counter() - start

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._worker.shutdown(cancel_futures=kind is not None)
        if kind is None:
            for update in self._updates:
                update.result()
