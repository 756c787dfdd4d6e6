"""One training step against TRL's GRPO trainer: same model, samples and dtype, taking turns.

    python benchmarks/bench_train_step.py [--run runs/quickstart] [--model base] [--dtype float32]

Both sides get the same budget of tokens per pass and the same threads, start from the same weights
and take one AdamW step on the same groups of rollouts. Tokens per second counts the tokens of the
samples, padding and repetition not included. TRL's clock starts after its own collation, ours
before. In bfloat16 both keep float32 weights beside it, TRL by autocasting; with `--peer-pure` it
keeps none, which is lighter than what we do.

`--run` takes the rollouts of a run's last step; without it they are drawn, with lengths that have a
long tail. TRL is installed in an environment of its own in the cache folder. Writes
`results/train_step_vs_trl.json` (with model and dtype in the name where they are not the default).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import torch
from record import RESULTS, summary, write

from frontrunner.config import AlgoSection, TrainSection, load
from frontrunner.envs.packages import cache_dir
from frontrunner.rollout.samples import groups_of, samples_of
from frontrunner.rollout.store import RolloutFile
from frontrunner.train.batch import collate
from frontrunner.train.memory import step_memory
from frontrunner.train.model import load_policy, resolve
from frontrunner.train.trainer import LocalTrainer
from frontrunner.types import Sample

TRL = "1.16.0"
MARK = "@@"
"""Begins a worker's messages, among whatever its libraries print."""
ROOT = Path(__file__).parent


def drawn_samples(groups: int = 8, size: int = 8, longest: int = 1024) -> list[Sample]:
    """Multi-turn rollouts in groups with one opening each; numbers of turns have a long tail."""
    rng = random.Random(0)

    def tokens(low: int, high: int) -> list[int]:
        return [rng.randrange(10, 2000) for _ in range(rng.randint(low, high))]

    samples = []
    for _ in range(groups):
        opening = tokens(150, 400)
        for _ in range(size):
            ids, mask = list(opening), [False] * len(opening)
            for _ in range(min(12, int(rng.lognormvariate(1.0, 0.8)) + 1)):
                output, seen = tokens(8, 40), tokens(10, 100)
                if len(ids) + len(output) + len(seen) > longest:
                    break
                ids += output + seen
                mask += [True] * len(output) + [False] * len(seen)
            logprobs = tuple(-2.0 * m for m in mask)
            samples.append(Sample(tuple(ids), tuple(mask), logprobs, rng.gauss(0, 1), "", 0))
    return samples


def recorded_samples(run: Path) -> tuple[list[Sample], int]:
    """Samples of the whole groups of a run's last step, and the group size."""
    config = load(run / "config.json")
    size = config.rollout.group_size
    rollouts = RolloutFile(run / "rollouts.jsonl").read()[-config.rollout.groups * size :]
    groups = [g for g in groups_of(rollouts, size) if all(r.turns for r in g.rollouts)]
    whole = [g for g in groups if len(g.rollouts) == size]
    return samples_of(whole, config.algo.baseline), size


def prepare_trl() -> Path:
    """The interpreter of TRL's environment, made when missing."""
    folder = cache_dir() / "venvs" / f"trl-{TRL}"
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        venv.create(folder, with_pip=True, clear=True)
        pins = ["-c", str(ROOT.parent / "constraints.txt")]
        wanted = [f"trl=={TRL}", "torch==2.13.0", "transformers==5.24.0"]
        subprocess.run([python, "-m", "pip", "install", "-q", *pins, *wanted], check=True)
        (folder / "done").touch()
    return python


def say(**message: Any) -> None:
    print(MARK + json.dumps(message), flush=True)


