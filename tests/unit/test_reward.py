from dataclasses import replace

import numpy as np
import pytest
from report_run import COST_MODEL, make_rollout

from frontrunner.effort.reward import price_and_reward, price_rollout, reward
from frontrunner.errors import UserError
from frontrunner.types import EffortLevel, Verdict

LOW = EffortLevel("low", "", 10.0)
ROLLOUT = make_rollout(np.random.default_rng(0), 1, "low", 1.0, 5.0)


def test_reward_is_success_minus_priced_cost() -> None:
    done = price_and_reward(ROLLOUT, COST_MODEL, LOW)
    assert done.cost == COST_MODEL.cost(ROLLOUT)
    assert done.reward == reward(ROLLOUT.success, COST_MODEL.cost(ROLLOUT), 10.0)


def test_failures_pay_in_full() -> None:
    failed = replace(ROLLOUT, verdict=Verdict("graded", 0.0, "timeout"), status="max_turns")
    done = price_and_reward(failed, COST_MODEL, LOW)
    assert done.reward == pytest.approx(-10.0 * COST_MODEL.cost(ROLLOUT))


@pytest.mark.parametrize("kind", ["invalid", "quarantined"])
def test_what_was_not_graded_has_a_cost_but_no_reward(kind: str) -> None:
    broken = replace(ROLLOUT, verdict=Verdict(kind, 0.0, "box failed"))  # type: ignore[arg-type]
    done = price_and_reward(broken, COST_MODEL, LOW)
    assert done.reward is None and done.cost is not None


def test_a_level_without_lambda_is_refused_and_repricing_clears_the_reward() -> None:
    with pytest.raises(UserError, match="low"):
        price_and_reward(ROLLOUT, COST_MODEL, EffortLevel("low", ""))
    done = price_and_reward(ROLLOUT, COST_MODEL, LOW)
    assert price_rollout(done, COST_MODEL).reward is None
