"""A contact sheet: what a search found, as one page."""

import importlib.resources
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jinja2

from contrastive.errors import UserError
from contrastive.reporting.examples import thumbnail


def write_sheet(path: pathlib.Path, query: str, found: Sequence[Any], among: int) -> pathlib.Path:
    """Writes the page and returns its path.

    Args:
      path: The file; its folder is made.
      query: What was looked for.
      found: Objects with ``score``, ``key``, ``name`` and ``encoded``, best first.
      among: How many pictures were searched.

    Raises:
      UserError: The file cannot be written.
    """
    files = importlib.resources.files("contrastive.reporting")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(files.joinpath("sheet.html").read_text("utf-8")).render(
        style=files.joinpath("report.css").read_text("utf-8"),
        query=query,
        among=among,
        found=[(hit, thumbnail(hit.encoded)) for hit in found],
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}.") from error
    return path
