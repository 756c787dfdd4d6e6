"""Price tables: what one million tokens cost, per model, with source and date.

Prices change (GPT-5.6 Sol went from $5/$30 to $4/$20 within two months), so every entry is dated,
old entries stay, and a run records the `price_table_hash` it was priced with. An unknown model is
an error, never a price of zero.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from frontrunner.errors import UserError

TOKENS_PER_UNIT = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """List price of one model, USD per million tokens, from one date on.

    `Price("Kimi K3", 3.0, 15.0, "2026-09", "list price", cached=0.30)`.
    """

    model: str
    fresh: float
    """Prompt tokens that no cache held."""
    output: float
    date: str
    """First month or day (ISO 8601) on which this entry is known to hold."""
    source: str
    cached: float | None = None
    """Prompt tokens read from the prefix cache; None = not published, charged as fresh."""
    write: float | None = None
    """Prompt tokens written to the cache; None = no surcharge published, charged as fresh."""

    def __post_init__(self) -> None:
        for name in ("fresh", "output", "cached", "write"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < float("inf"):
                raise UserError(
                    f"The price of {self.model} has {name} = {value}; "
                    "it must be a number of USD per million tokens, 0 or more."
                )

    @property
    def cached_or_fresh(self) -> float:
        return self.fresh if self.cached is None else self.cached

    @property
    def write_or_fresh(self) -> float:
        return self.fresh if self.write is None else self.write

    @property
    def note(self) -> str:
        """One sentence for reports: what is charged, since when, and what is assumed."""
        text = (
            f"{self.model}: ${self.fresh:g} fresh input, ${self.cached_or_fresh:g} cached input, "
            f"${self.output:g} output per million tokens ({self.source}, {self.date})"
        )
        if self.cached is None:
            text += "; no cached price is published, so cached tokens are charged as fresh"
        return text + "."


_LIST = "public list price"

PRICES: tuple[Price, ...] = (
    Price("Kimi K3", 3.00, 15.00, "2026-09", _LIST, cached=0.30),
    Price("Kimi K2.7 Code", 0.95, 4.00, "2026-09", _LIST, cached=0.19),
    Price("GPT-5.5", 5.00, 30.00, "2026-09", _LIST, cached=0.50),
    Price("GPT-5.6 Sol", 5.00, 30.00, "2026-07", "public list price at release"),
    Price("GPT-5.6 Sol", 4.00, 20.00, "2026-09", "public list price after the cut"),
    Price("GPT-6 Astra", 10.00, 50.00, "2026-09", "public list price up to 272k context"),
    Price("Fable 5", 10.00, 50.00, "2026-09", _LIST),
    Price("Opus 5", 5.00, 25.00, "2026-09", _LIST),
    Price("Grok 4.5", 2.00, 6.00, "2026-09", _LIST),
)
"""Oldest entry of a model first."""


def _key(model: str) -> str:
    return "".join(c for c in model.lower() if c.isalnum())


def known_models(prices: Iterable[Price] = PRICES) -> list[str]:
    """Model names in table order, each once."""
    return list(dict.fromkeys(p.model for p in prices))


def find_price(model: str, date: str | None = None, prices: Iterable[Price] = PRICES) -> Price:
    """The newest entry of `model`, or the one in force on `date` (ISO: `2026-08` or `2026-08-14`).

    Case, spaces and punctuation in the name do not matter: `kimi-k3` is `Kimi K3`.
    Raises `UserError` for an unknown model, or a date before the first entry.
    """
    table = tuple(prices)
    entries = sorted((p for p in table if _key(p.model) == _key(model)), key=lambda p: p.date)
    if not entries:
        names = ", ".join(known_models(table))
        raise UserError(
            f"No price is known for model {model!r}. Known models: {names}. "
            "Set cost.price to one of these."
        )
    if date is None:
        return entries[-1]
    current = [p for p in entries if p.date <= date[: len(p.date)]]
    if not current:
        raise UserError(
            f"No price of {entries[0].model} is known on {date}; the first is of {entries[0].date}."
        )
    return current[-1]


def price_table_hash(prices: Iterable[Price] = PRICES) -> str:
    """Twelve hex digits that change when any price, date or source in the table changes."""
    rows = [asdict(p) for p in prices]
    text = json.dumps(rows, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
