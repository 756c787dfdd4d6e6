import pytest

from frontrunner.effort.ladder import Ladder, default_ladder
from frontrunner.errors import UserError
from frontrunner.types import EffortLevel


def ladder(*lambdas: float | None) -> Ladder:
    return Ladder(tuple(EffortLevel(f"e{i}", "", x) for i, x in enumerate(lambdas)))


def test_default_levels_rise_and_have_no_lambda_yet() -> None:
    levels = default_ladder()
    assert levels.names == ("low", "medium", "high") and not levels.fitted
    assert levels.index("high") == 2 and levels["low"].prompt
    with pytest.raises(UserError, match="low"):
        _ = levels.lambdas


@pytest.mark.parametrize("lambdas", [(3.0,), (3.0, 2.0), (1000.0, 10.0, 1.0, 0.1, 0.01)])
def test_any_number_of_levels_is_legal(lambdas: tuple[float, ...]) -> None:
    assert list(ladder(*lambdas).lambdas.values()) == list(lambdas)


@pytest.mark.parametrize("lambdas", [(3.0, 2.1), (1.0, 1.0), (1.0, 2.0)])
def test_levels_that_would_merge_are_refused_by_name(lambdas: tuple[float, float]) -> None:
    with pytest.raises(UserError, match=r"'e0' to 'e1'.*merge") as error:
        ladder(*lambdas)
    assert f"{lambdas[0]:g} and {lambdas[1]:g}" in str(error.value)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_lambda_is_positive_and_finite(value: float) -> None:
    with pytest.raises(UserError, match="e0"):
        ladder(value)


def test_lambda_is_set_everywhere_or_nowhere() -> None:
    with pytest.raises(UserError, match="e1"):
        ladder(1.0, None)
    with pytest.raises(UserError, match="medium"):
        default_ladder().with_lambdas({"low": 1.0, "high": 0.1})


def test_names_are_unique_and_usable_as_metric_keys() -> None:
    with pytest.raises(UserError, match="twice"):
        Ladder((EffortLevel("a", ""), EffortLevel("a", "")))
    with pytest.raises(UserError, match="cannot name"):
        Ladder((EffortLevel("a/b", ""),))
    with pytest.raises(UserError, match="empty"):
        Ladder(())
    with pytest.raises(UserError, match=r"'max'.*low, medium, high"):
        default_ladder().index("max")
