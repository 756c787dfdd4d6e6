"""From a request of the OpenAI interface to requests for the engine."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frontrunner.effort.ladder import Ladder
from frontrunner.engine.server.api import (
    ChatBody,
    CompletionBody,
    GenerateBody,
    Message,
    OpenAIBody,
    Sampling,
    Tool,
)
from frontrunner.engine.server.text import TOOL_CLOSE, TOOL_OPEN
from frontrunner.envs.chat import ChatFormat
from frontrunner.errors import UserError
from frontrunner.protocols import GenerateRequest

SEED_STRIDE = 1_000_003
TOOL_HELP = (
    "You can call the functions below. Write each call as one line "
    f'{TOOL_OPEN}{{"name": NAME, "arguments": {{...}}}}{TOOL_CLOSE} '
    "and end your turn; the results come in the next message."
)


@dataclass(frozen=True, slots=True)
class Prompter:
    """The served model as requests see it."""

    name: str
    chat: ChatFormat
    ladder: Ladder
    max_context: int
    vocab_size: int

    def generate(self, body: GenerateBody) -> list[GenerateRequest]:
        """One request, tokens as they came."""
        stops = tuple(body.stop_token_ids)
        return [self._request(body, body.token_ids, body.max_new_tokens, stops, 0)]

    def completion(self, body: CompletionBody) -> list[GenerateRequest]:
        """`n` requests per prompt, prompt by prompt."""
        self._check_model(body)
        prompts: list[list[int]] = []
        many = isinstance(body.prompt, list) and not all(isinstance(p, int) for p in body.prompt)
        for prompt in body.prompt if many else [body.prompt]:
            prompts.append(self._encode(prompt) if isinstance(prompt, str) else list(prompt))  # type: ignore[arg-type]
        eos = self.chat.tokenizer.eos_token_id
        return self._choices(body, prompts, () if eos is None else (eos,), body.max_tokens or 16)

    def conversation(self, body: ChatBody) -> list[GenerateRequest]:
        """`n` requests over the same context."""
        self._check_model(body)
        messages = self._messages(body)
        tools = [_described(t) for t in body.tools or [] if body.tool_choice != "none"]
        if tools and not self.chat.shows_tools():
            _put_first(messages, "\n".join([TOOL_HELP, *map(json.dumps, tools)]), after=True)
        ids = self.chat.conversation(messages, tools or None)
        limit = body.max_completion_tokens or body.max_tokens
        limit = limit or max(1, self.max_context - len(ids))
        return self._choices(body, [ids], self.chat.stop_token_ids, limit)

    def _messages(self, body: ChatBody) -> list[dict[str, Any]]:
        """Messages for the template; the effort's wording opens the system message, as in
        training."""
        plain = not self.chat.shows_tools()
        messages = [_plain(m) if plain else _full(m) for m in body.messages]
        if body.reasoning_effort is not None:
            if body.reasoning_effort not in self.ladder:
                levels = ", ".join(self.ladder.names)
                raise UserError(
                    f"reasoning_effort: no level {body.reasoning_effort!r}; this model has {levels}"
                )
            _put_first(messages, self.ladder[body.reasoning_effort].prompt)
        return messages

    def _choices(
        self, body: OpenAIBody, prompts: Sequence[list[int]], stops: tuple[int, ...], limit: int
    ) -> list[GenerateRequest]:
        return [
            self._request(body, ids, limit, stops, number)
            for ids in prompts
            for number in range(body.n or 1)
        ]

    def _request(
        self, body: Sampling, ids: list[int], limit: int, stops: tuple[int, ...], number: int
    ) -> GenerateRequest:
        odd = next((i for i in (*ids, *stops) if not 0 <= i < self.vocab_size), None)
        if odd is not None:
            raise UserError(f"token {odd} is not in the vocabulary of {self.vocab_size} tokens")
        seed = secrets.randbits(62) if body.seed is None else body.seed + number * SEED_STRIDE
        return GenerateRequest(
            request_id=uuid.uuid4().hex,
            token_ids=tuple(ids),
            max_new_tokens=limit,
            temperature=1.0 if body.temperature is None else body.temperature,
            seed=seed,
            stop_token_ids=stops,
            stop_strings=tuple(body.stop),
            top_k=max(0, body.top_k or 0),
            top_p=1.0 if body.top_p is None else body.top_p,
            min_p=body.min_p or 0.0,
        )

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.chat.tokenizer.encode(text)
        return ids

    def _check_model(self, body: OpenAIBody) -> None:
        if body.model not in (None, self.name):
            raise UserError(f"model: {body.model!r} is not served here; it is {self.name!r}")


def _described(tool: Tool) -> dict[str, Any]:
    function = tool.function.model_dump(exclude_none=True, exclude={"strict"})
    return {"type": "function", "function": {"description": "", "parameters": {}, **function}}


def _full(message: Message) -> dict[str, Any]:
    """For templates that know tools: calls as objects, their arguments as JSON values."""
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": message.text}
    if message.tool_calls:
        plain["tool_calls"] = [
            {"type": "function", "id": call.id, "function": _called(call.function)}
            for call in message.tool_calls
        ]
    for key in ("tool_call_id", "name"):
        if value := getattr(message, key):
            plain[key] = value
    return plain


def _called(function: Any) -> dict[str, Any]:
    try:
        arguments = json.loads(function.arguments or "{}")
    except (ValueError, RecursionError):
        raise UserError(
            f"messages: the arguments of a call of {function.name!r} are not valid JSON"
        ) from None
    return {"name": function.name, "arguments": arguments}


def _plain(message: Message) -> dict[str, Any]:
    """For all other templates: calls as the model wrote them, results as user messages."""
    text = message.text
    if message.role == "tool":
        return {"role": "user", "content": f"<tool_response>{text}</tool_response>"}
    for call in message.tool_calls or []:
        text += f"{TOOL_OPEN}{json.dumps(_called(call.function))}{TOOL_CLOSE}"
    return {"role": "system" if message.role == "developer" else message.role, "content": text}


def _put_first(messages: list[dict[str, Any]], text: str, *, after: bool = False) -> None:
    """Add a text to the system message, before or after what is there."""
    if messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": text})
        return
    old = messages[0]["content"]
    joined = f"{old}\n\n{text}" if after else f"{text}\n\n{old}"
    messages[0] = {**messages[0], "content": joined}
