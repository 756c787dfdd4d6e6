"""Writes `agents.json` from a run of the shipped policy: what its rollouts read, and the lengths of
what they wrote.

    python benchmarks/record_agents.py runs/quickstart [--rollouts 96]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def trace(rollouts: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rollouts as turns of (fragment, answer length); equal fragments are written once."""
    fragments: dict[tuple[int, ...], int] = {}
    groups: dict[tuple[str, str], int] = {}
    items = []
    for rollout in rollouts:
        group = groups.setdefault((rollout["task_id"], rollout["effort"]), len(groups))
        turns = [
            [fragments.setdefault(tuple(t["prompt"]), len(fragments)), len(t["output"])]
            for t in rollout["turns"]
        ]
        if turns:
            items.append({"group": group, "turns": turns})
    return {"rollouts": items, "fragments": [list(f) for f in fragments]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--rollouts", type=int, default=96)
    given = parser.parse_args()
    lines = (given.run / "rollouts.jsonl").read_text().splitlines()[: given.rollouts]
    tree = trace([json.loads(line) for line in lines])
    parts = [f'"{k}": [\n' + ",\n".join(map(json.dumps, v)) + "\n]" for k, v in tree.items()]
    (Path(__file__).parent / "agents.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")
    print(f"{len(tree['rollouts'])} rollouts, {len(tree['fragments'])} fragments")


if __name__ == "__main__":
    main()
