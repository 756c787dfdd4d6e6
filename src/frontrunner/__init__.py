"""Post-trains coding agents by reinforcement learning, every reasoning-effort level in one run.

A run measures the base model's cost-success frontier, fits the price of cost at each effort level
to its slope, trains with the reward R = S - lambda_e * C, and measures again. Read `run` first: it
is the loop. `types` holds the records that pass between rooms, `protocols` the seams, and `config`
every knob.
"""

__version__ = "0.1.0"
