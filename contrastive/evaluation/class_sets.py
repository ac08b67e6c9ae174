"""What classes are called: sets that come with this package, and files of one's own."""

import dataclasses
import difflib
import functools
import importlib.resources
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32

from contrastive.data.captions import canonical
from contrastive.errors import DataError, UserError, first_line


@dataclasses.dataclass(frozen=True)
class ClassSet:
    """Classes and the prompts that go with them.

    A label is the number of a class in the largest set that it belongs to: those of ImageNet-A are
    200 of ImageNet's 0 … 999.

    Attributes:
      name: How results call the set.
      labels: The label of each class.
      names: What each is called in prompts.
      keys: How data may name it instead (WordNet ids, say); may be empty.
      templates: The name of the prompts that are usual with it.
    """

    name: str
    labels: tuple[int, ...]
    names: tuple[str, ...]
    keys: tuple[str, ...] = ()
    templates: str = "plain"

    def __post_init__(self) -> None:
        if not self.names:
            raise DataError(f"{self.name} names no classes.")
        if len(self.labels) != len(self.names) or len(self.keys) not in (0, len(self.names)):
            raise DataError(
                f"{self.name} has {len(self.names)} names and {len(self.keys)} keys; as many are "
                "needed."
            )
        if len(set(self.keys)) < len(self.keys):
            twice = next(key for i, key in enumerate(self.keys) if key in self.keys[:i])
            raise DataError(f"two classes of {self.name} have the key {twice!r}.")

    @property
    def named(self) -> dict[int, str]:
        """The name of every label."""
        return dict(zip(self.labels, self.names, strict=True))

    def labels_of(self, captions: Sequence[str]) -> Int32[np.ndarray, " captions"]:
        """The label of what each picture is said to show: a key, a label's number, or a name.

        An empty caption is a picture without a label, −1.

        Raises:
          DataError: A caption says none of these, a name that two classes share, or a number that
            is another class's name.
        """
        keys = dict(zip(self.keys, self.labels, strict=False))
        numbers = {str(label): label for label in self.labels}
        names: dict[str, int] = {}
        twice: set[str] = set()
        for label, name in zip(self.labels, self.names, strict=True):
            form = _plain(name)
            if form in names:
                twice.add(form)
            names[form] = label
        found = np.empty(len(captions), np.int32)
        for i, caption in enumerate(captions):
            text = caption.strip()
            label = -1 if not text else keys.get(text, numbers.get(text, names.get(_plain(text))))
            if label is None:
                raise DataError(self._unknown(text, [*keys, *names]))
            if _plain(text) in twice and text not in keys and text not in numbers:
                raise DataError(
                    f"two classes of {self.name} are called {text!r}: pictures of them have to be "
                    "named by the class's number or key."
                )
            if text not in keys and names.get(_plain(text), label) != label:
                raise DataError(
                    f"{text!r} is the number of one class of {self.name} and the name of another: "
                    "a .json file of {key: name} says which is meant."
                )
            found[i] = label
        return found

    def _unknown(self, text: str, known: Sequence[str]) -> str:
        close = difflib.get_close_matches(text, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        return (
            f"{text!r} is none of the {len(self.names)} classes of {self.name}, neither a name nor "
            f"a number nor a key{hint} --classes takes another set or a file of names."
        )


def _plain(name: str) -> str:
    return canonical(name.replace("_", " "))


def class_set(name: str) -> ClassSet:
    """A set of this package by its name, or a file.

    A ``.txt`` file has a name a line: those of the labels 0, 1, 2, …. A ``.json`` file has a list
    of names, an object ``{key: name}``, or ``{"names": […], "keys": […], "templates": "…"}``.

    Raises:
      UserError: It is neither.
      DataError: The file says something else.
    """
    sets = _shipped()["sets"]
    path = pathlib.Path(name)
    if name in sets:
        return _of(name, sets)
    if path.suffix not in (".txt", ".json"):
        close = difflib.get_close_matches(name, sets, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise UserError(
            f"{name!r} is no set of classes{hint}: give one of {', '.join(sorted(sets))}, or a "
            ".txt or .json file of names."
        )
    if not path.is_file():
        raise UserError(f"there is no file {path} of class names.")
    if path.suffix == ".txt":
        lines = read_lines(path)
        return ClassSet(path.stem, tuple(range(len(lines))), lines)
    return _from_json(path)


def read_lines(path: pathlib.Path) -> tuple[str, ...]:
    """The lines of a file that are not blank, without the space around them.

    Raises:
      DataError: The file is not UTF-8.
    """
    return tuple(line.strip() for line in _read(path).splitlines() if line.strip())


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error}.") from error


def _from_json(path: pathlib.Path) -> ClassSet:
    try:
        given = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {first_line(error)}.") from error
    if isinstance(given, list):
        given = {"names": given}
    elif isinstance(given, dict) and "names" not in given:
        given = {"names": list(given.values()), "keys": list(given)}
    names, keys = (given["names"], given.get("keys", [])) if isinstance(given, dict) else ((), ())
    if not all(isinstance(x, list) and all(isinstance(y, str) for y in x) for x in (names, keys)):
        raise DataError(f'{path}: expected a list of names, {{key: name}}, or {{"names": […]}}.')
    templates = str(given.get("templates", "plain"))
    return ClassSet(path.stem, tuple(range(len(names))), tuple(names), tuple(keys), templates)


def _of(name: str, sets: dict[str, Any]) -> ClassSet:
    given = sets[name]
    if "of" not in given:
        names = given["names"]
        keys = tuple(given.get("keys", ()))
        return ClassSet(name, tuple(range(len(names))), tuple(names), keys, given["templates"])
    whole = _of(given["of"], sets)
    wanted = set(given.get("keys", whole.keys))
    kept = [i for i, key in enumerate(whole.keys) if key in wanted]
    return ClassSet(
        name,
        tuple(whole.labels[i] for i in kept),
        tuple(whole.names[i] for i in kept),
        tuple(whole.keys[i] for i in kept),
        whole.templates,
    )


def shipped_templates() -> dict[str, tuple[str, ...]]:
    """The prompts that come with this package, by name."""
    return {name: tuple(lines) for name, lines in _shipped()["templates"].items()}


@functools.cache
def _shipped() -> dict[str, Any]:
    file = importlib.resources.files("contrastive.evaluation") / "class_sets" / "class_sets.json"
    return json.loads(file.read_text(encoding="utf-8"))
