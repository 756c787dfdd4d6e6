import numpy as np
import pytest
from report_run import make_rollout

from frontrunner.effort.cost import CostModel
from frontrunner.effort.price import find_price
from frontrunner.errors import UserError
from frontrunner.types import Usage

K3 = find_price("Kimi K3")


@pytest.mark.parametrize(
    ("model", "usage", "usd"),
    [
        ("Kimi K3", Usage(cached=6_000_000), 1.80),
        ("Kimi K3", Usage(output=60_000), 0.90),
        ("Kimi K3", Usage(fresh=1_000_000, cached=1_000_000, output=1_000_000), 18.30),
        ("Kimi K2.7 Code", Usage(fresh=200_000, cached=3_000_000, output=50_000), 0.96),
        ("GPT-5.5", Usage(fresh=100_000, cached=2_000_000, output=20_000), 2.10),
        ("Opus 5", Usage(fresh=10_000, cached=90_000, output=4_000), 0.60),
        ("Grok 4.5", Usage(write=500_000, output=100_000), 1.60),
    ],
)
def test_golden_invoices(model: str, usage: Usage, usd: float) -> None:
    parts = CostModel(find_price(model)).breakdown_of([usage])
    assert parts.usd == pytest.approx(usd, abs=1e-9)


def test_cached_reads_of_a_long_context_outweigh_its_output() -> None:
    turns = [Usage(cached=60_000, output=600)] * 100
    parts = CostModel(K3).breakdown_of(turns)
    assert parts.cached == pytest.approx(1.80) and parts.output == pytest.approx(0.90)


def test_time_is_reference_time_and_tools_are_capped() -> None:
    model = CostModel(
        K3,
        value_of_time_usd_per_hour=36.0,
        output_tokens_per_second=100.0,
        input_tokens_per_second=1000.0,
        tool_timeout=10.0,
    )
    parts = model.breakdown_of(
        [Usage(fresh=2000, cached=9999, output=300, tool_seconds=4.0), Usage(tool_seconds=50.0)]
    )
    assert parts.model_seconds == pytest.approx(5.0)
    assert parts.tool_seconds == pytest.approx(14.0)
    assert parts.time == pytest.approx(0.19)
    assert parts.total == pytest.approx(parts.usd + 0.19)


def test_a_rollout_can_be_priced_again_from_its_ledger() -> None:
    rollout = make_rollout(np.random.default_rng(0), 1, "low", 0.5, 5.0)
    parts = CostModel(K3).breakdown(rollout)
    assert parts.usd == CostModel(K3).cost(rollout) - parts.time > 0.0
    dearer = CostModel(find_price("Opus 5"))
    assert dearer.cost(rollout) > CostModel(K3).cost(rollout) > 0.0
    assert CostModel(K3).breakdown_of(rollout.turns) == CostModel(K3).breakdown(rollout)


def test_settings_are_checked() -> None:
    with pytest.raises(UserError, match="output_tokens_per_second"):
        CostModel(K3, output_tokens_per_second=0.0)
    with pytest.raises(UserError, match="value_of_time"):
        CostModel(K3, value_of_time_usd_per_hour=-1.0)
