"""How well a policy repairs in its first edit: likelihood at temperature 1, and greedy.

    python benchmarks/bench_base_policy.py [--model base] [--corpus 500]

The view of the function is given, and the one edit that restores it is scored under the model: its
probability, and whether every token of it is the likeliest. No sampling, so small changes of a
policy show. `--corpus` does the same for fresh bugs in functions of the training corpus.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from frontrunner.envs import expert, taskset
from frontrunner.envs.chat import ChatFormat
from frontrunner.envs.corpus import collect
from frontrunner.envs.mutations import repair
from frontrunner.envs.workspace import Workspace
from frontrunner.rollout.store import machine
from frontrunner.train.model import load_policy
from frontrunner.train.sft import SftConfig

HERE = Path(__file__).parent
Case = tuple[str, str, str, str]
"""Kind, user message, view, edit."""


def task_cases() -> Iterator[Case]:
    """The held-out tasks of the quickstart."""
    tasks = taskset.load("quickstart")
    for task in tasks.split("heldout"):
        (gold,) = tasks.gold(task).values()
        view = Workspace(tasks.tree(task), tasks.base_files(task)).view(task.function)
        edit = repair(gold, task.mutation, [row.partition(" ")[2] for row in view.split("\n")])
        assert edit is not None
        yield task.mutation.kind, task.instruction, view, "edit {} => {}".format(*edit)


def corpus_cases(number: int, seed: int) -> Iterator[Case]:
    """Fresh bugs in functions of the training corpus."""
    rng, config = random.Random(seed), SftConfig()
    corpus = collect(config.packages, config.held_out)
    style = replace(expert.DRILL, bugs=1)
    while number:
        made = expert.trajectory(rng, rng.choice(corpus), "low", style)
        if made:
            number -= 1
            edit = next(t.text for t in made.turns if t.text.startswith("edit"))
            yield "corpus", made.user, made.turns[0].observation, edit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="base")
    parser.add_argument("--corpus", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    policy = load_policy(args.model)
    chat = ChatFormat(policy.tokenizer)
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for kind, user, view, edit in [*task_cases(), *corpus_cases(args.corpus, args.seed)]:
        before = chat.opening("Effort: low", user) + chat.answer("view")
        before += chat.continuation(view, closed=True)
        answer = chat.answer(edit)
        ids = torch.tensor([before + answer])
        with torch.no_grad():
            logits = policy.model(ids).logits[0, len(before) - 1 : -1].log_softmax(-1)
        target = ids[0, len(before) :]
        likelihood = float(logits.gather(1, target[:, None]).sum().exp())
        scored = (likelihood, float((logits.argmax(-1) == target).all()))
        found[kind].append(scored)
        if kind != "corpus":
            found["held-out"].append(scored)
    rows = [
        {
            "kind": kind,
            "num_bugs": len(scores),
            "likelihood": sum(s[0] for s in scores) / len(scores),
            "greedy": sum(s[1] for s in scores) / len(scores),
        }
        for kind, scores in sorted(found.items())
    ]
    for row in rows:
        print("{kind:12} {num_bugs:4}  T = 1 {likelihood:.1%}  greedy {greedy:.1%}".format(**row))
    result = {"model": args.model, "seed": args.seed, "rows": rows, **machine()}
    if args.model == "base":
        path = HERE / "results" / "base_policy.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
