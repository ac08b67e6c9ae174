"""The strict settings: unknown, mistyped and contradictory keys are errors that name the key."""

import dataclasses
from typing import Literal

import pytest
from ml_collections import ConfigDict

from contrastive import config as config_lib
from contrastive.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    kind: Literal["round"] = "round"
    radius: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Square:
    kind: Literal["square"] = "square"
    side: int = 2
    colours: tuple[str, ...] = ("red",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Root:
    steps: int
    limit: float | None = None
    stop: int | None = None
    fast: bool = False
    effort: Literal["none", "full"] = "full"
    shape: Round | Square = dataclasses.field(default_factory=Round)


def build(**values):
    return config_lib.build(Root, ConfigDict(values))


def resolve(*overrides, **values):
    return config_lib.resolve(Root, ConfigDict({"steps": 3, **values}), overrides)


def test_the_word_none_is_a_value_where_it_is_one_of_the_choices():
    assert resolve("--config.effort=none", "--config.limit=none").effort == "none"


def test_defaults_fill_what_the_recipe_leaves_out():
    assert build(steps=3) == Root(steps=3)


def test_an_integer_is_taken_where_a_float_is_expected_and_stored_as_float():
    limit = build(steps=3, limit=2).limit
    assert limit == 2.0
    assert isinstance(limit, float)


@pytest.mark.parametrize(
    "values, words",
    [
        ({"step": 3}, ["config.step ", "did you mean 'steps'"]),
        ({"steps": 3, "shape": {"kind": "round", "side": 2}}, ["config.shape.side", "radius"]),
        ({"steps": "3"}, ["config.steps", "'3'", "int is expected"]),
        ({"steps": True}, ["config.steps", "bool", "int is expected"]),
        ({"steps": 3, "fast": 1}, ["config.fast", "bool is expected"]),
        ({"steps": 3, "shape": {"kind": "sqare"}}, ["config.shape.kind", "did you mean 'square'"]),
        ({"steps": 3, "shape": {"kind": "square", "colours": "red"}}, ["colours", "tuple"]),
        ({"fast": True}, ["config is incomplete", "steps"]),
        ({"steps": 3, "shape": 7}, ["config.shape"]),
    ],
)
def test_bad_keys_and_values_are_named(values, words):
    with pytest.raises(ConfigError) as caught:
        build(**values)
    for word in words:
        assert word in str(caught.value)


def test_overrides_are_read_as_the_type_of_the_key():
    root = resolve("--config.steps=7", "--config.limit=2", "--config.fast=true", "--config.stop=4")
    assert root == Root(steps=7, limit=2.0, fast=True, stop=4)


def test_an_override_of_a_tuple():
    root = resolve("--config.shape.colours=('red','blue')", shape={"kind": "square"})
    assert root.shape == Square(colours=("red", "blue"))


def test_changing_the_kind_starts_from_the_defaults_of_the_new_kind():
    root = resolve(
        "--config.shape.side=5",
        "--config.shape.kind=square",
        shape={"radius": 3.0, "kind": "round"},
    )
    assert root.shape == Square(side=5)


def test_repeating_the_kind_keeps_what_the_recipe_says():
    root = resolve("--config.shape.kind=square", shape={"kind": "square", "side": 9})
    assert root.shape == Square(side=9)


@pytest.mark.parametrize(
    "override, words",
    [
        ("--config.stepz=3", ["config.stepz", "did you mean 'steps'"]),
        ("--config.steps=many", ["steps", "many"]),
        ("--config.shape=3", ["config.shape", "group"]),
        ("--config.steps.more=3", ["config.steps", "not a group"]),
        ("--config.steps", ["has no value"]),
        ("--config.shape.side=3", ["config.shape.side", "radius"]),
    ],
)
def test_bad_overrides_are_named(override, words):
    with pytest.raises(ConfigError) as caught:
        resolve(override)
    for word in words:
        assert word in str(caught.value)


def test_settings_survive_the_way_through_json():
    root = resolve("--config.shape.kind=square")
    assert config_lib.build(Root, config_lib.to_dict(root)) == root


def test_recipe_files(tmp_path):
    file = tmp_path / "recipe.py"
    file.write_text(
        "from ml_collections import ConfigDict\n"
        "def get_config(arg='1'):\n    return ConfigDict({'steps': int(arg)})\n"
    )
    assert config_lib.load_file(f"{file}:5").steps == 5
    assert config_lib.load_file(str(file)).steps == 1
    with pytest.raises(ConfigError, match="no file"):
        config_lib.load_file(str(tmp_path / "missing.py"))
    file.write_text("def get_config(:\n")
    with pytest.raises(ConfigError, match="line 1"):
        config_lib.load_file(str(file))
    file.write_text("x = 1\n")
    file.write_text("def get_config(kind):\n    return {}[kind]\n")
    with pytest.raises(ConfigError, match=r"line 2 of .*recipe.py fails .KeyError: 'x'."):
        config_lib.load_file(f"{file}:x")
    file.write_text("def other(): ...\n")
    with pytest.raises(ConfigError, match="does not define get_config"):
        config_lib.load_file(str(file))
