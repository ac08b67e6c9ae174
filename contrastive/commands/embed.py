"""``contrastive embed``: embeddings of a folder of pictures or of the lines of a text file."""

import os
import pathlib
from typing import Any

import numpy as np
from rich.console import Console

from contrastive.commands.pictures import Encoded, encode_folder
from contrastive.compression import Compressed, Precision, check_dim, compress
from contrastive.errors import UserError
from contrastive.inference import Model
from contrastive.loading import load
from contrastive.mesh import Devices
from contrastive.towers import Role
from contrastive.whole import whole_file

SHOWN_SKIPPED = 10
_NAME, _NAMES = 1000, 2**28  # characters of a name that are kept in any case, and of all names


def embed(
    workdir: pathlib.Path,
    source: pathlib.Path,
    output: pathlib.Path,
    *,
    role: Role = "query",
    precision: Precision = "float32",
    dim: int | None = None,
    devices: Devices | None = None,
    console: Console | None = None,
) -> Encoded:
    """Writes an ``.npz`` file with ``embeddings`` (float32, unit rows) and ``names``. Compressed
    rows are read back by :func:`contrastive.compression.read_rows`. Of a very long line the name is
    the beginning.

    Pictures come in the order of their paths, lines in their own. What cannot be read is left out,
    counted, shown, and listed in the file as ``skipped``.

    Args:
      workdir: The folder of a trained run.
      source: A folder of pictures, or a UTF-8 text file with a text a line.
      output: The file to write; ``.npz`` is added where it lacks.
      role: Of a model of pairs of texts: whether the lines are queries or passages.
      precision: Of the rows in the file (:mod:`contrastive.compression`).
      dim: How many of the first entries are kept; None: all.
      devices: Where to compute; None: all of this process.
      console: Where to say what was done; None: the terminal.

    Raises:
      UserError: ``source`` is missing or has nothing to encode, or ``output`` cannot be written.
      ConfigError: There are fewer entries than ``dim``.
    """
    if not source.exists():
        raise UserError(f"there is no {source}; give a folder of pictures or a text file.")
    target = output if output.suffix == ".npz" else output.with_name(f"{output.name}.npz")
    _check_writable(target)
    model = load(workdir, devices=devices)
    if dim is not None:  # said before anything is encoded
        check_dim(dim, model.recipe.model.embedding_dim)
    found = encode_folder(model, source) if source.is_dir() else encode_lines(model, source, role)
    rows = compress(found.rows, precision, dim=dim)
    _write(target, found, rows)
    console = Console(highlight=False, soft_wrap=True) if console is None else console
    what = "pictures" if source.is_dir() else "texts"
    console.print(
        f"{len(found.names):,} {what}, {rows.dim} numbers each"
        + (f" in {rows.row_bytes} bytes ({precision})" if precision != "float32" else "")
        + f", written to {target}",
        markup=False,
    )
    if found.skipped:
        console.print(f"{len(found.skipped):,} could not be read and were left out:", markup=False)
        for name, reason in found.skipped[:SHOWN_SKIPPED]:
            console.print(f"  {name}: {reason}", markup=False)
        if len(found.skipped) > SHOWN_SKIPPED:
            rest = len(found.skipped) - SHOWN_SKIPPED
            console.print(f"  and {rest:,} more, listed in the file as 'skipped'", markup=False)
    return found


def encode_lines(model: Model, file: pathlib.Path, role: Role = "query") -> Encoded:
    """Encodes every line of a text file; empty lines are left out and named by their number."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file} is not UTF-8 text (byte {error.start}); give a text file with a text a line, "
            "or a folder of pictures."
        ) from error
    names: list[str] = []
    skipped: list[tuple[str, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            names.append(line.strip())
        elif number <= text.count("\n"):  # not the end of the last line
            skipped.append((f"line {number}", "empty"))
    if not names:
        raise UserError(f"{file} has no line with text.")
    return Encoded(model.encode_text(names, role=role), names, skipped)


def _check_writable(target: pathlib.Path) -> None:
    folder = target.parent
    if not folder.is_dir():
        raise UserError(f"cannot write {target}: there is no folder {folder}.")
    if not os.access(folder, os.W_OK) or target.is_dir():
        raise UserError(f"cannot write {target}; choose another --output.")


def _write(target: pathlib.Path, found: Encoded, rows: Compressed) -> None:
    try:
        with whole_file(target) as path, open(path, "wb") as file:
            lists: dict[str, Any] = dict(rows.arrays())
            # NumPy gives each name the room of the longest one.
            most = max(_NAMES // len(found.names), _NAME)
            np.savez(
                file,
                **lists,
                names=np.array([name[:most] for name in found.names], np.str_),
                skipped=np.array([name for name, _ in found.skipped], np.str_),
            )
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}.") from error
