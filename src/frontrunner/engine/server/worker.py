"""The one thread that owns the engine, and how an event loop talks to it.

    loop:    call(f) ----queue----> f()               answers(...) ----queue----> submit
    thread:  run what is queued -> one engine step -> hand out what it added -> again

Between two steps the thread runs what was queued, so nothing else ever touches the engine and
tensors need no locks. While nothing can be computed it sleeps on the queue.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from frontrunner.engine.engine import LocalEngine, PauseMode
from frontrunner.engine.request import Row
from frontrunner.errors import UserError
from frontrunner.protocols import GenerateRequest, GenerateResult

T = TypeVar("T")

DECAY = 0.2
"""Weight of the newest gap between two finished requests in their mean."""
MAX_RETRY_SECONDS = 60


class OverloadedError(Exception):
    """The queue is full; the message is for a person, `retry_seconds` for the client."""

    def __init__(self, message: str, retry_seconds: int) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class EngineFailedError(Exception):
    """The engine's thread has died; the server has to be started again."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to an answer, `[T]` each; `result`, the whole, comes with the last."""

    number: int
    """Which of the requests that were submitted together."""
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    kept: tuple[tuple[int, ...], ...]
    result: GenerateResult | None = None


@dataclass(slots=True)
class _Client:
    """Where the answer to a request goes."""

    number: int
    stream: bool
    queue: asyncio.Queue[Delta | Exception]
    row: Row | None = None
    num_sent: int = 0


@dataclass(slots=True)
class _Pace:
    """Mean time between finished requests, for `Retry-After`."""

    last: float = math.nan
    gap: float = math.nan

    def note(self, now: float) -> None:
        gap = now - self.last
        self.gap = gap if math.isnan(self.gap) else self.gap + DECAY * (gap - self.gap)
        self.last = now

    @property
    def retry_seconds(self) -> int:
        gap = 1.0 if math.isnan(self.gap) else self.gap
        return max(1, min(MAX_RETRY_SECONDS, math.ceil(gap)))


