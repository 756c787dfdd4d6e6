"""C: what a rollout costs, in USD, from its raw token ledger.

    C = USD + v * T / 3600
    USD = sum over turns of (fresh, cached, write, output tokens) times their prices
    T   = sum over turns of fresh / input_rate + output / output_rate + min(tool, timeout)   [s]

Token counts assume an ideal prefix cache and times come from reference throughputs: how loaded an
engine was is not the policy's doing. The ledger is raw, so a run can be re-priced at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from frontrunner.effort.price import TOKENS_PER_UNIT, Price
from frontrunner.errors import UserError
from frontrunner.types import Rollout, Turn, Usage


@dataclass(frozen=True, slots=True)
class CostBreakdown:
    """Where the cost of one rollout went. Parts in USD add up to `total`."""

    fresh: float
    cached: float
    write: float
    output: float
    time: float
    """Value of the time spent, USD."""
    model_seconds: float
    """Reading fresh tokens and writing output at the reference throughput."""
    tool_seconds: float
    """Reference tool time, each call capped at the time-out."""

    @property
    def usd(self) -> float:
        """Inference alone."""
        return self.fresh + self.cached + self.write + self.output

    @property
    def total(self) -> float:
        return self.usd + self.time


def _usages(items: Iterable[Turn | Usage]) -> list[Usage]:
    return [item.usage if isinstance(item, Turn) else item for item in items]


@dataclass(frozen=True, slots=True)
class CostModel:
    """Prices rollouts. The default throughputs are those of the fit published with SWE-Effi
    (4.999e-3 s per output token, 4.266e-5 s per input token), rounded."""

    price: Price
    value_of_time_usd_per_hour: float = 0.0
    output_tokens_per_second: float = 200.0
    input_tokens_per_second: float = 23_000.0
    tool_timeout: float = 60.0
    """Seconds; the most that one tool call can be charged for."""

    def __post_init__(self) -> None:
        for name in ("output_tokens_per_second", "input_tokens_per_second"):
            if not getattr(self, name) > 0.0:
                raise UserError(f"{name} is {getattr(self, name)}; it must be positive.")
        for name in ("value_of_time_usd_per_hour", "tool_timeout"):
            if not getattr(self, name) >= 0.0:
                raise UserError(f"{name} is {getattr(self, name)}; it must be 0 or more.")

    def cost(self, rollout: Rollout) -> float:
        """C of one rollout in USD, whether it succeeded or not."""
        return self.breakdown(rollout).total

    def breakdown(self, rollout: Rollout) -> CostBreakdown:
        """C of one rollout, by part."""
        return self.breakdown_of(rollout.turns)

    def breakdown_of(self, items: Iterable[Turn | Usage]) -> CostBreakdown:
        """Cost of some turns or ledgers, by part; costs of disjoint turns add up."""
        usages = _usages(items)
        fresh = sum(u.fresh for u in usages)
        # A token written to the cache was computed like a fresh one; a cached read takes no time.
        read = fresh + sum(u.write for u in usages)
        output = sum(u.output for u in usages)
        model_seconds = read / self.input_tokens_per_second + output / self.output_tokens_per_second
        tool_seconds = sum(min(u.tool_seconds, self.tool_timeout) for u in usages)
        hours = (model_seconds + tool_seconds) / 3600.0
        price = self.price
        return CostBreakdown(
            fresh=price.fresh * fresh / TOKENS_PER_UNIT,
            cached=price.cached_or_fresh * sum(u.cached for u in usages) / TOKENS_PER_UNIT,
            write=price.write_or_fresh * sum(u.write for u in usages) / TOKENS_PER_UNIT,
            output=price.output * output / TOKENS_PER_UNIT,
            time=self.value_of_time_usd_per_hour * hours,
            model_seconds=model_seconds,
            tool_seconds=tool_seconds,
        )
