"""Random sizes, streams, drops, kills of clients, pauses and weight updates: nothing leaks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from pathlib import Path

import aiohttp
import pytest
from server_process import metric, send, serving, write_model


async def one_client(address: str, rng: random.Random, outcomes: list[str]) -> None:
    """One request that may be dropped at any time."""
    body = {
        "token_ids": [rng.randrange(3, 259) for _ in range(rng.randint(1, 150))],
        "max_new_tokens": rng.randint(1, 100),
        "stream": rng.random() < 0.5,
        "top_k": rng.choice([0, 5]),
    }
    patience = rng.choice([0.0, 0.02, 0.1, 0.5, 60.0, 60.0])
    try:
        async with (
            asyncio.timeout(patience),
            aiohttp.ClientSession() as session,
            session.post(address + "/generate", json=body) as response,
        ):
            await response.read()
            outcomes.append(str(response.status))
    except TimeoutError:
        outcomes.append("dropped")


async def one_killed_process(address: str) -> None:
    """A client that asks for a long answer and is killed by the system."""
    body = json.dumps({"token_ids": [5] * 50, "max_new_tokens": 200})
    code = f"import urllib.request as u; u.urlopen(u.Request({address!r} + '/generate', b'{body}'))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    await asyncio.sleep(0.4)
    with contextlib.suppress(ProcessLookupError):  # it may have had its answer
        process.kill()
    await process.wait()


async def storm(address: str, models: list[Path], seed: int, rounds: int) -> list[str]:
    rng = random.Random(seed)
    outcomes: list[str] = []
    for number in range(rounds):
        clients = [one_client(address, rng, outcomes) for _ in range(rng.randint(4, 12))]
        if number % 4 == 0:
            clients.append(one_killed_process(address))
        tasks = [asyncio.create_task(c) for c in clients]
        await asyncio.sleep(rng.random() * 0.2)
        mode = rng.choice(["abort", "wait", "keep", "recompute"])
        update = {"path": str(models[number % 2]), "mode": mode}
        status, answer = await asyncio.to_thread(send, address, "/update_weights", update)
        assert status == 200, answer
        await asyncio.gather(*tasks)
    return outcomes


def soak(folder: Path, rounds: int) -> None:
    models = [write_model(folder / name, seed=n) for n, name in enumerate(("a", "b"))]
    with serving(models[0], "--max-queue", "3") as address:
        outcomes = asyncio.run(storm(address, models, seed=rounds, rounds=rounds))
        assert {"200", "dropped"} <= set(outcomes) <= {"200", "429", "dropped"}
        while send(address, "/health")[1]["pending"]:
            pass
        free = metric(address, "frontrunner_engine_kv_free_pages")
        assert free + metric(address, "frontrunner_engine_kv_cached_pages") == 8
        # What remains at hand belongs to nobody: one more update leaves every page free.
        send(address, "/update_weights", {"path": str(models[0])})
        assert metric(address, "frontrunner_engine_kv_free_pages") == 8
        body = {"token_ids": [5] * 200, "max_new_tokens": 50, "temperature": 0}
        assert send(address, "/generate", body)[1]["version"] == rounds + 1


def test_a_short_storm_leaks_nothing(tmp_path: Path) -> None:
    soak(tmp_path, rounds=4)


@pytest.mark.slow
def test_a_long_storm_leaks_nothing(tmp_path: Path) -> None:
    soak(tmp_path, rounds=120)
