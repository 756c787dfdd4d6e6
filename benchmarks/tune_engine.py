"""Times the choices inside the engine, to decide them by measurement. Writes nothing.

    python benchmarks/tune_engine.py attention
    python benchmarks/tune_engine.py decode [--model base] [--dtype float32]
    python benchmarks/tune_engine.py prefill [--model base] [--dtype float32]

attention   kernel against batched products, for both models' shapes, by type and page size
decode      a decoding pass at 1, 8, 32 and 64 rows of 512 tokens, by page size
prefill     prompts of 512 tokens, by tokens per pass
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch

from frontrunner.engine.attention import plain_page_attention
from frontrunner.engine.engine import LocalEngine
from frontrunner.protocols import GenerateRequest
from frontrunner.train.model import load_policy


def median_ms(work: Callable[[], object], repeats: int = 15) -> float:
    times = []
    for _ in range(repeats + 3):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[3:])


@torch.inference_mode()
def attention() -> None:
    """One layer's pages of 64 rows of 512 tokens."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    for name, heads, group, dim in (("base", 2, 3, 32), ("smollm2", 3, 3, 64)):
        for dtype in (torch.float32, torch.bfloat16):
            for size in (32, 64, 128, 256):
                pages = 64 * 512 // size
                q = torch.randn(pages, heads, group, dim).to(dtype)
                k, v = torch.randn(2, pages, heads, size, dim).to(dtype)
                mask = torch.zeros(pages, 1, 1, size)
                fused = median_ms(lambda q=q, k=k, v=v, m=mask: kernel(q, k, v, attn_mask=m))
                plain = median_ms(
                    lambda q=q, k=k, v=v, m=mask: plain_page_attention(q, k, v, m, 0.2)
                )
                read = k.nbytes + v.nbytes
                print(
                    f"{name} {dtype} page {size}: kernel {fused:.2f} ms, products {plain:.2f} ms, "
                    f"{read / 1e6 / min(fused, plain):.1f} GB/s"
                )


def decode(model: str, dtype: str) -> None:
    for size in (32, 64, 128, 256):
        policy = load_policy(model, dtype).model
        engine = LocalEngine(policy, max_batch=64, max_context=1024, page_size=size)
        for rows in (1, 8, 32, 64):
            for n in range(rows):
                ids = tuple(3 + (n * 31 + i * 7) % 1900 for i in range(512))
                engine.submit(GenerateRequest(f"{rows} {n}", ids, 60, 1.0, n, ()))
            while len(engine.scheduler.waiting) or any(
                r.num_left > 1 for r in engine.scheduler.running
            ):
                engine.step()
            ms = median_ms(engine.step)
            print(
                f"{model} {dtype} page {size}, {rows} rows: {ms:.2f} ms, {1000 * rows / ms:.0f}/s"
            )
            while engine.num_pending:
                engine.step()
            engine.forget()


def prefill(model: str, dtype: str) -> None:
    policy = load_policy(model, dtype).model
    for tokens in (256, 512, 1024, 2048, 4096, 8192):
        engine = LocalEngine(policy, max_batch=64, max_context=1024, prefill_tokens=tokens)
        times = []
        for repeat in range(4):
            for n in range(16):
                ids = tuple(3 + (n * 31 + repeat * 11 + i * 7) % 1900 for i in range(512))
                engine.submit(GenerateRequest(str(n), ids, 1, 1.0, n, ()))
            start = time.perf_counter()
            while engine.num_pending:
                engine.step()
            times.append(time.perf_counter() - start)
            engine.forget()
        print(f"{model} {dtype} {tokens} per pass: {16 * 512 / min(times):.0f} tokens/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["attention", "decode", "prefill"])
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    if given.what == "attention":
        attention()
    else:
        {"decode": decode, "prefill": prefill}[given.what](given.model, given.dtype)


if __name__ == "__main__":
    main()
