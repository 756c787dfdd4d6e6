import dataclasses

import pytest

from frontrunner.effort.price import PRICES, Price, find_price, known_models, price_table_hash
from frontrunner.errors import UserError


def test_names_are_found_whatever_their_case_and_punctuation() -> None:
    assert find_price("kimi-k3") == find_price("Kimi K3")
    assert find_price("gpt-5.5").output == 30.0


def test_the_newest_entry_wins_unless_a_date_is_given() -> None:
    assert (find_price("GPT-5.6 Sol").fresh, find_price("GPT-5.6 Sol").output) == (4.0, 20.0)
    old = find_price("GPT-5.6 Sol", "2026-08-14")
    assert (old.fresh, old.output) == (5.0, 30.0)
    with pytest.raises(UserError, match="2020-01"):
        find_price("GPT-5.6 Sol", "2020-01")


def test_an_unknown_model_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="Kimi K3") as error:
        find_price("no-such-model")
    assert all(name in str(error.value) for name in known_models())


def test_an_unpublished_cached_price_is_charged_as_fresh_and_says_so() -> None:
    opus = find_price("Opus 5")
    assert opus.cached is None and opus.cached_or_fresh == opus.fresh == 5.0
    assert "charged as fresh" in opus.note
    assert "charged as fresh" not in find_price("Kimi K3").note


def test_the_table_hash_notices_any_change() -> None:
    changed = (dataclasses.replace(PRICES[0], output=15.01), *PRICES[1:])
    assert price_table_hash() == price_table_hash(PRICES) != price_table_hash(changed)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_price_must_be_a_number(bad: float) -> None:
    with pytest.raises(UserError, match="mine"):
        Price("mine", bad, 1.0, "2026-01", "test")
