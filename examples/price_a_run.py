"""The token ledger of a run is raw, so any price table re-prices it.

python examples/price_a_run.py runs/quickstart
"""

import sys
from pathlib import Path

from frontrunner.effort.cost import CostModel
from frontrunner.effort.price import find_price
from frontrunner.rollout.store import RolloutFile

run = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/quickstart")
rollouts = RolloutFile(run / "eval" / "base.jsonl").read()
print(f"{len(rollouts)} rollouts of {run}")
for model in ("kimi-k3", "gpt-5.5", "grok-4.5"):
    for value_of_time in (0.0, 1.0, 20.0):
        prices = CostModel(find_price(model), value_of_time_usd_per_hour=value_of_time)
        mean = sum(map(prices.cost, rollouts)) / len(rollouts)
        print(f"{model:<10} at ${value_of_time:>4.0f} per hour of waiting: ${mean:.5f} a rollout")
