"""``contrastive search``: find pictures by words, or passages by a question."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Sequence

import numpy as np
from rich.columns import Columns
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from contrastive.commands.pictures import (
    encode_folder,
    encode_pictures,
    picture_files,
    printable,
)
from contrastive.data.records import SampleError, Source
from contrastive.data.sources import open_source
from contrastive.data.transforms import decode_image, square
from contrastive.errors import NoSuchSplit, UserError
from contrastive.evaluation.neighbours import neighbours
from contrastive.inference import Model
from contrastive.loading import load
from contrastive.mesh import Devices
from contrastive.reporting.sheet import write_sheet
from contrastive.reporting.terminal import half_blocks, shows_pictures
from contrastive.towers import MissingTower

# Drawings of the emoji that were never trained on; of a table, all it has.
_EMOJI_SPLITS = ("unseen_artist", "unseen_both")
_CSV_SPLITS = ("train", "validation", "test")
PICTURE_COLUMNS = 20


@dataclasses.dataclass(frozen=True)
class Found:
    """A picture that was found."""

    score: float  # cosine
    key: str
    name: str  # empty where none is known
    encoded: bytes


@dataclasses.dataclass(frozen=True)
class Gallery:
    """Encoded pictures to search in."""

    rows: np.ndarray  # float32 [n, dim]
    describe: Callable[[int], tuple[str, str, bytes]]  # key, name and file of a picture
    skipped: int  # pictures that could not be read


def search(
    workdir: pathlib.Path,
    query: str,
    *,
    images: pathlib.Path | None = None,
    top: int = 10,
    devices: Devices | None = None,
    console: Console | None = None,
) -> list[Found]:
    """Prints the pictures nearest to the query, and writes them as a page. A model of pairs of
    texts searches the passages of its data instead, and prints them.

    Args:
      workdir: The folder of a trained run.
      query: What to look for.
      images: A folder of pictures to search in; None: the pictures of the run's data set.
      top: How many to show.
      devices: Where to compute; None: all of this process.
      console: Where to print; None: the terminal.

    Raises:
      UserError: The query is empty, or there are no pictures to search in.
    """
    if not query.strip() or top < 1:
        raise UserError("give some words to look for, and a --top of at least 1.")
    model = load(workdir, devices=devices)
    console = Console(highlight=False) if console is None else console
    row = model.encode_text([query])
    if model.recipe.data.pairs == "texts":
        if images is not None:
            raise MissingTower("image")
        return _search_texts(model, query, row, top, console)
    gallery = open_gallery(model, images)
    found = nearest(model, gallery, query, top)
    _print(console, query, gallery, found)
    name = re.sub(r"\W+", "-", query.casefold()).strip("-")[:60] or "query"
    page = write_sheet(workdir / "search" / f"{name}.html", query, found, len(gallery.rows))
    console.print(f"Page: {page}", markup=False, soft_wrap=True)
    return found


def _search_texts(
    model: Model, query: str, row: np.ndarray, top: int, console: Console
) -> list[Found]:
    """The passages of the run's data nearest to the query; equal ones are shown once."""
    keys: dict[str, str] = {}  # of each passage
    for source in _sources(model):
        for i in range(len(source)):
            try:
                record = source[i]
            except SampleError:
                continue  # counted and named when the run started
            if record["caption"].strip():
                keys.setdefault(record["caption"].strip(), record["key"])
    passages = list(keys)
    rows = model.encode_text(passages, role="passage")
    best, scores = neighbours(row, rows, min(top, len(rows)))
    found = [
        Found(float(score), keys[passages[i]], passages[i], b"")
        for i, score in zip(best[0].tolist(), scores[0].tolist(), strict=True)
    ]
    console.print(Text.assemble((f"“{query}”", "bold"), f" among {len(rows):,} passages"))
    table = Table(box=None, pad_edge=False, show_header=False)
    for place, hit in enumerate(found, 1):
        table.add_row(Text(f"{place:>3}"), f"{hit.score:.3f}", Text(hit.name), Text(hit.key, "dim"))
    console.print(table)
    return found


def nearest(model: Model, gallery: Gallery, query: str, count: int) -> list[Found]:
    """The pictures nearest to a text, best first; equal files are shown once."""
    best, scores = neighbours(model.encode_text([query]), gallery.rows, len(gallery.rows))
    found: dict[bytes, Found] = {}
    for i, score in zip(best[0], scores[0], strict=True):
        key, name, encoded = gallery.describe(int(i))
        found.setdefault(encoded, Found(float(score), key, name, encoded))
        if len(found) == count:
            break
    return list(found.values())


def open_gallery(model: Model, folder: pathlib.Path | None) -> Gallery:
    """The pictures of a folder, or of the data set that the model was trained on."""
    if folder is not None:
        found = encode_folder(model, folder)
        files = {printable(path.relative_to(folder)): path for path in picture_files(folder)}
        kept = [(name, files[name]) for name in found.names]
        return Gallery(
            found.rows, lambda i: (kept[i][0], "", kept[i][1].read_bytes()), len(found.skipped)
        )
    sources = _sources(model)
    places = [(source, i) for source in sources for i in range(len(source))]
    items = (
        (str(n), lambda source=source, i=i: source[i]["image"])
        for n, (source, i) in enumerate(places)
    )
    found = encode_pictures(model, items, "the data set")
    kept = [places[int(name)] for name in found.names]

    def describe(i: int) -> tuple[str, str, bytes]:
        source, index = kept[i]
        record = source[index]
        return record["key"], record["caption"], record["image"]

    return Gallery(found.rows, describe, len(found.skipped))


def _sources(model: Model) -> list[Source]:
    data = model.recipe.data
    sources = []
    for split in _EMOJI_SPLITS if data.source == "emoji" else _CSV_SPLITS:
        try:
            sources.append(open_source(data, split))
        except NoSuchSplit:
            if split in ("train", *_EMOJI_SPLITS):
                raise  # every table has this one
    return sources


def _print(console: Console, query: str, gallery: Gallery, found: Sequence[Found]) -> None:
    skipped = f", {gallery.skipped:,} unreadable left out" if gallery.skipped else ""
    console.print(
        Text.assemble((f"“{query}”", "bold"), f" among {len(gallery.rows):,} pictures{skipped}")
    )
    if shows_pictures(console):
        cards = [_card(place, hit) for place, hit in enumerate(found, 1)]
        console.print(Columns(cards, padding=(1, 2)))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for place, hit in enumerate(found, 1):
        table.add_row(
            Text(f"{place:>3}"), f"{hit.score:.3f}", Text(hit.name, "bold"), Text(hit.key)
        )
    console.print(table)


def _card(place: int, hit: Found) -> Group:
    picture = square(decode_image(hit.encoded))
    label = Text(f"{place} · {hit.score:.3f}", "dim", no_wrap=True)
    name = Text(hit.name or hit.key, "bold", overflow="ellipsis", no_wrap=True)
    name.truncate(PICTURE_COLUMNS, overflow="ellipsis")
    return Group(half_blocks(picture, PICTURE_COLUMNS), name, label)