@dataclass(slots=True)
class EngineWorker:
    """Owns `engine` from `start` to `stop`; the coroutines belong to the loop that called `start`.

    At most `max_queue` requests wait beside those that fill the batch.
    """

    engine: LocalEngine
    max_queue: int
    paused: PauseMode | None = None
    failure: str = ""
    """Why the thread died; empty while it lives."""
    _commands: SimpleQueue[Callable[[], None] | None] = field(default_factory=SimpleQueue)
    _clients: dict[str, _Client] = field(default_factory=dict)
    _drained: list[Callable[[], None]] = field(default_factory=list)
    """What waits for the running requests to finish."""
    _pace: _Pace = field(default_factory=_Pace)
    _thread: threading.Thread | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    @property
    def max_pending(self) -> int:
        """Requests that may run or wait at the same time."""
        return self.engine.scheduler.max_batch + self.max_queue

    def start(self) -> None:
        """Start the thread; called in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after its step, with whatever is unfinished."""
        self._commands.put(None)
        if self._thread:
            await asyncio.to_thread(self._thread.join)

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` in the engine's thread, between two steps; its error is raised here."""
        future = self._future()

        def run() -> None:
            try:
                if self.failure:  # it died while this was queued
                    raise EngineFailedError(self.failure)
                value = function()
            except Exception as raised:  # whatever it is, it belongs to the caller
                error = raised  # the name above ends with its block
                self._post(lambda: _settle(future, error=error))
            else:
                self._post(lambda: _settle(future, value))

        self._commands.put(run)
        result: T = await future
        return result

    @asynccontextmanager
    async def answers(
        self, requests: Sequence[GenerateRequest], *, stream: bool = False
    ) -> AsyncIterator[AsyncIterator[Delta]]:
        """Submit all requests or none; deltas as they come, or one per request without `stream`.

        Whatever is unfinished when the context is left is aborted and its KV is free. Raises
        `UserError` for a bad request, `OverloadedError` when the queue is full.
        """
        queue: asyncio.Queue[Delta | Exception] = asyncio.Queue()
        try:
            await self.call(lambda: self._submit(requests, stream, queue))
            yield self._deltas(queue, len(requests))
        finally:
            # Also when the wait for `_submit` was cancelled: commands are run in order.
            self._commands.put(lambda: self._abort(requests, queue))

    async def pause(self, mode: PauseMode) -> None:
        """Pause the engine; `wait` returns when the running requests are finished."""
        future = self._future()

        def run() -> None:
            self.engine.pause(mode)
            self.paused = mode
            self._drained.append(lambda: _settle(future, None))

        await self.call(run)
        await future

    async def resume(self) -> None:
        """Go on; harmless where nothing is paused."""

        def run() -> None:
            self.engine.resume()
            self.paused = None

        await self.call(run)

    def _future(self) -> asyncio.Future[Any]:
        if self.failure:
            raise EngineFailedError(self.failure)
        assert self._loop, "start the worker first"
        return self._loop.create_future()

    async def _deltas(
        self, queue: asyncio.Queue[Delta | Exception], unfinished: int
    ) -> AsyncIterator[Delta]:
        while unfinished:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            unfinished -= item.result is not None
            yield item

    # Everything below runs in the engine's thread.

    def _run(self) -> None:
        try:
            while self._run_commands():
                self._hand_out(self.engine.step())
                if self._drained and not (self.paused == "wait" and self.engine.num_running):
                    for settle in self._drained:
                        self._post(settle)
                    self._drained = []
        except Exception as error:  # the boundary: every client is told, health says so
            self._fail(f"the engine failed ({type(error).__name__}: {error}); restart the server")

    def _run_commands(self) -> bool:
        """Run what is queued, waiting for it while there is nothing to compute; False: stop."""
        block = not self._busy
        while True:
            try:
                command = self._commands.get(block=block)
            except Empty:
                return True
            if command is None:
                return False
            command()
            block = False

    @property
    def _busy(self) -> bool:
        """Whether a step would compute something."""
        if self.paused is None:
            return self.engine.num_pending > 0
        return self.paused == "wait" and self.engine.num_running > 0

    def _submit(
        self,
        requests: Sequence[GenerateRequest],
        stream: bool,
        queue: asyncio.Queue[Delta | Exception],
    ) -> None:
        if len(requests) > self.max_pending:
            raise UserError(
                f"{len(requests)} answers at once, but the server takes {self.max_pending}; "
                "ask for fewer"
            )
        if self.engine.num_pending + len(requests) > self.max_pending:
            raise OverloadedError(
                f"{self.engine.num_pending} requests are at work or waiting, which is all that "
                "the server takes; try again later",
                self._pace.retry_seconds,
            )
        for number, request in enumerate(requests):
            self.engine.submit(request)
            self._clients[request.request_id] = _Client(number, stream, queue)

    def _abort(
        self, requests: Sequence[GenerateRequest], queue: asyncio.Queue[Delta | Exception]
    ) -> None:
        for request in requests:
            client = self._clients.get(request.request_id)
            if client and client.queue is queue:
                del self._clients[request.request_id]
                self.engine.abort(request.request_id)

    def _hand_out(self, results: Sequence[GenerateResult]) -> None:
        """Post what the step added, to all clients in one go."""
        news: list[tuple[asyncio.Queue[Delta | Exception], Delta]] = []
        for row in self.engine.scheduler.running:
            client = self._clients.get(row.request.request_id)
            if client and client.stream and row.num_output > client.num_sent:
                start, client.num_sent = client.num_sent, row.num_output
                ids = tuple(row.tokens[row.num_prompt + start :])
                delta = Delta(
                    client.number, ids, tuple(row.logprobs[start:]), tuple(row.kept[start:])
                )
                news.append((client.queue, delta))
        for result in results:
            self._pace.note(time.monotonic())
            client = self._clients.pop(result.request_id, None)
            if client:
                start = client.num_sent
                ids, logprobs = result.token_ids[start:], result.logprobs[start:]
                delta = Delta(client.number, ids, logprobs, result.kept[start:], result)
                news.append((client.queue, delta))
        if news:
            self._post(lambda: _deliver(news))

    def _fail(self, reason: str) -> None:
        self.failure = reason
        error = EngineFailedError(reason)
        told = [(client.queue, error) for client in self._clients.values()]
        self._post(lambda: _deliver(told))
        for settle in self._drained:
            self._post(settle)
        while True:  # whatever is asked from now on is refused in `call`
            command = self._commands.get()
            if command is None:
                return
            command()

    def _post(self, function: Callable[[], None]) -> None:
        """Run `function` in the event loop, unless that has ended."""
        assert self._loop
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)


def _deliver(news: Sequence[tuple[asyncio.Queue[Delta | Exception], Delta | Exception]]) -> None:
    for queue, item in news:
        queue.put_nowait(item)


def _settle(future: asyncio.Future[Any], value: Any = None, error: Exception | None = None) -> None:
    """Answer a future that may have been cancelled meanwhile."""
    if future.done():
        return
    if error:
        future.set_exception(error)
    else:
        future.set_result(value)