class Worker:
    """A process that takes one step at a time when told to."""

    def __init__(self, *command: str | Path) -> None:
        self.process = subprocess.Popen(
            [str(c) for c in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        )
        self.facts = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                message: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return message
        raise RuntimeError(f"worker ended with {self.process.wait()}")

    def ask(self, word: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self._answer()

    def step(self) -> float:
        """Seconds of one step."""
        return float(self.ask("step")["seconds"])

    def close(self) -> dict[str, Any]:
        """Ends the process; returns its last words."""
        last = self.ask("end")
        self.process.communicate()
        return last


def useful_flops(trainer: LocalTrainer, samples: list[Sample]) -> float:
    """Multiplications and additions of forward and backward over what one step computes: three
    times the forward pass, recomputation not counted."""
    model, config = trainer.model, trainer.model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = sum(p.numel() for p in model.base_model.layers.parameters() if p.dim() == 2)
    head = config.vocab_size * config.hidden_size
    total = 0.0
    for plan in trainer.packs(samples):
        batch = collate(samples, plan, "token_sum")
        pairs = float((batch.positions + 1).sum())
        attention = 2 * config.num_hidden_layers * config.num_attention_heads * width * pairs
        total += 6 * (layers * plan.num_tokens + head * len(batch.targets) + attention)
    return total


def matmul_flops(dtype: torch.dtype, size: int = 2048, tries: int = 8) -> float:
    """The machine's best rate of multiplications and additions in a square matrix product."""
    a = torch.randn(size, size).to(dtype)
    times = []
    for _ in range(tries):
        start = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)


def our_worker(spec: dict[str, Any]) -> None:
    """Steps of our trainer, one for every line read."""
    torch.set_num_threads(spec["threads"])
    samples = [Sample(**s) for s in spec["samples"]]
    policy = load_policy(spec["model"], spec["dtype"])
    train = TrainSection(
        micro_tokens=spec["micro_tokens"],
        gradient_checkpointing=spec["checkpointing"],
        learning_rate=spec["learning_rate"],
    )
    trainer = LocalTrainer(policy.model, AlgoSection(), train, 1.0, policy.tokenizer)
    say(ready=True)
    metrics: dict[str, float] = {}
    for line in sys.stdin:
        if line.strip() == "end":
            break
        start = time.perf_counter()
        metrics = trainer.train_step(samples).metrics
        say(seconds=time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    memory = step_memory(trainer)
    say(
        peak_rss=peak,
        computed_tokens=metrics["train/computed_tokens"],
        fixed_bytes=memory.fixed,
        bytes_per_token=memory.per_token,
        useful_flops=useful_flops(trainer, samples),
        matmul_flops={d: matmul_flops(getattr(torch, d)) for d in ("float32", "bfloat16")},
    )


def compare(spec: dict[str, Any], runs: int) -> dict[str, Any]:
    """Both sides in turns; the fields of the result that are measured."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps({**spec, "folder": folder}))
        python = prepare_trl()
        ours = Worker(sys.executable, __file__, "--worker", path)
        peer = Worker(python, ROOT / "trl_worker.py", path)
        ours.step()  # the first step of each makes its optimizer's state
        peer.step()
        pairs = [(ours.step(), peer.step()) for _ in range(runs)]
        last, peer_last = ours.close(), peer.close()
    tokens = sum(len(s["token_ids"]) for s in spec["samples"])
    seconds = statistics.median(a for a, _ in pairs)
    ratios = [b / a for a, b in pairs]
    rate = last["useful_flops"] / seconds
    return {
        "ours": round(tokens / seconds, 1),
        "peer": round(tokens / statistics.median(b for _, b in pairs), 1),
        "peer_name": f"TRL {TRL} GRPOTrainer",
        "unit": "tokens/s",
        "ratio": summary(ratios, 3),
        "memory": {
            "unit": "bytes",
            "ours_peak_rss": last["peak_rss"],
            "peer_peak_rss": peer_last["peak_rss"],
            "ours_per_token": round(last["bytes_per_token"]),
            "ours_beside_tokens": round(last["fixed_bytes"]),
        },
        "arithmetic": {
            "unit": "FLOP/s",
            "ours": round(rate),
            "matmul": {k: round(v) for k, v in last["matmul_flops"].items()},
            "fraction": round(rate / last["matmul_flops"][spec["dtype"]], 3),
        },
        "workload": {
            "samples": len(spec["samples"]),
            "tokens": tokens,
            "computed_by_ours": round(last["computed_tokens"]),
            "computed_by_peer": peer_last["computed_tokens"],
            "tokens_per_pass": spec["micro_tokens"],
            "activation_checkpointing": spec["checkpointing"],
            "peer_autocasts": spec["peer_autocasts"],
        },
    }


def make_spec(options: argparse.Namespace) -> dict[str, Any]:
    samples, size = recorded_samples(options.run) if options.run else (drawn_samples(), 8)
    if options.groups:
        samples = samples[: options.groups * size]
    fields = ("token_ids", "loss_mask", "logprobs", "advantage", "effort", "version")
    return {
        "model": str(resolve(options.model)),
        "dtype": options.dtype,
        "samples": [{name: getattr(s, name) for name in fields} for s in samples],
        "group_size": size,
        "micro_tokens": options.micro_tokens,
        "checkpointing": options.checkpointing,
        "peer_autocasts": options.dtype == "bfloat16" and not options.peer_pure,
        "learning_rate": 1e-5,
        "threads": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path, help="run directory whose rollouts are the samples")
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--groups", type=int, default=0, help="use only so many groups; 0: all")
    parser.add_argument("--micro-tokens", type=int, default=8192)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--peer-pure", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        our_worker(json.loads(options.worker.read_text()))
        return
    default = (options.model, options.dtype) == ("base", "float32")
    suffix = "" if default else f"_{Path(options.model).name}_{options.dtype}"
    suffix += "_pure" if options.peer_pure else ""
    record = {
        "name": f"train_step_vs_trl{suffix}",
        **compare(make_spec(options), options.runs),
        "versions": {"trl": TRL},
    }
    write(record, "bench_train_step.py " + " ".join(sys.argv[1:]), folder=options.out)
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
