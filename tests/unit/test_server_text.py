"""Text of an answer as it streams: whole characters, stop strings, tool calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrunner.engine.server.text import TextStream, ToolCall, split_tool_calls
from frontrunner.testing import byte_tokenizer

TOKENIZER = byte_tokenizer()


def decode(ids: object) -> str:
    return str(TOKENIZER.decode(list(ids), skip_special_tokens=True))  # type: ignore[call-overload]


def streamed(ids: list[int], stop: tuple[str, ...] = (), hold: str = "") -> list[str]:
    stream = TextStream(decode, stop, hold)
    return [*(stream.add([i]) for i in ids), stream.finish()]


@given(st.text(max_size=30))
def test_pieces_add_up_to_the_text(text: str) -> None:
    assert "".join(streamed(TOKENIZER.encode(text))) == text


@given(st.lists(st.integers(3, 258), max_size=30))
def test_bytes_that_are_no_text_add_up_too(ids: list[int]) -> None:
    assert "".join(streamed(ids)) == decode(ids)


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_first_stop_string(text: str, stops: list[str]) -> None:
    ids = TOKENIZER.encode(text)
    stop = next(
        (n for n in range(len(text) + 1) if any(text[:n].endswith(s) for s in stops)), len(text)
    )
    shown = text[:stop]
    found = [shown.find(s) for s in stops if s in shown]
    expected = shown[: min(found)] if found else shown
    assert "".join(streamed(ids[:stop], tuple(stops))) == expected


def test_nothing_of_a_tool_call_is_shown_before_the_end() -> None:
    text = 'Look: <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    *pieces, rest = streamed(TOKENIZER.encode(text), hold="<tool_call>")
    assert "".join(pieces) == "Look: "
    assert split_tool_calls("".join(pieces) + rest) == ("Look:", [ToolCall("f", '{"x": 1}')])


@pytest.mark.parametrize("body", ["no json", "[]", '{"arguments": {}}', '{"name": 3}', "[" * 9999])
def test_what_is_no_call_stays_text(body: str) -> None:
    text = f"a <tool_call>{body}</tool_call> b"
    assert split_tool_calls(text) == (text, [])
