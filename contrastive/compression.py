"""Rows in fewer bytes: the first entries only, 16 or 8 bits an entry, or its sign.

What a row keeps of its place among the others is measured, not promised: ``contrastive evaluate RUN
--precision`` sets the recall of compressed rows beside that of whole ones.
"""

import dataclasses
import pathlib
import zipfile
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Float32, Shaped

from contrastive.errors import ConfigError, UserError

Precision = Literal["float32", "float16", "int8", "binary"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_LEVELS = 255  # steps between the least and the greatest value of an entry


@dataclasses.dataclass(frozen=True)
class Compressed:
    """Rows as they are written.

    Attributes:
      precision: How.
      codes: ``[n, dim]`` float32, float16 or int8; ``binary``: uint8 ``[n, ⌈dim / 8⌉]``, the first
        entry in the highest bit.
      dim: Entries of a row.
      low, step: Of ``int8``, for each entry: code c stands for ``low + (c + 128) · step``.
    """

    precision: Precision
    codes: Shaped[np.ndarray, "n columns"]
    dim: int
    low: Float32[np.ndarray, " dim"] | None = None
    step: Float32[np.ndarray, " dim"] | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.codes.shape[1] * self.codes.dtype.itemsize

    def rows(self) -> Float32[np.ndarray, "n dim"]:
        """Unit rows that the codes stand for; of ``binary``, each entry ``±dim^-½``. Inner products
        of binary rows are ``1 − 2 · (bits that differ) / dim``."""
        if self.precision == "binary":
            bits = np.unpackbits(self.codes, axis=1, count=self.dim)
            return ((2.0 * bits - 1.0) / np.sqrt(self.dim)).astype(np.float32)
        rows = self.codes.astype(np.float32)
        if self.precision == "int8":
            assert self.low is not None
            assert self.step is not None
            rows = self.low + (rows + 128.0) * self.step
        return _unit(rows)

    def arrays(self) -> dict[str, np.ndarray]:
        """What a file of them holds beside names; of ``float32`` the rows alone."""
        found: dict[str, np.ndarray] = {"embeddings": self.codes}
        if self.precision != "float32":
            found |= {"precision": np.array(self.precision), "dim": np.array(self.dim)}
        if self.low is not None and self.step is not None:
            found |= {"low": self.low, "step": self.step}
        return found


def compress(
    rows: Float[np.ndarray, "n dim"], precision: Precision, *, dim: int | None = None
) -> Compressed:
    """Rows in another precision.

    ``int8`` cuts the range of each entry over these rows (its least to its greatest value) into 255
    steps: what it stands for lies within half a step. ``binary`` keeps the signs.

    Args:
      rows: Unit rows.
      precision: How.
      dim: How many of the first entries are kept, brought to unit length again: rows of a model
        that was trained so (``config.loss.matryoshka``). None: all.

    Raises:
      ConfigError: There are fewer entries than ``dim``.
    """
    rows = np.asarray(rows, np.float32)
    if dim is not None:
        if not 0 < dim <= rows.shape[1]:
            raise ConfigError(f"the first {dim} entries of rows that have {rows.shape[1]}.")
        rows = _unit(rows[:, :dim])
    size = rows.shape[1]
    if precision == "binary":
        return Compressed(precision, np.packbits(rows > 0, axis=1), size)
    if precision != "int8":
        return Compressed(precision, rows.astype(precision), size)
    low = rows.min(axis=0, initial=np.inf)
    step = (rows.max(axis=0, initial=-np.inf) - low) / _LEVELS
    step = np.where(step > 0, step, 1.0).astype(np.float32)
    codes = np.rint((rows - low) / step) - 128
    return Compressed(precision, np.clip(codes, -128, 127).astype(np.int8), size, low, step)


def read_rows(path: pathlib.Path | str) -> Float32[np.ndarray, "n dim"]:
    """The unit rows that a file of ``contrastive embed`` holds or stands for.

    Raises:
      UserError: It is no such file.
    """
    try:
        with np.load(path) as file:
            precision = str(file["precision"]) if "precision" in file else "float32"
            codes, ranges = file["embeddings"], [file.get(name) for name in ("low", "step")]
            dim = int(file["dim"]) if "dim" in file else codes.shape[1]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is no file that contrastive embed has written.") from error
    if precision not in PRECISIONS:
        raise UserError(f"{path} holds rows in the precision {precision!r}, which is not known.")
    return Compressed(precision, codes, dim, *ranges).rows()


def _unit(rows: Float32[np.ndarray, "n dim"]) -> Float32[np.ndarray, "n dim"]:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0).astype(np.float32)
