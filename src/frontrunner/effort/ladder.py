"""The effort ladder: levels in order of rising effort, each with its price of cost, lambda.

Two levels with the same lambda have the same objective, whatever their prompts say, and RL merges
them. So lambda must fall from one level to the next by a ratio of at least `MIN_RATIO`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from frontrunner.errors import UserError
from frontrunner.types import EffortLevel

MIN_RATIO = 1.5
"""Smallest lambda_e / lambda_(e+1) of neighbouring levels."""

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Ladder:
    """Effort levels, lowest effort first. Any number of levels is legal.

    Raises `UserError` if names repeat, if lambda is set on some levels only, or if the values are
    not positive and falling by the ratio `MIN_RATIO` or more.
    """

    levels: tuple[EffortLevel, ...]

    def __post_init__(self) -> None:
        if not self.levels:
            raise UserError("The effort ladder is empty; give it at least one level.")
        names = [level.name for level in self.levels]
        for name in names:
            if not name or "/" in name or name != name.strip():
                raise UserError(
                    f"{name!r} cannot name an effort level: use a word without '/' or outer spaces."
                )
            if names.count(name) > 1:
                raise UserError(f"Effort level {name!r} appears twice in the ladder; rename one.")
        unset = [level.name for level in self.levels if level.lambda_ is None]
        if not unset:
            check_lambdas({level.name: level.lambda_ or 0.0 for level in self.levels})
        elif len(unset) < len(self.levels):
            raise UserError(
                f"lambda is set on some effort levels but not on {', '.join(unset)}; "
                "set it on all levels, or on none to fit it from the base model's frontier."
            )

    @classmethod
    def build(
        cls, names: Sequence[str], prompts: Sequence[str] = (), lambdas: Sequence[float] = ()
    ) -> Ladder:
        """From parallel lists, lowest effort first; no prompts means the default wording."""
        if not prompts:
            ladder = default_ladder(names)
        else:
            ladder = cls(tuple(EffortLevel(n, p) for n, p in zip(names, prompts, strict=True)))
        if not lambdas:
            return ladder
        return ladder.with_lambdas(dict(zip(names, lambdas, strict=True)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(level.name for level in self.levels)

    @property
    def fitted(self) -> bool:
        """Every level has its lambda."""
        return all(level.lambda_ is not None for level in self.levels)

    @property
    def lambdas(self) -> dict[str, float]:
        """lambda by level name, 1/USD. Raises `UserError` before they are fitted."""
        values: dict[str, float] = {}
        for level in self.levels:
            if level.lambda_ is None:
                raise UserError(
                    f"Effort level {level.name!r} has no lambda yet; "
                    "fit it from the base model's frontier, or set it in the configuration."
                )
            values[level.name] = level.lambda_
        return values

    def with_lambdas(self, lambdas: Mapping[str, float]) -> Ladder:
        """The same ladder with these prices of cost. Raises `UserError` for a missing level."""
        missing = [name for name in self.names if name not in lambdas]
        if missing:
            raise UserError(f"No lambda is given for effort level {', '.join(missing)}.")
        return Ladder(tuple(replace(e, lambda_=float(lambdas[e.name])) for e in self.levels))

    def index(self, name: str) -> int:
        """Position of a level, 0 for the lowest effort. Raises `UserError` if there is none."""
        if name not in self.names:
            raise UserError(f"No effort level {name!r}; the ladder has {', '.join(self.names)}.")
        return self.names.index(name)

    def __getitem__(self, name: str) -> EffortLevel:
        return self.levels[self.index(name)]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[EffortLevel]:
        return iter(self.levels)

    def __len__(self) -> int:
        return len(self.levels)


def check_lambdas(lambdas: Mapping[str, float]) -> None:
    """Raises `UserError` naming the levels at fault. `lambdas` is in order of rising effort."""
    for name, value in lambdas.items():
        if not 0.0 < value < float("inf"):
            raise UserError(
                f"lambda of effort level {name!r} is {value:g}; it must be positive and finite, "
                "or cost would not matter at that level."
            )
    for (lower, a), (higher, b) in pairwise(lambdas.items()):
        if a < MIN_RATIO * b * (1.0 - _ROUNDING):
            raise UserError(
                f"lambda must fall by a ratio of at least {MIN_RATIO:g} from {lower!r} to "
                f"{higher!r}, but is {a:g} and {b:g} (ratio {a / b:.2f}); levels with close lambda "
                f"have the same objective and merge. Lower {higher!r} to {a / MIN_RATIO:g} or less."
            )


DEFAULT_PROMPTS: Mapping[str, str] = {
    "low": "Reasoning effort: low. Be quick: make the likely fix and submit.",
    "medium": "Reasoning effort: medium. Look at the relevant code, fix it, check it, and submit.",
    "high": "Reasoning effort: high. Be thorough: explore, test, and verify before you submit.",
}


def default_ladder(names: Sequence[str] = ("low", "medium", "high")) -> Ladder:
    """The default levels with their wording and no lambda yet.

    Raises `UserError` for a name without a default wording.
    """
    for name in names:
        if name not in DEFAULT_PROMPTS:
            raise UserError(
                f"Effort level {name!r} has no default wording; give its prompt, "
                f"or use {', '.join(DEFAULT_PROMPTS)}."
            )
    return Ladder(tuple(EffortLevel(name, DEFAULT_PROMPTS[name]) for name in names))
