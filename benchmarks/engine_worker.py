"""One engine under a load, in a process of its own, for `bench_engine.py`.

    python engine_worker.py KIND SPEC.json

KIND is ours, generate, continuous or vllm; only that one is imported. For every line on standard
input, the name of a load in the spec, the load is driven once and a line with what it took comes
back. Everything that an engine answers includes log-probabilities of the sampled tokens where the
engine can give them, as reinforcement learning needs them.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from agents import Finished, Load, Rollout, Turn, drive

MARK = "@@"

Submit = Callable[[str, list[int], int], None]
Poll = Callable[[], Finished]


def torch_model(spec: dict[str, Any]) -> Any:
    """The model in the spec's precision."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(spec["threads"])
    dtype = getattr(torch, spec["dtype"])
    model: Any = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=dtype)
    return model.eval()


def ours(spec: dict[str, Any]) -> tuple[Submit, Poll]:
    """Our engine."""
    from frontrunner.engine.engine import LocalEngine
    from frontrunner.protocols import GenerateRequest

    engine = LocalEngine(
        torch_model(spec),
        max_batch=spec["max_batch"],
        max_context=spec["max_context"],
        kv_bytes=spec["kv_bytes"],
        **spec.get("engine", {}),
    )

    def submit(name: str, ids: list[int], num: int) -> None:
        engine.submit(GenerateRequest(name, tuple(ids), num, 1.0, zlib.crc32(name.encode()), ()))

    def poll() -> Finished:
        return [(r.request_id, list(r.token_ids)) for r in engine.step()]

    return submit, poll


def generate(spec: dict[str, Any]) -> tuple[Submit, Poll]:
    """Transformers' `generate` on everything that is ready, padded on the left."""
    import torch

    model = torch_model(spec)
    ready: list[tuple[str, list[int], int]] = []

    def submit(name: str, ids: list[int], num: int) -> None:
        ready.append((name, ids, num))

    def poll() -> Finished:
        width = max(len(ids) for _, ids, _ in ready)
        ids = torch.tensor([[0] * (width - len(i)) + i for _, i, _ in ready])
        mask = torch.tensor([[0] * (width - len(i)) + [1] * len(i) for _, i, _ in ready])
        output = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=max(num for _, _, num in ready),
            eos_token_id=None,
            pad_token_id=0,
        )[:, width:].tolist()
        done = [(name, row[:num]) for (name, _, num), row in zip(ready, output, strict=True)]
        ready.clear()
        return done

    return submit, poll


def continuous(spec: dict[str, Any]) -> tuple[Submit, Poll]:
    """Transformers' continuous batching."""
    from transformers import GenerationConfig
    from transformers.generation import ContinuousBatchingConfig

    model = torch_model(spec)
    size = 32
    config = ContinuousBatchingConfig(
        page_size=size,
        num_blocks=-(-spec["max_batch"] * spec["max_context"] // size),
        max_batch_tokens=4096,
        max_requests_per_batch=spec["max_batch"],
        return_logprobs=True,
        seed=0,
    )
    sampling = GenerationConfig(do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=0)
    manager = model.init_continuous_batching(
        generation_config=sampling, continuous_batching_config=config
    )
    manager.start()

    def submit(name: str, ids: list[int], num: int) -> None:
        manager.add_request(ids, request_id=name, max_new_tokens=num, eos_token_id=-1)

    def poll() -> Finished:
        result = manager.get_result(timeout=60)
        assert result is not None and result.error is None, result
        return [(result.request_id, list(result.generated_tokens))]

    return submit, poll


def vllm(spec: dict[str, Any]) -> tuple[Submit, Poll]:
    """vLLM for CPUs, stepped in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(max(1, spec["kv_bytes"] >> 30)))
    os.environ.setdefault("OMP_NUM_THREADS", str(spec["threads"]))
    from vllm import EngineArgs, LLMEngine, SamplingParams
    from vllm.inputs import TokensPrompt

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=spec["model"],
            dtype=spec["dtype"],
            max_model_len=spec["max_context"],
            max_num_seqs=spec["max_batch"],
            enable_prefix_caching=True,
            disable_log_stats=True,
        )
    )

    def submit(name: str, ids: list[int], num: int) -> None:
        sampling = SamplingParams(max_tokens=num, ignore_eos=True, temperature=1.0, logprobs=0)
        engine.add_request(name, TokensPrompt(prompt_token_ids=ids), sampling)

    def poll() -> Finished:
        done = [o for o in engine.step() if o.finished]
        return [(o.request_id, list(o.outputs[0].token_ids)) for o in done]

    return submit, poll


def peak_bytes() -> int:
    """Most memory that this process held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def load_of(given: dict[str, Any], lockstep: bool) -> Load:
    """A load from its JSON form."""
    rollouts = [
        Rollout(r["group"], [Turn(t["fresh"], t["answer"]) for t in r["turns"]])
        for r in given["rollouts"]
    ]
    return Load(rollouts, given["concurrency"], lockstep=lockstep)


def main() -> None:
    kind, spec = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    submit, poll = {"ours": ours, "generate": generate, "continuous": continuous, "vllm": vllm}[
        kind
    ](spec)
    loads = {name: load_of(load, kind == "generate") for name, load in spec["loads"].items()}
    print(f"{MARK}{json.dumps({'ready': True})}", flush=True)
    for salt, line in enumerate(sys.stdin):
        load = loads[line.strip()]
        load.salt = salt
        measured = drive(load, submit, poll)
        answer = {
            "tokens_per_second": measured.tokens / measured.seconds,
            "mean_turn_seconds": measured.mean_turn_seconds,
            "tokens": measured.tokens,
            "context_tokens": measured.context_tokens,
            "seconds": measured.seconds,
            "peak_bytes": peak_bytes(),
        }
        print(f"{MARK}{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
