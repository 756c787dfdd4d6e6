"""The scripted expert and its corpus: what the base policy learns from."""

import random
from pathlib import Path

import pytest

from frontrunner.envs import expert
from frontrunner.envs.corpus import CorpusFunction, collect, fingerprint, functions_of
from frontrunner.envs.tools import parse

SOURCE = """def clip(value, low, high):
    if value < low and low is not None:
        return low
    total = value + 1
    return high if total > high else value
"""
FUNCTION = CorpusFunction("pkg.module", "clip", SOURCE)


def examples(
    effort: str, number: int = 300, styles: dict[str, expert.Style] = expert.STYLES
) -> list[expert.Trajectory]:
    rng = random.Random(0)
    made = [expert.trajectory(rng, FUNCTION, effort, styles[effort]) for _ in range(number)]
    return [m for m in made if m]


@pytest.mark.parametrize("effort", expert.STYLES)
def test_every_trajectory_is_made_of_commands_that_work(effort: str) -> None:
    made = examples(effort)
    assert len(made) > 200
    for example in made:
        assert "`clip`" in example.user or "clip" in example.user
        assert example.turns[-1] == ("submit", "", True)
        for turn in example.turns:
            assert parse(turn.text) is not None
            assert not (turn.learn and turn.observation.startswith("error")), turn


def test_edits_to_imitate_are_right_and_others_occur_at_every_level() -> None:
    for effort in expert.STYLES:
        made = examples(effort)
        for example in made:
            taught = [t.text for t in example.turns if t.learn and t.text.startswith("edit")]
            assert len(set(taught)) <= 1
        wrong = [t for example in made for t in example.turns if not t.learn]
        assert any(t.observation.startswith("error") for t in wrong)
        assert any(not t.observation.startswith("error") for t in wrong)


@pytest.mark.parametrize("effort", expert.STYLES)
def test_a_careless_hand_skips_the_edit_as_often_as_it_says_and_wanders(effort: str) -> None:
    def unedited(examples: list[expert.Trajectory]) -> float:
        skips = [all(not t.text.startswith("edit") for t in e.turns) for e in examples]
        return sum(skips) / len(skips)

    careful, careless = examples(effort), examples(effort, styles=expert.CARELESS)
    assert unedited(careful) == 0.0
    assert abs(unedited(careless) - expert.CARELESS[effort].skip) < 0.1
    looks = [sum(t.text in ("list", "view") for t in e.turns) for e in careless]
    assert max(looks) > 2


def test_a_drill_repairs_every_bug() -> None:
    rng = random.Random(0)
    made = [expert.trajectory(rng, FUNCTION, "low", expert.DRILL) for _ in range(100)]
    edits = [[t for t in m.turns if t.text.startswith("edit")] for m in made if m]
    assert max(map(len, edits)) == 3  # lines of the function that can carry a bug
    assert all(t.learn for found in edits for t in found)


def test_higher_effort_works_longer() -> None:
    turns = {e: sum(len(x.turns) for x in examples(e)) / len(examples(e)) for e in expert.STYLES}
    assert turns["low"] * 1.15 < turns["medium"]
    assert turns["medium"] * 1.15 < turns["high"]


def test_tests_pass_exactly_when_the_bug_is_gone() -> None:
    seen = set()
    for example in examples("high"):
        for number, turn in enumerate(example.turns):
            if turn.text != "test":
                continue
            before = example.turns[:number]
            made = [t for t in before if t.text.startswith("edit") and "error" not in t.observation]
            if len(made) == sum(t.text == "undo" for t in before):
                assert turn.observation.startswith("failed")
            seen.add(turn.observation.split()[0])
    assert seen == {"passed", "failed"}


def test_fingerprint_ignores_names_and_comments() -> None:
    renamed = SOURCE.replace("value", "x").replace("low", "lo").replace("clip", "clamp")
    assert fingerprint(SOURCE) == fingerprint(renamed + "# remark\n")
    assert fingerprint(SOURCE) != fingerprint(SOURCE.replace("<", ">"))


def test_held_out_packages_leave_no_copy_in_the_corpus() -> None:
    corpus = collect(["toolz"], held_out=[])
    assert len(corpus) > 20
    assert collect(["toolz"], held_out=["toolz"]) == []


def test_functions_that_do_not_parse_alone_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text('def documented():\n    """Only words."""\n\n\n' + SOURCE)
    assert [f.qualname for f in functions_of(file, "m", 2, 20)] == ["clip"]
    file.write_text("def broken(:\n")
    assert functions_of(file, "m", 1, 20) == []
