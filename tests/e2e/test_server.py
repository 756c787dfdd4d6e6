"""`frontrunner serve` in a process of its own, over a real socket, by the real `openai` client."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from server_process import metric, send, serving, write_model

from frontrunner.engine.engine import LocalEngine
from frontrunner.engine.weights import checksum
from frontrunner.envs.chat import ChatFormat
from frontrunner.protocols import GenerateRequest
from frontrunner.testing import byte_tokenizer, tiny_model

CHAT = ChatFormat(byte_tokenizer())
LOW = "Reasoning effort: low. Be quick: make the likely fix and submit."
Message = dict[str, str]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(write_model(tmp_path_factory.mktemp("models") / "tiny"), "--max-queue", "2") as at:
        yield at


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0) as made:
        yield made


def expected(ids: list[int], num: int, **how: Any) -> tuple[int, ...]:
    """What an engine without a server answers."""
    engine = LocalEngine(tiny_model(), max_batch=1, max_context=256)
    settings = {"temperature": 0.0, "seed": 0, "stop_token_ids": CHAT.stop_token_ids, **how}
    engine.submit(GenerateRequest("x", tuple(ids), num, **settings))
    while True:
        for result in engine.step():
            return result.token_ids


def settled(address: str) -> dict[str, Any]:
    """Health once nothing is at work any more."""
    for _ in range(200):
        state = send(address, "/health")[1]
        if not state["pending"]:
            break
        time.sleep(0.05)
    return dict(state)


def test_chat_completion(client: Any) -> None:
    messages: list[Message] = [{"role": "user", "content": "hello"}]
    got = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=12, temperature=0, logprobs=True
    )
    ids = CHAT.conversation(messages)
    tokens = expected(ids, 12)
    assert got.choices[0].message.content == CHAT.decode(tokens)
    assert got.usage.prompt_tokens == len(ids)
    assert got.usage.completion_tokens == len(tokens) == len(got.choices[0].logprobs.content)


def test_the_effort_is_the_wording_of_the_ladder(client: Any) -> None:
    ask = {"model": "tiny", "max_tokens": 8, "temperature": 0}
    got = client.chat.completions.create(
        messages=[{"role": "user", "content": "hi"}], reasoning_effort="low", **ask
    )
    ids = CHAT.opening(LOW, "hi")
    assert got.usage.prompt_tokens == len(ids)
    assert got.choices[0].message.content == CHAT.decode(expected(ids, 8))
    with pytest.raises(openai.BadRequestError, match="low, medium, high"):
        client.chat.completions.create(
            messages=[{"role": "user", "content": "hi"}], reasoning_effort="none", **ask
        )


def test_a_stream_says_the_same_as_a_whole_answer(client: Any) -> None:
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "go"}], "max_tokens": 20}
    ask |= {"seed": 7, "n": 2, "stop": ["zq"]}
    whole = client.chat.completions.create(**ask)
    texts, used = ["", ""], None
    for chunk in client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, **ask
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
        used = chunk.usage
    assert texts == [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1]
    assert used.completion_tokens == whole.usage.completion_tokens


def test_the_next_turn_finds_its_prefix(client: Any) -> None:
    messages = [{"role": "user", "content": "a context of some length, to be found again"}]
    ask = {"model": "tiny", "max_tokens": 4, "temperature": 0}
    client.chat.completions.create(messages=messages, **ask)
    again = client.chat.completions.create(messages=messages, **ask)
    assert again.usage.prompt_tokens_details.cached_tokens >= 48


def test_text_completion_of_text_and_of_tokens(client: Any) -> None:
    ids = CHAT.tokenizer.encode("def f(")
    ask = {"model": "tiny", "max_tokens": 6, "temperature": 0, "logprobs": 0}
    got = client.completions.create(prompt=["def f(", "x"], **ask)
    same = client.completions.create(prompt=ids, **ask)
    text = CHAT.decode(expected(ids, 6))
    assert [c.index for c in got.choices] == [0, 1]
    assert got.choices[0].text == same.choices[0].text == text
    assert len(same.choices[0].logprobs.token_logprobs) == same.usage.completion_tokens


def test_models(client: Any) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_tokens_in_tokens_out_with_kept_sets(address: str) -> None:
    ask = {"token_ids": [5, 6, 7], "max_new_tokens": 9, "top_k": 3, "seed": 4}
    status, got = send(address, "/generate", ask)
    assert status == 200
    assert tuple(got["token_ids"]) == expected([5, 6, 7], 9, temperature=1.0, seed=4, top_k=3)[:9]
    assert len(got["logprobs"]) == len(got["kept"]) == len(got["token_ids"])
    assert all(t in kept for t, kept in zip(got["token_ids"], got["kept"], strict=True))
    events = send(address, "/generate", {**ask, "stream": True})[1].split("\n\n")
    parts = [json.loads(e.removeprefix("data: ")) for e in events if e and "[DONE]" not in e]
    assert [t for p in parts for t in p["token_ids"]] == got["token_ids"]
    assert parts[-1]["result"]["kept"] == got["kept"]


BAD = [
    ("/generate", b"{", "not valid JSON"),
    ("/generate", b"[]", "object"),
    ("/generate", {"token_ids": [1]}, "max_new_tokens: the field is missing"),
    ("/generate", {"token_ids": [999], "max_new_tokens": 1}, "vocabulary"),
    ("/generate", {"token_ids": [-1], "max_new_tokens": 1}, "vocabulary"),
    ("/generate", {"token_ids": [1], "max_new_tokens": 10**6}, "256"),
    ("/generate", {"token_ids": [1], "max_new_tokens": 1, "temperature": 1e-9}, "temperature"),
    ("/generate", {"token_ids": [1], "max_new_tokens": 1, "temperatur": 1}, "does not know"),
    ("/generate", b'{"token_ids": [1], "max_new_tokens": 1, "top_p": NaN}', "top_p"),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 3}]}, "content"),
    ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "JSON"),
    ("/v1/completions", {"prompt": "x", "best_of": 3}, "best_of"),
    ("/v1/completions", {"prompt": "x", "model": "gpt"}, "tiny"),
    ("/v1/completions", {"prompt": "x", "n": 99}, "ask for fewer"),
    ("/v1/completions", {"prompt": ""}, "at least one context token"),
    ("/pause", {"mode": "nap"}, "mode"),
    ("/update_weights", {"path": "nowhere"}, "no .safetensors"),
]


@pytest.mark.parametrize(("path", "body", "words"), BAD, ids=range(len(BAD)))
def test_malformed_input_is_answered_with_a_sentence(
    address: str, path: str, body: Any, words: str
) -> None:
    status, answer = send(address, path, body)
    assert status == 400
    assert words in answer["error"]["message"]
    assert settled(address)["status"] == "ok"


def test_other_refusals(address: str) -> None:
    assert send(address, "/nowhere")[0] == 404
    assert send(address, "/generate")[0] == 405
    assert send(address, "/generate", b" " * (9 << 20))[0] == 413


def test_a_dropped_client_frees_its_kv(address: str) -> None:
    host, port = address.removeprefix("http://").split(":")
    for stream in (True, False):
        send(address, "/pause", {"mode": "keep"})
        body = {"token_ids": [9] * 20, "max_new_tokens": 200, "stream": stream}
        data = json.dumps(body).encode()
        with socket.create_connection((host, int(port))) as connection:
            top = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
            connection.sendall(top.encode() + data)
            while not send(address, "/health")[1]["pending"]:
                time.sleep(0.02)
        assert settled(address)["pending"] == 0  # although the engine is paused
        send(address, "/resume", {})
    free = metric(address, "frontrunner_engine_kv_free_pages")
    assert free + metric(address, "frontrunner_engine_kv_cached_pages") == 8


def test_overload_is_answered_429_with_a_time(address: str, client: Any) -> None:
    send(address, "/pause", {"mode": "keep"})
    body = {"token_ids": [3], "max_new_tokens": 1}
    waiting = [threading.Thread(target=send, args=(address, "/generate", body)) for _ in range(6)]
    for thread in waiting:
        thread.start()
    while send(address, "/health")[1]["pending"] < 6:
        time.sleep(0.02)
    with pytest.raises(openai.RateLimitError) as full:
        client.completions.create(model="tiny", prompt="x", max_tokens=1)
    assert int(full.value.response.headers["Retry-After"]) >= 1
    send(address, "/resume", {})
    for thread in waiting:
        thread.join(60)
    assert settled(address)["pending"] == 0


def test_weights_are_checked_and_then_change(tmp_path: Path) -> None:
    new = write_model(tmp_path / "new", seed=1)
    other = tmp_path / "other"
    tiny_model(hidden_size=64).save_pretrained(other)
    with serving(write_model(tmp_path / "tiny")) as address:
        ask = {"token_ids": [4, 5, 6] * 10, "max_new_tokens": 8, "temperature": 0}
        old = send(address, "/generate", ask)[1]
        status, refused = send(address, "/update_weights", {"path": str(other)})
        assert (status, send(address, "/generate", ask)[1]["token_ids"]) == (400, old["token_ids"])
        assert "shape" in refused["error"]["message"]
        wrong = {"path": str(new), "checksum": "0"}
        assert "checksum" in send(address, "/update_weights", wrong)[1]["error"]["message"]
        right = {"path": str(new), "version": 5, "mode": "wait"}
        right["checksum"] = checksum(tiny_model(seed=1).state_dict())
        assert send(address, "/update_weights", right)[1]["version"] == 5
        got = send(address, "/generate", ask)[1]
        assert got["version"] == 5 and got["num_cached"] == 0
        engine = LocalEngine(tiny_model(seed=1), max_batch=1, max_context=256)
        engine.submit(GenerateRequest("x", (4, 5, 6) * 10, 8, 0.0, 0, ()))
        results = []
        while not results:
            results = engine.step()
        assert tuple(got["token_ids"]) == results[0].token_ids
