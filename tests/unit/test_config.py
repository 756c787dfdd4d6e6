"""The one tree of knobs: what it accepts, how it refuses, and that every knob is real."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from project_tree import PACKAGE, ROOT, parse, source_files

from frontrunner.config import (
    Config,
    Section,
    build,
    config_hash,
    load,
    parse_override,
    read_tree,
)
from frontrunner.errors import UserError


def write(folder: Path, text: str, name: str = "recipe.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(tree: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        build(tree, "recipe.toml")
    return str(caught.value)


def knobs() -> list[tuple[str, str]]:
    return [(section, key) for section, keys in Config().model_dump().items() for key in keys]


def test_a_recipe_names_only_what_differs(tmp_path: Path) -> None:
    config = load(write(tmp_path, "[train]\nsteps = 3\n"))
    assert config.train.steps == 3
    assert config == Config(train=Config().train.model_copy(update={"steps": 3}))


def test_an_empty_recipe_is_the_default(tmp_path: Path) -> None:
    assert load(write(tmp_path, "")) == Config()


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ({"train": {"stesp": 1}}, "unknown key train.stesp; did you mean train.steps?"),
        ({"train": {"temperature": 1.0}}, "did you mean rollout.temperature?"),
        ({"trian": {}}, "unknown section [trian]; did you mean [train]?"),
        ({"qqq": {}}, "unknown section [qqq]"),
    ],
)
def test_unknown_names_suggest_the_nearest_legal_one(tree: dict[str, Any], sentence: str) -> None:
    message = refusal(tree)
    assert message.startswith("recipe.toml: ")
    assert sentence in message


@pytest.mark.parametrize(
    ("tree", "named"),
    [
        ({"train": {"steps": "ten"}}, "train.steps"),
        ({"train": {"steps": 1.5}}, "train.steps"),
        ({"train": {"steps": True}}, "train.steps"),
        ({"train": {"steps": -1}}, "train.steps"),
        ({"train": {"learning_rate": float("nan")}}, "train.learning_rate"),
        ({"train": {"learning_rate": float("inf")}}, "train.learning_rate"),
        ({"env": {"help": 1}}, "env.help"),
        ({"algo": {"baseline": "median"}}, "length_weighted"),
        ({"effort": {"levels": []}}, "effort.levels"),
        ({"effort": {"levels": "low"}}, "effort.levels"),
        ({"effort": {"levels": ["low", 3]}}, "effort.levels.1"),
        ({"effort": {"min_ratio": 1.2}}, "effort.min_ratio"),
        ({"train": 3}, "train"),
    ],
)
def test_wrong_values_name_the_key(tree: dict[str, Any], named: str) -> None:
    assert named in refusal(tree)


def test_every_problem_is_reported_at_once() -> None:
    message = refusal({"train": {"steps": -1}, "env": {"hlp": True}, "run": {"seed": "x"}})
    assert all(name in message for name in ("train.steps", "env.hlp", "run.seed"))


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ({"algo": {"loss": "sequence_mean"}}, "token-sum"),
        ({"effort": {"lambdas": [1.0]}}, "effort.lambdas has 1 entries for 3 levels"),
        ({"effort": {"prompts": ["a", "b"]}}, "effort.prompts has 2 entries for 3 levels"),
        ({"rollout": {"max_new_tokens": 4096}}, "rollout.max_new_tokens"),
    ],
)
def test_values_that_do_not_go_together_are_refused(tree: dict[str, Any], sentence: str) -> None:
    message = refusal(tree)
    assert sentence in message
    assert "(got" not in message


def test_sequence_mean_goes_with_an_unweighted_baseline() -> None:
    config = build({"algo": {"loss": "sequence_mean", "baseline": "rloo"}}, "recipe.toml")
    assert config.algo.loss == "sequence_mean"


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("train.steps=10", ("train", "steps", 10)),
        ("env.tasks=quickstart", ("env", "tasks", "quickstart")),
        ("env.tasks='my set'", ("env", "tasks", "my set")),
        ("env.help=false", ("env", "help", False)),
        ("effort.lambdas=[3, 2.0]", ("effort", "lambdas", [3, 2.0])),
        ("run.directory=a=b", ("run", "directory", "a=b")),
        ("run.directory=", ("run", "directory", "")),
    ],
)
def test_overrides_are_toml_or_bare_words(text: str, parsed: tuple[str, str, Any]) -> None:
    assert parse_override(text) == parsed


@pytest.mark.parametrize(
    "text", ["steps", "train.steps", "train=3", ".steps=1", "train.=1", "=1", ""]
)
def test_bad_override_syntax_shows_the_right_one(text: str) -> None:
    with pytest.raises(UserError, match=r"section\.key=value"):
        parse_override(text)


def test_overrides_win_over_the_recipe(tmp_path: Path) -> None:
    recipe = write(tmp_path, "[train]\nsteps = 3\n")
    assert load(recipe, ["train.steps=5", "train.steps=7"]).train.steps == 7


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("[train", "not valid TOML"), ("steps = 3", "section"), ("train = [1]", "section")],
)
def test_a_broken_recipe_names_the_file(tmp_path: Path, text: str, sentence: str) -> None:
    recipe = write(tmp_path, text)
    with pytest.raises(UserError, match=sentence) as caught:
        load(recipe)
    assert str(recipe) in str(caught.value)


def test_a_missing_recipe_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such recipe"):
        read_tree(tmp_path / "absent.toml")


def test_lists_become_tuples_so_that_a_config_can_be_compared_and_hashed() -> None:
    config = build({"effort": {"lambdas": [3, 2, 1]}}, "recipe.toml")
    assert config.effort.lambdas == (3.0, 2.0, 1.0)
    assert hash(config) == hash(build({"effort": {"lambdas": (3.0, 2.0, 1.0)}}, "recipe.toml"))


configs = st.fixed_dictionaries(
    {
        "run": st.fixed_dictionaries({"seed": st.integers(0, 2**31), "directory": st.text()}),
        "effort": st.lists(st.text(), min_size=1, max_size=5).map(
            lambda names: {"levels": names, "prompts": [n + "!" for n in names]}
        ),
        "cost": st.fixed_dictionaries(
            {"value_of_time": st.floats(0, allow_infinity=False, allow_nan=False)}
        ),
        "train": st.fixed_dictionaries(
            {
                "steps": st.integers(0, 10**6),
                "learning_rate": st.floats(0, exclude_min=True, allow_infinity=False),
            }
        ),
        "env": st.fixed_dictionaries({"help": st.booleans()}),
    }
)


@given(configs)
def test_a_config_survives_json(tree: dict[str, Any]) -> None:
    config = build(tree, "recipe.toml")
    again = build(json.loads(config.model_dump_json()), "config.json")
    assert again == config
    assert config_hash(again) == config_hash(config)


def test_a_run_loads_its_own_config(tmp_path: Path) -> None:
    config = load(ROOT / "recipes" / "quickstart.toml", ["train.steps=2"])
    saved = write(tmp_path, config.model_dump_json(), "config.json")
    assert load(saved) == config


def test_the_hash_ignores_where_a_run_is_written_and_nothing_else() -> None:
    base = config_hash(Config())
    assert config_hash(build({"run": {"directory": "elsewhere"}}, "")) == base
    changed = {"run": {"seed": 1}, "train": {"steps": 1}, "effort": {"levels": ["x"]}}
    for section, values in changed.items():
        assert config_hash(build({section: values}, "")) != base


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda p: p.stem)
def test_every_shipped_recipe_is_valid(path: Path) -> None:
    assert load(path).train.steps > 0


def test_every_knob_and_section_is_documented() -> None:
    documented = docs_tool().docstrings()
    for section, field in Config.model_fields.items():
        kind = field.annotation
        assert isinstance(kind, type)
        assert issubclass(kind, Section)
        assert kind.__doc__, f"[{section}] has no docstring"
        missing = set(kind.model_fields) - set(documented[kind.__name__])
        assert not missing, f"[{section}] has keys without a docstring: {sorted(missing)}"


def test_every_knob_is_read_somewhere() -> None:
    read = {
        node.attr
        for path in source_files()
        if path != PACKAGE / "config.py"
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    unused = [f"{section}.{key}" for section, key in knobs() if key not in read]
    assert not unused, f"knobs without effect: {unused}"


def test_the_reference_page_is_up_to_date() -> None:
    tool = docs_tool()
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run `make docs`"


def docs_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("config_docs", ROOT / "tools" / "config_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("key", ["top_k", "group_size"])
def test_what_would_train_nothing_is_refused_but_can_be_measured(key: str) -> None:
    assert f"rollout.{key} = 1" in refusal({"rollout": {key: 1}})
    build({"rollout": {key: 1}, "train": {"steps": 0}}, "recipe.toml")
