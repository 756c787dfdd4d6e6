"""Answers in the shapes of the OpenAI interface, whole or in chunks.

One `Choice` per answer turns what the engine adds into text; text and chat completions differ only
in how they wrap it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from frontrunner.engine.server.text import (
    TOOL_OPEN,
    UNFINISHED,
    TextStream,
    split_tool_calls,
)
from frontrunner.engine.server.worker import Delta
from frontrunner.envs.chat import ChatFormat
from frontrunner.protocols import GenerateRequest, GenerateResult

Json = dict[str, Any]


class Choice:
    """One answer on its way to the client."""

    def __init__(
        self, index: int, request: GenerateRequest, chat: ChatFormat, *, tools: bool, chatting: bool
    ) -> None:
        self.index, self.request, self.chat = index, request, chat
        self.tools, self.chatting = tools, chatting
        self.result: GenerateResult | None = None
        hold = TOOL_OPEN if tools else ""
        self._text = TextStream(lambda ids: chat.decode(tuple(ids)), request.stop_strings, hold)
        self._offset = 0

    def take(self, delta: Delta) -> tuple[str, list[Json], str | None]:
        """New text, tool calls and the reason of the end that a delta brings."""
        ids = delta.token_ids
        if delta.result is None:
            return self._text.add(ids), [], None
        self.result = delta.result
        if ids and ids[-1] in self.request.stop_token_ids:
            ids = ids[:-1]
        text = self._text.add(ids) + self._text.finish()
        if not self.tools:
            return text, [], self.result.finish
        content, calls = split_tool_calls(text)
        named = [
            {
                "index": number,
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(calls)
        ]
        return content, named, "tool_calls" if calls else self.result.finish

    def logprobs(self, delta: Delta) -> Json:
        """Of all tokens sampled, the stop token included."""
        tokens = [self.chat.tokenizer.decode([i]) for i in delta.token_ids]
        if self.chatting:
            entries = [
                {
                    "token": token,
                    "logprob": logprob,
                    "bytes": None if UNFINISHED in token else list(token.encode()),
                    "top_logprobs": [],
                }
                for token, logprob in zip(tokens, delta.logprobs, strict=True)
            ]
            return {"content": entries, "refusal": None}
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": list(delta.logprobs),
            "top_logprobs": None,
            "text_offset": offsets,
        }

    def json(self, delta: Delta, *, logprobs: bool, stream: bool, first: bool) -> Json:
        """A delta as an entry of `choices`."""
        text, calls, finish = self.take(delta)
        entry: Json = {"index": self.index, "finish_reason": finish}
        entry["logprobs"] = self.logprobs(delta) if logprobs else None
        if not self.chatting:
            return {**entry, "text": text}
        message: Json = {"role": "assistant"} if first or not stream else {}
        if text or not calls:
            message["content"] = text
        if calls:
            drop = () if stream else ("index",)
            message["tool_calls"] = [
                {k: v for k, v in call.items() if k not in drop} for call in calls
            ]
            message.setdefault("content", None)
        return {**entry, "delta" if stream else "message": message}


def head(kind: str, model: str) -> Json:
    """What every chunk of an answer has in common."""
    prefix = "chatcmpl" if kind.startswith("chat") else "cmpl"
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def usage(choices: Sequence[Choice], num_choices: int) -> Json:
    """Tokens of all answers; a prompt with several answers counts once."""
    results = [c.result for c in choices if c.result]
    prompts = choices[::num_choices]
    prompt = sum(len(c.request.token_ids) for c in prompts)
    output = sum(len(r.token_ids) for r in results)
    cached = sum(c.result.num_cached for c in prompts if c.result)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def error(message: str, kind: str = "invalid_request_error", code: str | None = None) -> Json:
    """The body of every refusal."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
