"""What the prefill delayer is worth: on this machine, and planned for another one.

    python benchmarks/bench_prefill_delayer.py [--runs 5] [--concurrency 48]

First the price of a pass is measured (`CostProfile`), then the same agents are served with and
without the delayer, by the real engine in real time and by the simulation with that price. Passes
hold prompts or decode, not both (`mixed` False): that is where prefills interrupt decodes. Mixed
passes, the engine's default, are measured beside them. The curve gives throughput and time to first
token for several limits of patience. Last, the simulation alone: prices of a large model on a GPU,
by concurrency. Writes `results/prefill_delayer.json`.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from record import summary, write

from frontrunner.engine.engine import LocalEngine
from frontrunner.engine.prefill_delayer import PrefillDelayer
from frontrunner.engine.simulation import Agents, CostProfile, simulate
from frontrunner.protocols import GenerateRequest
from frontrunner.train.model import load_policy

PATIENCE = (0.25, 1.0, 3.0)
"""Seconds that a prompt may be held, for the curve."""
GPU = CostProfile(prefill_base=0.030, prefill_token=2e-5, decode_base=0.015, decode_row=1e-4)
"""A large model on one server: assumed, for planning."""


@dataclass
class Served:
    """What one drive of the real engine took."""

    tokens: int = 0
    seconds: float = 0.0
    first_token_seconds: list[float] = field(default_factory=list)

    @property
    def tokens_per_minute(self) -> float:
        return 60.0 * self.tokens / self.seconds

    def first_token(self, share: float) -> float:
        return sorted(self.first_token_seconds)[int(share * (len(self.first_token_seconds) - 1))]


def engine_of(model: Any, delayer: PrefillDelayer | None, *, mixed: bool) -> LocalEngine:
    return LocalEngine(model, max_batch=64, max_context=1024, mixed=mixed, delayer=delayer)


def delayer_of(seconds: float) -> PrefillDelayer:
    return PrefillDelayer(max_passes=30, max_seconds=seconds, queue_ratio=0.25)


def profile(engine: LocalEngine) -> CostProfile:
    """Fit of pass times: prompts of several lengths alone, and decoding of several batches."""
    prefill, decode = [], []
    rng = random.Random(0)
    for size in (16, 64, 256, 800):
        for repeat in range(6):
            ids = tuple(rng.randrange(3, 2000) for _ in range(size))
            engine.submit(GenerateRequest(f"{size} {repeat}", ids, 1, 1.0, repeat, ()))
            start = time.perf_counter()
            engine.step()
            prefill.append((size, time.perf_counter() - start))
    for batch in (1, 8, 24, 48):
        for n in range(batch):
            ids = tuple(rng.randrange(3, 2000) for _ in range(200))
            engine.submit(GenerateRequest(f"{batch} {n}", ids, 24, 1.0, n, ()))
        while engine.num_pending:
            passes = engine.scheduler.counts["prefilled_tokens"]
            running = engine.num_running
            start = time.perf_counter()
            engine.step()
            if engine.scheduler.counts["prefilled_tokens"] == passes and running == batch:
                decode.append((batch, time.perf_counter() - start))
    (prefill_token, prefill_base), (decode_row, decode_base) = (
        np.polyfit([x for x, _ in pairs], [y for _, y in pairs], 1) for pairs in (prefill, decode)
    )
    fitted = (prefill_base, prefill_token, decode_base, decode_row)
    return CostProfile(*(max(1e-9, float(value)) for value in fitted))


def serve(engine: LocalEngine, load: Agents) -> Served:
    """The agents of the simulation, in real time."""
    served, seen = Served(), set[int]()
    rngs = [random.Random(f"{load.seed} {n}") for n in range(load.num_agents)]
    contexts = [
        [3 + n % 97 for n in range(load.prompt_tokens // 2)]
        + [rng.randrange(100, 2000) for _ in range(load.prompt_tokens // 2)]
        for rng in rngs
    ]
    turns = [load.turns] * load.num_agents
    ready = [(0.0, n) for n in range(min(load.concurrency, load.num_agents))]
    following = iter(range(len(ready), load.num_agents))
    begin = time.perf_counter()
    while ready or engine.num_pending:
        now = time.perf_counter() - begin
        if not engine.num_pending and ready[0][0] > now:
            time.sleep(ready[0][0] - now)
            continue
        while ready and ready[0][0] <= now:
            _, number = heapq.heappop(ready)
            turns[number] -= 1
            answer = 1 + int(rngs[number].expovariate(1 / load.mean_answer))
            answer = min(answer, 1024 - len(contexts[number]))
            request = GenerateRequest(
                str(number), tuple(contexts[number]), answer, 1.0, number + 1000 * turns[number], ()
            )
            engine.submit(request)
        rows = [*engine.scheduler.running, *engine.scheduler.waiting]
        results = engine.step()
        for row in rows:
            if row.num_output and row.number not in seen:
                seen.add(row.number)
                served.first_token_seconds.append(time.monotonic() - row.arrival_seconds)
        for result in results:
            number = int(result.request_id)
            rng = rngs[number]
            served.tokens += len(result.token_ids)
            fresh = 1 + int(rng.expovariate(1 / load.mean_observation))
            contexts[number] += list(result.token_ids)
            contexts[number] += [rng.randrange(100, 2000) for _ in range(fresh)]
            wait = rng.expovariate(1 / load.mean_tool_seconds)
            if not turns[number] or len(contexts[number]) > 960:
                number = next(following, -1)
            if number >= 0:
                heapq.heappush(ready, (time.perf_counter() - begin + wait, number))
    served.seconds = time.perf_counter() - begin
    return served


def measure(model: Any, load: Agents, runs: int, *, mixed: bool) -> dict[str, Any]:
    """With and without the delayer, in turn, on engines that forget in between."""
    engines = {0.0: engine_of(model, None, mixed=mixed)}
    engines |= {s: engine_of(model, delayer_of(s), mixed=mixed) for s in PATIENCE}
    found: dict[float, list[Served]] = {s: [] for s in engines}
    for number in range(runs + 1):
        for seconds, engine in engines.items():
            served = serve(engine, load)
            engine.forget()
            if number:  # the first round warms up
                found[seconds].append(served)
    plain = [s.tokens_per_minute for s in found[0.0]]
    curve = [
        {
            "max_seconds": seconds,
            "tokens_per_minute": summary([s.tokens_per_minute for s in served]),
            "ratio": summary([s.tokens_per_minute / p for s, p in zip(served, plain, strict=True)]),
            "first_token_p50": round(statistics.median(s.first_token(0.5) for s in served), 4),
            "first_token_p99": round(statistics.median(s.first_token(0.99) for s in served), 4),
        }
        for seconds, served in found.items()
    ]
    return {"concurrency": load.concurrency, "curve": curve}


def simulated(load: Agents, costs: CostProfile) -> dict[str, Any]:
    """The same on the virtual clock."""
    plain = simulate(load, costs)
    curve = []
    for seconds in PATIENCE:
        held = simulate(load, costs, delayer=delayer_of(seconds))
        curve.append(
            {
                "max_seconds": seconds,
                "ratio": round(held.tokens_per_minute / plain.tokens_per_minute, 4),
                "first_token_p50": round(held.first_token_quantile(0.5), 4),
                "first_token_p99": round(held.first_token_quantile(0.99), 4),
            }
        )
    return {
        "concurrency": load.concurrency,
        "plain": {
            "tokens_per_minute": round(plain.tokens_per_minute, 1),
            "first_token_p50": round(plain.first_token_quantile(0.5), 4),
            "first_token_p99": round(plain.first_token_quantile(0.99), 4),
        },
        "curve": curve,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=48)
    given = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    model = load_policy("base").model
    costs = profile(engine_of(model, None, mixed=False))
    load = Agents(given.concurrency, 2 * given.concurrency, turns=4, mean_tool_seconds=0.2)
    apart = measure(model, load, given.runs, mixed=False)
    few = measure(model, Agents(2, 6, turns=4, mean_tool_seconds=0.2), given.runs, mixed=False)
    plain, held = apart["curve"][0], apart["curve"][1 + PATIENCE.index(1.0)]
    record = {
        "name": "prefill_delayer",
        "ours": held["tokens_per_minute"],
        "peer": plain["tokens_per_minute"],
        "peer_name": "our engine without the delayer",
        "unit": "sampled tokens per minute",
        "ratio": held["ratio"],
        "separate_passes": apart,
        "where_it_cannot_help": few,
        "mixed_passes": measure(model, load, given.runs, mixed=True),
        "profile": asdict(costs),
        "simulated_with_profile": simulated(load, costs),
        "assumed_gpu_profile": asdict(GPU),
        "simulated_on_gpu": [simulated(Agents(c, 2 * c), GPU) for c in (1, 4, 16, 64, 128)],
    }
    write(record, f"bench_prefill_delayer.py --runs {given.runs} --concurrency {given.concurrency}")
    print(json.dumps(record["ratio"]))


if __name__ == "__main__":
    main()
