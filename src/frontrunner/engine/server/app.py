"""The HTTP front: routes, streaming, and the one place where errors become answers.

A client that goes away cancels its handler (`handler_cancellation`), which leaves the worker's
context and so frees the request's KV. The server trusts its network: whoever reaches it can change
the weights, so it listens on this machine alone unless told otherwise.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from frontrunner.engine import weights
from frontrunner.engine.server import api
from frontrunner.engine.server.metrics import ServerMetrics, Stopwatch
from frontrunner.engine.server.prompts import Prompter
from frontrunner.engine.server.replies import Choice, Json, error, head, usage
from frontrunner.engine.server.worker import Delta, EngineFailedError, EngineWorker, OverloadedError
from frontrunner.errors import UserError
from frontrunner.protocols import GenerateRequest, GenerateResult
from frontrunner.types import dump

MAX_BODY = 8 << 20
"""Bytes of a request; a longer one is answered 413."""
CLIENT_GONE = 499
"""Status under which dropped clients are counted; nobody reads it."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Server:
    """Handlers over one worker."""

    worker: EngineWorker
    prompter: Prompter
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    _updating: asyncio.Lock = field(default_factory=asyncio.Lock)

    def application(self) -> web.Application:
        """Routes; the worker starts and stops with the application."""
        app = web.Application(middlewares=[self._answer_errors], client_max_size=MAX_BODY)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/completions", self.completions),
                web.get("/v1/models", self.models),
                web.get("/v1/models/{name}", self.models),
                web.post("/generate", self.generate),
                web.post("/pause", self.pause),
                web.post("/resume", self.resume),
                web.post("/update_weights", self.update_weights),
                web.get("/health", self.health),
                web.get("/metrics", self.prometheus),
            ]
        )

        async def life(_: web.Application) -> AsyncIterator[None]:
            self.worker.start()
            yield
            await self.worker.stop()

        app.cleanup_ctx.append(life)
        return app

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = api.parse(api.ChatBody, await request.read())
        asked = self.prompter.conversation(body)
        tools = bool(body.tools) and body.tool_choice != "none"
        return await self._complete(request, body, asked, "chat.completion", tools=tools)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = api.parse(api.CompletionBody, await request.read())
        asked = self.prompter.completion(body)
        return await self._complete(request, body, asked, "text_completion", tools=False)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Tokens in, tokens out: a `GenerateResult` as JSON, streamed or whole."""
        body = api.parse(api.GenerateBody, await request.read())
        asked = self.prompter.generate(body)
        watch = Stopwatch(self.metrics)
        async with self.worker.answers(asked, stream=bool(body.stream)) as deltas:
            if not body.stream:
                result = (await anext(deltas)).result
                assert result
                self._count(watch, asked[0], result)
                return web.Response(text=dump(result), content_type="application/json")
            response = await _event_stream(request)
            async for delta in deltas:
                watch.token()
                event: Json = {"token_ids": delta.token_ids, "logprobs": delta.logprobs}
                event["kept"] = delta.kept if any(delta.kept) else ()
                if delta.result:
                    self._count(watch, asked[0], delta.result)
                    event["result"] = json.loads(dump(delta.result))
                await _send(response, event)
            return await _end(response)

    async def models(self, request: web.Request) -> web.StreamResponse:
        model = {
            "id": self.prompter.name,
            "object": "model",
            "created": 0,
            "owned_by": "frontrunner",
            "max_model_len": self.prompter.max_context,
        }
        name = request.match_info.get("name")
        if name not in (None, self.prompter.name):
            message = f"{name!r} is not served here; it is {self.prompter.name!r}"
            return web.json_response(error(message, code="model_not_found"), status=404)
        return web.json_response(model if name else {"object": "list", "data": [model]})

    async def pause(self, request: web.Request) -> web.StreamResponse:
        body = api.parse(api.PauseBody, await request.read())
        await self.worker.pause(body.mode)
        return web.json_response(self._state())

    async def resume(self, request: web.Request) -> web.StreamResponse:
        await self.worker.resume()
        return web.json_response(self._state())

    async def update_weights(self, request: web.Request) -> web.StreamResponse:
        """New weights in one go: read, pause, check, load, resume. After a refusal nothing has
        changed. A pause by the client is used and stays."""
        body = api.parse(api.UpdateBody, await request.read())
        engine = self.worker.engine
        async with self._updating:
            own = engine.model.state_dict()
            state = await asyncio.to_thread(weights.read, Path(body.path), own)
            mine = self.worker.paused is None
            if not mine and body.mode not in (None, self.worker.paused):
                raise UserError(f"mode: the server is paused already, by {self.worker.paused!r}")
            version = engine.version + 1 if body.version is None else body.version
            try:
                if mine:
                    await self.worker.pause(body.mode or "keep")
                await self.worker.call(lambda: engine.load_weights(state, version, body.checksum))
            except (ValueError, RuntimeError) as refused:
                raise UserError(str(refused)) from None
            finally:
                if mine:
                    await asyncio.shield(self.worker.resume())
        return web.json_response(self._state())

    async def health(self, request: web.Request) -> web.StreamResponse:
        status = 503 if self.worker.failure else 200
        return web.json_response(self._state(), status=status)

    async def prometheus(self, request: web.Request) -> web.StreamResponse:
        values = await self.worker.call(self.worker.engine.metrics)
        text = self.metrics.text({**values, "engine/version": self.worker.engine.version})
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4"})

    def _state(self) -> Json:
        engine = self.worker.engine
        return {
            "status": self.worker.failure or "ok",
            "version": engine.version,
            "paused": self.worker.paused,
            "running": engine.num_running,
            "pending": engine.num_pending,
        }

    async def _complete(
        self,
        request: web.Request,
        body: api.OpenAIBody,
        asked: Sequence[GenerateRequest],
        kind: str,
        *,
        tools: bool,
    ) -> web.StreamResponse:
        chatting = kind.startswith("chat")
        logprobs = bool(body.logprobs) if chatting else body.logprobs is not None  # type: ignore[attr-defined]
        choices = [
            Choice(n, a, self.prompter.chat, tools=tools, chatting=chatting)
            for n, a in enumerate(asked)
        ]
        common, watch = head(kind, self.prompter.name), Stopwatch(self.metrics)
        async with self.worker.answers(asked, stream=bool(body.stream)) as deltas:
            if body.stream:
                common["object"] = "chat.completion.chunk" if chatting else kind
                chunks = self._chunks(choices, deltas, watch, logprobs=logprobs)
                return await self._stream(request, body, common, choices, chunks)
            entries: list[Json] = [{}] * len(asked)
            async for delta in deltas:
                assert delta.result
                choice = choices[delta.number]
                entries[delta.number] = choice.json(
                    delta, logprobs=logprobs, stream=False, first=True
                )
                self._count(watch, choice.request, delta.result)
        used = usage(choices, body.n or 1)
        return web.json_response({**common, "choices": entries, "usage": used})

    async def _chunks(
        self,
        choices: list[Choice],
        deltas: AsyncIterator[Delta],
        watch: Stopwatch,
        *,
        logprobs: bool,
    ) -> AsyncIterator[Json]:
        """Entries of `choices` that have something to say."""
        started: set[int] = set()
        async for delta in deltas:
            watch.token()
            choice, first = choices[delta.number], delta.number not in started
            entry = choice.json(delta, logprobs=logprobs, stream=True, first=first)
            if delta.result:
                self._count(watch, choice.request, delta.result)
            text = entry.get("text") or entry.get("delta", {}).get("content")
            if text or logprobs or delta.result or first:
                started.add(delta.number)
                yield entry

    async def _stream(
        self,
        request: web.Request,
        body: api.OpenAIBody,
        common: Json,
        choices: list[Choice],
        chunks: AsyncIterator[Json],
    ) -> web.StreamResponse:
        response = await _event_stream(request)
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        extra: Json = {"usage": None} if with_usage else {}
        async for entry in chunks:
            await _send(response, {**common, "choices": [entry], **extra})
        if with_usage:
            used = usage(choices, body.n or 1)
            await _send(response, {**common, "choices": [], "usage": used})
        return await _end(response)

    def _count(self, watch: Stopwatch, asked: GenerateRequest, result: GenerateResult) -> None:
        watch.finished(len(asked.token_ids), result.num_cached, len(result.token_ids))

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The boundary: every failure is an answer with a sentence."""
        try:
            response = await handler(request)
        except UserError as refused:
            response = web.json_response(error(str(refused)), status=400)
        except OverloadedError as full:
            response = web.json_response(error(str(full), "overloaded", "overloaded"), status=429)
            response.headers["Retry-After"] = str(full.retry_seconds)
        except EngineFailedError as failed:
            response = web.json_response(error(str(failed), "server_error"), status=503)
        except web.HTTPException as refused:  # no such path, wrong method, body too large
            response = web.json_response(error(refused.reason), status=refused.status)
        except ConnectionResetError:  # the client went away while it was written to
            response = web.Response(status=CLIENT_GONE, reason="client gone")
        path = request.match_info.route.resource
        self.metrics.responses.labels(path.canonical if path else "other", response.status).inc()
        return response


async def _event_stream(request: web.Request) -> web.StreamResponse:
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    return response


async def _send(response: web.StreamResponse, event: Json) -> None:
    await response.write(f"data: {json.dumps(event)}\n\n".encode())


async def _end(response: web.StreamResponse) -> web.StreamResponse:
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def serve(server: Server, host: str, port: int, ready: Callable[[str], Any]) -> None:
    """Answer until interrupted; `ready` gets the address once requests are taken."""
    asyncio.run(_serve(server, host, port, ready))


async def _serve(server: Server, host: str, port: int, ready: Callable[[str], Any]) -> None:
    import signal

    runner = web.AppRunner(
        server.application(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as failed:
            raise UserError(f"cannot listen on {host}:{port}: {failed.strerror}") from None
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        bound = runner.addresses[0]
        ready(f"http://{bound[0]}:{bound[1]}")
        await stop.wait()
    finally:
        await runner.cleanup()
