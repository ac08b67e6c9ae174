"""From an ``ml_collections`` recipe and the command line to typed, frozen settings.

Each layer declares what can be set as a frozen dataclass. A recipe (``get_config(arg)`` in
``configs/``) fills a ``ConfigDict``; :func:`build` checks it against the dataclasses, key by key.
A key that no dataclass reads is an error that names it and the nearest known one, so there is no
option without effect.
"""

import ast
import copy
import dataclasses
import difflib
import importlib.util
import math
import pathlib
import traceback
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

from ml_collections import ConfigDict

from contrastive.errors import ConfigError, UserError, first_line

T = TypeVar("T")
Group: TypeAlias = Mapping[str, Any] | ConfigDict


def build(cls: type[T], config: Group, path: str = "config") -> T:
    """Turns a mapping into the dataclass ``cls``, checking every key and every type.

    Args:
      cls: A dataclass whose fields have defaults or are given by ``config``. A field may be a
        nested dataclass, or a union of dataclasses told apart by their ``kind`` field.
      config: A ``ConfigDict`` or plain mapping.
      path: How error messages call this mapping.

    Raises:
      ConfigError: A key is unknown to ``cls``, missing, or has a value of another type.
    """
    hints = typing.get_type_hints(cls)
    known = [field.name for field in dataclasses.fields(cls) if field.init]  # pyright: ignore[reportArgumentType]
    for key in config:
        if key not in known:
            raise ConfigError(f"{path}.{key} is not a known key{nearest(key, known)}")
    values = {
        key: _convert(hints[key], config[key], f"{path}.{key}") for key in known if key in config
    }
    try:
        return cls(**values)
    except TypeError as error:
        raise ConfigError(f"{path} is incomplete: {error}.") from error


