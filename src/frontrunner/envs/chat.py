"""From messages to tokens, once: what was sampled is never re-tokenised.

A conversation is a growing token list. The opening (system and user message) is encoded with the
model's own chat template; after each sampled turn only the text *between* two model turns is
encoded and appended. Works with any tokenizer that has a chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from frontrunner.errors import UserError

_ANSWER = "ANSWERMARK"
_OBSERVATION = "OBSERVATIONMARK"
_TOOL = "TOOLMARK"


class ChatFormat:
    """Opening and continuation of a conversation in one model's chat template."""

    def __init__(self, tokenizer: Any) -> None:
        if getattr(tokenizer, "chat_template", None) is None:
            raise UserError(
                f"{tokenizer.name_or_path}: the tokenizer has no chat template; "
                "use an instruction-tuned model or add a chat_template to its tokenizer_config.json"
            )
        self.tokenizer = tokenizer
        self.stop_text, self.stop_token_ids = self._stop()
        text = tokenizer.apply_chat_template(
            [
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": _ANSWER},
                {"role": "user", "content": _OBSERVATION},
            ],
            tokenize=False,
            add_generation_prompt=True,
        )
        tail = text[text.index(_ANSWER) + len(_ANSWER) :]
        if tail.count(_OBSERVATION) != 1:
            raise UserError(
                f"{tokenizer.name_or_path}: its chat template does not show every message once; "
                "multi-turn rollouts need one that does"
            )
        self._before, self._after = tail.split(_OBSERVATION)
        self._closed = self._before.removeprefix(self.stop_text)

    def _stop(self) -> tuple[str, tuple[int, ...]]:
        """The end-of-turn token: what the template writes after an answer, else the EOS token."""
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": "u"}, {"role": "assistant", "content": _ANSWER}],
            tokenize=False,
        )
        tail = text[text.index(_ANSWER) + len(_ANSWER) :]
        ids = self._encode(tail)
        eos = self.tokenizer.eos_token_id
        if (
            ids
            and self.tokenizer.convert_ids_to_tokens(ids[0]) in self.tokenizer.all_special_tokens
        ):
            stop = ids[0]
        else:
            stop = eos
        stops = tuple(dict.fromkeys(i for i in (stop, eos) if i is not None))
        return self.tokenizer.convert_ids_to_tokens(stop), stops

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def opening(self, system: str, user: str) -> list[int]:
        """Tokens up to where the first answer begins."""
        return self.conversation(
            [{"role": "system", "content": system}, {"role": "user", "content": user}]
        )

    def conversation(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> list[int]:
        """Tokens of any conversation up to where the next answer begins.

        Where a template has no system role, the system message opens the user's. Raises `UserError`
        for messages that the template refuses.
        """
        system = messages[0]["content"] if messages[0]["role"] == "system" else ""
        try:
            text = self._render(messages, tools)
            if system and system not in text:
                text = self._render(_joined(messages), tools)
        except TemplateError as first:
            try:
                text = self._render(_joined(messages), tools)
            except TemplateError:
                raise UserError(f"the model's chat template refuses this: {first}") from None
        return self._encode(text)

    def shows_tools(self) -> bool:
        """Whether the template has a place for the descriptions of tools."""
        parameters = {"type": "object", "properties": {}}
        function = {"name": _TOOL, "description": _TOOL, "parameters": parameters}
        tools = [{"type": "function", "function": function}]
        return _TOOL in self._render([{"role": "user", "content": "u"}], tools)

    def _render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> str:
        text: str = self.tokenizer.apply_chat_template(
            list(messages), tools=tools, tokenize=False, add_generation_prompt=True
        )
        return text

    def continuation(self, observation: str, *, closed: bool) -> list[int]:
        """Tokens between a sampled answer and the next one.

        `closed` says whether the answer ended with the stop token; an answer cut by length is
        closed here.
        """
        before = self._closed if closed else self._before
        return self._encode(before + observation + self._after)

    def answer(self, text: str) -> list[int]:
        """Tokens of a scripted answer with its stop token (supervised fine-tuning)."""
        return [*self._encode(text), self.stop_token_ids[0]]

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Text of an answer without special tokens."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text


def _joined(messages: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The same conversation without a system role: its text opens the first user message."""
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return messages
    text = f"{messages[0]['content']}\n\n{messages[1]['content']}"
    return [{**messages[1], "content": text}, *messages[2:]]
