"""Tools on their way in and out, and an engine that dies, without sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from frontrunner.effort.ladder import default_ladder
from frontrunner.engine.engine import LocalEngine
from frontrunner.engine.server import api
from frontrunner.engine.server.prompts import Prompter
from frontrunner.engine.server.replies import Choice
from frontrunner.engine.server.worker import Delta, EngineFailedError, EngineWorker
from frontrunner.envs.chat import ChatFormat
from frontrunner.errors import UserError
from frontrunner.protocols import GenerateRequest, GenerateResult
from frontrunner.testing import byte_tokenizer, tiny_model

TOOL = {"type": "function", "function": {"name": "view", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "view", "arguments": '{"x": 1}'}}
KNOWS_TOOLS = (
    "{% if tools %}TOOLS {{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}:"
    "{{ m.content }}{% for c in m.tool_calls or [] %}CALL {{ c.function.arguments.x }}{% endfor %}"
    "<|im_end|>{% endfor %}"
)


def prompter(template: str | None = None) -> Prompter:
    tokenizer = byte_tokenizer()
    if template:
        tokenizer.chat_template = template
    return Prompter("tiny", ChatFormat(tokenizer), default_ladder(), 4096, 259)


def shown(served: Prompter, **fields: Any) -> str:
    """The context of a chat request as text."""
    body = api.parse(api.ChatBody, json.dumps(fields).encode())
    return str(served.chat.tokenizer.decode(served.conversation(body)[0].token_ids))


def history() -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]


def test_a_template_that_knows_tools_gets_them() -> None:
    text = shown(prompter(KNOWS_TOOLS), messages=history(), tools=[TOOL])
    assert text.startswith("TOOLS [") and "CALL 1" in text and "tool:done" in text


def test_for_other_templates_tools_become_text() -> None:
    text = shown(prompter(), messages=history(), tools=[TOOL], reasoning_effort="high")
    assert text.index("effort: high") < text.index('"name": "view"') < text.index("user")
    assert '<tool_call>{"name": "view", "arguments": {"x": 1}}</tool_call>' in text
    assert "<tool_response>done</tool_response>" in text


def test_tools_that_must_not_be_used_are_not_shown() -> None:
    text = shown(prompter(), messages=history()[:1], tools=[TOOL], tool_choice="none")
    assert "view" not in text


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "view"}}])
def test_a_forced_tool_is_refused(choice: Any) -> None:
    with pytest.raises(UserError, match="tool_choice"):
        shown(prompter(), messages=history()[:1], tools=[TOOL], tool_choice=choice)


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_in_the_answer_becomes_a_tool_call(stream: bool) -> None:
    chat = ChatFormat(byte_tokenizer())
    text = 'So: <tool_call>{"name": "view", "arguments": {"x": 1}}</tool_call>'
    ids = tuple(chat.answer(text))
    request = GenerateRequest("r", (1,), 99, 1.0, 0, chat.stop_token_ids)
    choice = Choice(0, request, chat, tools=True, chatting=True)
    result = GenerateResult("r", ids, (0.0,) * len(ids), 0, "stop")
    delta = Delta(0, ids, result.logprobs, (), result)
    entry = choice.json(delta, logprobs=False, stream=stream, first=True)
    message = entry["delta" if stream else "message"]
    assert entry["finish_reason"] == "tool_calls"
    assert message["content"] == "So:"
    assert message["tool_calls"][0]["function"] == {"name": "view", "arguments": '{"x": 1}'}
    assert ("index" in message["tool_calls"][0]) is stream


def test_when_the_engine_dies_everyone_is_told() -> None:
    class Broken(LocalEngine):
        def step(self) -> list[GenerateResult]:
            if self.num_running:
                raise MemoryError("no memory")
            return super().step()

    async def read(worker: EngineWorker) -> None:
        request = GenerateRequest("r", (5, 6), 9, 1.0, 0, ())
        async with worker.answers([request], stream=True) as deltas:
            async for _ in deltas:
                pass

    async def main() -> None:
        worker = EngineWorker(Broken(tiny_model(), max_batch=2, max_context=64), 4)
        worker.start()
        with pytest.raises(EngineFailedError, match="no memory"):
            await read(worker)
        with pytest.raises(EngineFailedError):
            await worker.call(lambda: None)
        await worker.stop()

    asyncio.run(asyncio.wait_for(main(), 60))