def nearest(key: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, or the known keys where none is near; ends the sentence."""
    known = list(known)
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known here are {', '.join(sorted(known))}."


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, value, path)
    if origin is Literal:
        if value is None and "none" in arguments:
            return "none"  # as the command line reads the word
        if value not in arguments:
            raise ConfigError(
                f"{path} = {value!r} is not one of {', '.join(map(repr, arguments))}"
                f"{nearest(str(value), map(str, arguments))}"
            )
        return value
    if origin is tuple:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ConfigError(f"{path} = {value!r} has to be a tuple.")
        inner = arguments[0] if arguments[-1] is Ellipsis else None
        if inner is None and len(value) != len(arguments):
            raise ConfigError(f"{path} = {value!r} has to have {len(arguments)} entries.")
        hints = [inner or arguments[i] for i in range(len(value))]
        return tuple(
            _convert(h, v, f"{path}[{i}]")
            for i, (h, v) in enumerate(zip(hints, value, strict=True))
        )
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if isinstance(value, hint):
            return value
        if not isinstance(value, (Mapping, ConfigDict)):
            raise ConfigError(f"{path} = {value!r} has to be a group of keys.")
        return build(hint, typing.cast(Group, value), path)
    assert isinstance(hint, type)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**1000 else math.inf
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(
            f"{path} = {value!r} is a {type(value).__name__}; {hint.__name__} is expected."
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path} = {value!r} has to be a finite number.")
    return value


def _convert_union(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in choices:
        return None
    choices = tuple(choice for choice in choices if choice is not type(None))
    if not all(dataclasses.is_dataclass(choice) for choice in choices):
        if len(choices) == 1:
            return _convert(choices[0], value, path)
        for choice in choices:
            try:
                return _convert(choice, value, path)
            except ConfigError:
                continue
        raise ConfigError(f"{path} = {value!r} fits none of {choices}.")
    if any(isinstance(value, choice) for choice in choices):
        return value
    if len(choices) == 1:
        return _convert(choices[0], value, path)
    kinds = {choice.kind: choice for choice in choices}
    # Without a word about it the first kind is meant, which is the field's default.
    first = choices[0].kind
    kind = value.get("kind", first) if isinstance(value, (Mapping, ConfigDict)) else value
    if kind not in kinds:
        raise ConfigError(
            f"{path}.kind = {kind!r} is not one of {', '.join(map(repr, kinds))}"
            f"{nearest(str(kind), kinds)}"
        )
    return build(kinds[kind], typing.cast(Group, value), path)


def to_dict(settings: Any) -> dict[str, Any]:
    """The settings as plain nested dicts, ready for JSON."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, tuple):
            return tuple(plain(entry) for entry in value)
        return value

    return plain(settings)


def load_file(spec: str, *, function: str = "get_config", option: str = "--config=") -> Any:
    """Runs ``get_config`` of a recipe file.

    Args:
      spec: ``FILE.py`` or ``FILE.py:ARGUMENT``; the argument goes to the function.
      function: What the file has to define.
      option: How error messages call the place where ``spec`` was given.

    Raises:
      ConfigError: There is no such file, it has no such function, or it fails: the line is named.
    """
    name, _, argument = spec.partition(":")
    file = pathlib.Path(name)
    if not file.is_file():
        example = "; give a recipe such as --config=configs/emoji.py:clip" * ("config" in function)
        raise ConfigError(f"{option}{spec}: there is no file {name!r}{example}.")
    module_spec = importlib.util.spec_from_file_location(f"_recipe_{file.stem}", file)
    if module_spec is None or module_spec.loader is None:
        raise ConfigError(f"{option}{spec}: {name!r} is not a Python file.")
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
        if not hasattr(module, function):
            raise ConfigError(f"{option}{spec}: {name!r} does not define {function}(arg).")
        call = getattr(module, function)
        return call(argument) if argument else call()
    except UserError:
        raise
    except SyntaxError as error:
        raise ConfigError(f"{option}{spec}: line {error.lineno} is not Python: {error}.") from error
    except Exception as error:  # whatever a person's file does
        frames = traceback.extract_tb(error.__traceback__)
        lines = [
            str(f.lineno) for f in frames if pathlib.Path(f.filename).resolve() == file.resolve()
        ]
        where = f"line {lines[-1]} of {name}" if lines else name
        raise ConfigError(
            f"{option}{spec}: {where} fails ({type(error).__name__}: {first_line(error)}); see "
            f"what {function} takes there."
        ) from error


def resolve(cls: type[T], config: Group, overrides: Sequence[str]) -> T:
    """The recipe with every default filled in and the command line's overrides applied.

    Args:
      cls: The root dataclass.
      config: What the recipe returned.
      overrides: Arguments of the form ``--config.a.b=value``. Changing a ``kind`` starts that group
        from the defaults of the new kind.

    Raises:
      ConfigError: A key is unknown or a value cannot be read as the key's type.
    """
    kinds = [o for o in overrides if o.partition("=")[0].endswith(".kind")]
    for override in kinds:
        config = _switch_kind(cls, config, override)
    full = to_dict(build(cls, config))
    for override in (o for o in overrides if o not in kinds):
        keys, text = _split_override(override)
        group = _group_of(full, keys)
        group[keys[-1]] = _read_value(text, is_text=isinstance(group[keys[-1]], str))
    return build(cls, full)


def _read_value(text: str, *, is_text: bool) -> Any:
    """A Python literal, ``true``/``false``/``none`` in any case, or the text itself."""
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    if is_text:
        return text
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _split_override(override: str) -> tuple[list[str], str]:
    name, equals, value = override.removeprefix("--").partition("=")
    if not equals or not value:
        raise ConfigError(f"{override} has no value; write --{name}=VALUE.")
    return name.split(".")[1:], value


def _switch_kind(cls: type, config: Group, override: str) -> Group:
    """The recipe with one group started anew, unless it is of that kind already."""
    keys, kind = _split_override(override)
    _group_of(to_dict(build(cls, config)), keys)
    result = config.to_dict() if isinstance(config, ConfigDict) else copy.deepcopy(dict(config))
    group = result
    for key in keys[:-2]:
        group = group.setdefault(key, {})
    if group.get(keys[-2], {}).get("kind") != kind:
        group[keys[-2]] = {"kind": kind}
    return result


def _group_of(config: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """The group that holds the value that ``keys`` lead to."""
    group: Any = config
    for i, key in enumerate(keys):
        path = ".".join(["config", *keys[:i]])
        if not isinstance(group, dict):
            raise ConfigError(f"config.{'.'.join(keys)}: {path} is a value, not a group of keys.")
        if key not in group:
            raise ConfigError(f"{path}.{key} is not a known key{nearest(key, group)}")
        if i == len(keys) - 1:
            break
        group = group[key]
    if isinstance(group[keys[-1]], dict):
        inner = ", ".join(group[keys[-1]])
        raise ConfigError(f"config.{'.'.join(keys)} is a group of keys; set one of {inner}.")
    return group
