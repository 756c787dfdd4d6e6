"""One bug, one conversation: watch the shipped policy work on a real package.

python examples/fix_one_bug.py [high]
"""

import sys

from frontrunner.backends.local import open_system
from frontrunner.config import Config
from frontrunner.effort.ladder import Ladder
from frontrunner.rollout.agent import Job
from frontrunner.run import cost_model_of, open_collector

effort = sys.argv[1] if len(sys.argv) > 1 else "high"
config = Config.model_validate({"env": {"help": False}, "run": {"threads": 1}})
ladder = Ladder.build(("low", "medium", "high"), ("Effort: low", "Effort: medium", "Effort: high"))

with open_system(config) as system, open_collector(system, config) as collector:
    task = system.tasks.split("heldout")[0]
    print(task.instruction, end="\n\n")
    (rollout,) = collector.collect([Job("example", task, ladder[effort], seed=1)])

for turn in rollout.turns:
    print(f">>> {turn.text}\n{turn.observation}\n")
print(
    f"{rollout.verdict.reason}: S = {rollout.success:.0f}, "
    f"C = ${cost_model_of(config).cost(rollout):.4f}, "
    f"{rollout.num_tokens} tokens sampled"
)
