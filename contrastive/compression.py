"""Rows in fewer bytes: the first entries only, 16 or 8 bits an entry, or its sign.

What a row keeps of its place among the others is measured, not promised: ``contrastive evaluate RUN
--precision`` sets the recall of compressed rows beside that of whole ones.
"""

import dataclasses
import pathlib
import zipfile
import zlib
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Float32, Shaped

from contrastive.errors import ConfigError, MeasureError, UserError

Precision = Literal["float32", "float16", "int8", "binary"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_CODES = dict(zip(PRECISIONS, (np.float32, np.float16, np.int8, np.uint8), strict=True))
_UNREADABLE = (  # what NumPy raises for files that are no .npz, cut short or of other arrays
    OSError, EOFError, ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile, zlib.error
)  # fmt: skip
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
      MeasureError: A row is not finite.
    """
    rows = np.asarray(rows, np.float32)
    if not np.isfinite(rows).all():
        raise MeasureError("the embeddings hold NaN or infinity: the model is broken.")
    if dim is not None:
        check_dim(dim, rows.shape[1])
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


def check_dim(dim: int, size: int) -> None:
    """Raises :class:`ConfigError` unless rows of so many entries have ``dim`` first ones."""
    if not 0 < dim <= size:
        raise ConfigError(
            f"the first {dim} entries of rows that have {size} cannot be kept: take 1 to {size}."
        )


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
    except _UNREADABLE as error:
        raise UserError(f"{path} is no file that contrastive embed has written.") from error
    if precision not in PRECISIONS:
        raise UserError(f"{path} holds rows in the precision {precision!r}, which is not known.")
    columns = -(-dim // 8) if precision == "binary" else dim
    fits = codes.dtype == _CODES[precision] and codes.shape[1:] == (columns,) and dim > 0
    if precision == "int8":
        fits &= all(x is not None and x.shape == (dim,) for x in ranges)
    if not fits:
        raise UserError(
            f"{path} is damaged: it holds {codes.dtype} of shape {codes.shape} for rows of {dim} "
            f"entries in {precision}."
        )
    return Compressed(precision, codes, dim, *ranges).rows()


def _unit(rows: Float32[np.ndarray, "n dim"]) -> Float32[np.ndarray, "n dim"]:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0).astype(np.float32)
