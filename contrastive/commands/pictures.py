"""Picture files of a folder, for commands that read your own."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from contrastive.data.records import SampleError
from contrastive.errors import UserError
from contrastive.inference import Model, Picture, read_picture

SUFFIXES = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Unit rows with the names they belong to, in a stable order."""

    rows: np.ndarray  # float32 [n, dim]
    names: Sequence[str]
    skipped: Sequence[tuple[str, str]]  # (name, reason) of what could not be read


def picture_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """All pictures below a folder, ordered by path.

    Raises:
      UserError: It is no folder, or there are none.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder of pictures.")
    files = [path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES]
    if not files:
        raise UserError(f"{folder} holds no pictures ({', '.join(SUFFIXES)}).")
    return sorted(files)


def encode_folder(model: Model, folder: pathlib.Path) -> Encoded:
    """Encodes every picture below a folder; what cannot be read is skipped and named.

    Raises:
      UserError: There are no pictures, or none can be read.
    """
    files = picture_files(folder)
    items = ((printable(path.relative_to(folder)), lambda path=path: path) for path in files)
    return encode_pictures(model, items, str(folder))


def encode_pictures(
    model: Model, items: Iterable[tuple[str, Callable[[], Picture]]], where: str
) -> Encoded:
    """Encodes pictures a batch at a time, so that memory does not grow with their number.

    Args:
      model: Encodes them.
      items: A name, and what gives the picture (and may raise ``SampleError``).
      where: What messages call the collection.

    Raises:
      UserError: None can be read.
    """
    names: list[str] = []
    skipped: list[tuple[str, str]] = []
    batches = _batches(items, model, names, skipped)
    rows = [model.encode_image(batch) for batch in batches]
    if not rows:
        first = f" The first is {skipped[0][0]}: {skipped[0][1]}." if skipped else ""
        raise UserError(f"none of the {len(skipped)} pictures in {where} can be read.{first}")
    return Encoded(np.concatenate(rows), names, skipped)


def _batches(
    items: Iterable[tuple[str, Callable[[], Picture]]],
    model: Model,
    names: list[str],
    skipped: list[tuple[str, str]],
) -> Iterator[np.ndarray]:
    batch: list[np.ndarray] = []
    data = model.recipe.data
    for name, get in items:
        try:
            batch.append(read_picture(get(), data))
        except SampleError as error:
            skipped.append((name, str(error)))
            continue
        names.append(name)
        if len(batch) == model.batch_size:
            yield np.stack(batch)
            batch = []
    if batch:
        yield np.stack(batch)


def printable(path: pathlib.Path) -> str:
    """A path as text, whatever bytes it is made of."""
    return path.as_posix().encode("utf-8", "surrogateescape").decode("utf-8", "replace")
