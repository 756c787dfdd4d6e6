"""R = S - lambda_e * C: the reward of one rollout at effort level e.

Linear on purpose: E[R] is then a function of mean success and mean cost alone, so its optimum is
the point where the model's frontier has slope lambda_e. No curvature, budget or normalisation.
"""

from __future__ import annotations

from dataclasses import replace

from frontrunner.effort.cost import CostModel
from frontrunner.errors import UserError
from frontrunner.types import EffortLevel, Rollout


def reward(success: float, cost: float, lambda_: float) -> float:
    """S - lambda * C for S in [0, 1], C in USD and lambda in 1/USD."""
    return success - lambda_ * cost


def price_rollout(rollout: Rollout, cost_model: CostModel) -> Rollout:
    """The rollout with its cost; its reward is cleared, as it belonged to another price."""
    return replace(rollout, cost=cost_model.cost(rollout), reward=None)


def price_and_reward(rollout: Rollout, cost_model: CostModel, level: EffortLevel) -> Rollout:
    """The rollout with cost and reward. Failures pay in full.

    A rollout that was not graded (infrastructure, or a verifier that is not trusted) has a cost
    but no reward: it is to be sampled again, never scored 0. Raises `UserError` if the level has
    no lambda.
    """
    assert rollout.effort == level.name, f"rollout at {rollout.effort!r}, level {level.name!r}"
    if level.lambda_ is None:
        raise UserError(
            f"Effort level {level.name!r} has no lambda yet; "
            "fit it from the base model's frontier, or set it in the configuration."
        )
    priced = price_rollout(rollout, cost_model)
    if not rollout.valid:
        return priced
    assert priced.cost is not None
    return replace(priced, reward=reward(rollout.success, priced.cost, level.lambda_))
