"""A contact sheet: what a search found, or samples as they reach the model, as one page."""

import importlib.resources
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jinja2

from contrastive.errors import UserError
from contrastive.reporting.examples import thumbnail
from contrastive.whole import whole_file


class Tile(NamedTuple):
    """One picture of a sheet."""

    picture: str  # a data URI
    name: str
    note: str  # below the name
    key: str  # shown under the pointer


def write_sheet(path: pathlib.Path, query: str, found: Sequence[Any], among: int) -> pathlib.Path:
    """Writes what a search found and returns the page's path.

    Args:
      path: The file; its folder is made.
      query: What was looked for.
      found: Objects with ``score``, ``key``, ``name`` and ``encoded``, best first.
      among: How many pictures were searched.

    Raises:
      UserError: The file cannot be written.
    """
    tiles = [
        Tile(thumbnail(hit.encoded), hit.name or hit.key, f"{hit.score:.3f}", hit.key)
        for hit in found
    ]
    return write_tiles(
        path,
        over="search",
        title=f"“{query}”",
        facts=[f"the nearest {len(found)} of {among:,} pictures"],
        tiles=tiles,
        footer="Scores are cosines of the embeddings.",
    )


def write_tiles(
    path: pathlib.Path,
    *,
    over: str,
    title: str,
    facts: Sequence[str],
    tiles: Sequence[Tile],
    footer: str,
) -> pathlib.Path:
    """Writes a page of pictures and returns its path.

    Raises:
      UserError: The file cannot be written.
    """
    files = importlib.resources.files("contrastive.reporting")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(files.joinpath("sheet.html").read_text("utf-8")).render(
        style=files.joinpath("report.css").read_text("utf-8"),
        over=over,
        title=title,
        facts=facts,
        tiles=tiles,
        footer=footer,
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as unfinished:
            unfinished.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}.") from error
    return path
