import re

import numpy as np
import pytest
from report_run import BASE, measure

from frontrunner.effort.ladder import default_ladder
from frontrunner.evals.alarms import alarms
from frontrunner.evals.history import auc, effort_metrics, mutual_information

LADDER = ("low", "high")
HEALTHY = {
    "effort/low/cost": 0.01,
    "effort/high/cost": 0.03,
    "effort/high/cost_auc": 0.9,
    "effort/low/success": 0.4,
    "effort/high/success": 0.6,
    "effort/low/give_up": 0.05,
    "effort/low/num_rollouts": 32.0,
    "effort/mutual_information": 0.6,
}


def history(**late: float) -> list[dict[str, float | None]]:
    """Ten healthy steps, then ten in which some metrics have moved (`effort__low__cost=...`)."""
    changed = {name.replace("__", "/"): value for name, value in late.items()}
    return [{"step": float(i), **HEALTHY, **(changed if i > 10 else {})} for i in range(1, 21)]


def kinds(rows: list[dict[str, float | None]]) -> list[tuple[str, str]]:
    return [(a.kind, a.effort) for a in alarms(rows, LADDER)]


def test_a_healthy_run_is_quiet() -> None:
    assert kinds(history()) == [] and alarms([], LADDER) == []


@pytest.mark.parametrize(
    ("late", "kind", "effort", "words"),
    [
        ({"effort__high__cost": 0.012}, "merging", "low/high", "1.20 times"),
        ({"effort__high__cost": 0.008}, "merging", "low/high", "inverted"),
        ({"effort__high__cost_auc": 0.6}, "merging", "low/high", "60% of pairs"),
        (
            {"effort__low__cost": 0.005, "effort__low__success": 0.3},
            "length collapse",
            "low",
            "50%.*40.0% to 30.0%",
        ),
        ({"effort__mutual_information": 0.01}, "effort ignored", "low/high", "0.01 bits"),
        ({"effort__low__give_up": 0.3}, "give-up", "low", "5.0% to 30.0%"),
        ({"effort__high__invalid": 0.2}, "infrastructure", "high", "20.0%"),
    ],
)
def test_each_failure_mode_has_its_alarm(
    late: dict[str, float], kind: str, effort: str, words: str
) -> None:
    rows = history(**late)
    assert kinds(rows) == [(kind, effort)]
    (alarm,) = alarms(rows, LADDER)
    assert alarm.step == 20
    assert re.search(words, alarm.message)


def test_cheaper_without_loss_is_no_collapse() -> None:
    assert kinds(history(effort__low__cost=0.005, effort__low__success=0.45)) == []


def test_a_rise_within_noise_is_no_alarm() -> None:
    rows = history(effort__low__give_up=0.2)
    for row in rows:
        row["effort/low/num_rollouts"] = 2.0
    assert kinds(rows) == []


def test_missing_metrics_switch_alarms_off() -> None:
    assert kinds([{"step": 1.0, "loss": 0.3, "effort/low/cost": None}] * 20) == []


def test_metrics_of_a_step() -> None:
    row = effort_metrics(measure(BASE, 30, 0), default_ladder())
    assert row["effort/low/cost"] < row["effort/medium/cost"] < row["effort/high/cost"]
    assert row["effort/high/cost_auc"] > 0.7 and "effort/low/cost_auc" not in row
    assert row["effort/low/num_rollouts"] == 60.0 and row["effort/low/invalid"] == 0.0
    assert 0.3 < row["effort/mutual_information"] < np.log2(3)
    assert effort_metrics([], default_ladder()) == {}


def test_auc_and_information_at_their_limits() -> None:
    rng = np.random.default_rng(0)
    same = [list(rng.random(300)) for _ in range(3)]
    assert mutual_information(same) < 0.02
    apart = [list(k + 0.1 * rng.random(300)) for k in range(2)]
    assert mutual_information(apart) == pytest.approx(1.0, abs=0.02)
    assert auc([1.0, 2.0], [3.0, 4.0]) == 1.0 and auc([1.0, 2.0], [1.0, 2.0]) == 0.5
