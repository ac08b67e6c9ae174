"""``contrastive evaluate RUN --precision …``: what rows in fewer bytes cost in recall."""

import dataclasses
import hashlib
import io
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from contrastive.building import judgements
from contrastive.compression import Precision, check_dim, compress
from contrastive.errors import UserError
from contrastive.evaluation.measured import Measured
from contrastive.evaluation.suite import evaluate
from contrastive.evaluation.table import TITLES, share
from contrastive.folders import is_run
from contrastive.inference import Model
from contrastive.loading import load
from contrastive.mesh import Devices
from contrastive.recipe import read_recipe
from contrastive.whole import whole_file

FILE = "compressed.json"
_METRICS = ("recall@1", "recall@10")
Results = dict[str, dict[str, float]]
"""``{"int8, first 64": {"bytes_per_row": …, "SET/TASK/recall@1": …}}``; ``float32`` is first."""


def evaluate_compressed(
    workdir: pathlib.Path,
    precisions: Sequence[Precision],
    dims: Sequence[int] = (),
    *,
    devices: Devices,
) -> Results:
    """Retrieval of a run's evaluation sets by compressed rows of both sides, beside whole ones;
    written to ``compressed.json``.

    Args:
      workdir: The folder of a run.
      precisions: Each is measured, with all entries and with each number of first ones.
      dims: Numbers of first entries.
      devices: Where to compute.

    Raises:
      UserError: It is no run, or one that judges pairs and compares no rows.
      ConfigError: There are fewer entries than one of ``dims``.
    """
    if not is_run(workdir):
        raise UserError(f"{workdir} is not the folder of a run, whose sets rows are compared on.")
    recipe = read_recipe(workdir)
    if judgements(recipe):
        raise UserError(f"{workdir} judges pairs; it compares no rows that could be compressed.")
    recipe = dataclasses.replace(recipe, eval=dataclasses.replace(recipe.eval, baselines=False))
    for dim in dims:  # said before anything is measured
        check_dim(dim, recipe.model.embedding_dim)
    rows = _Rows(load(workdir, devices=devices))
    results: Results = {}
    for dim in (None, *dims):
        for precision in dict.fromkeys(("float32", *precisions)):
            model = _Compressed(rows, precision, dim)
            found = evaluate(model, recipe, devices=devices)
            name = precision if dim is None else f"{precision}, first {dim}"
            results[name] = {"bytes_per_row": float(model.row_bytes), **_recalls(found)}
    with whole_file(workdir / FILE) as path:
        path.write_text(json.dumps(results, indent=2) + "\n")
    return results


def format_compressed(results: Mapping[str, Mapping[str, float]], *, width: int = 100) -> str:
    """The results as a table for the terminal."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False)
    columns = [name for name in next(iter(results.values())) if name != "bytes_per_row"]
    for start in dict.fromkeys(name.rpartition("/")[0] for name in columns):
        group, task = start.split("/")
        console.print(f"{TITLES.get(group, group)}, {TITLES.get(task, task)}")
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("")
        for title in ("bytes a row", *_METRICS):
            table.add_column(title, justify="right")
        for name, found in results.items():
            cells = (share(found.get(f"{start}/{metric}")) for metric in _METRICS)
            table.add_row(name, f"{found['bytes_per_row']:,.0f}", *cells)
        console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _recalls(found: Measured) -> dict[str, float]:
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, float) and name.rpartition("/")[2] in _METRICS
    }


class _Rows:
    """Encodes everything once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._known: dict[bytes, np.ndarray] = {}

    def get(self, inputs: Any, view: str, encode: Callable[[], np.ndarray]) -> np.ndarray:
        content = hashlib.blake2b(view.encode(), digest_size=16)
        if isinstance(inputs, np.ndarray) and inputs.dtype.kind not in "UO":
            content.update(np.ascontiguousarray(inputs))
        else:
            content.update(json.dumps(list(inputs)).encode())
        key = content.digest()
        if key not in self._known:
            self._known[key] = encode()
        return self._known[key]


class _Compressed:
    """A model whose rows have gone through a file of compressed ones."""

    def __init__(self, rows: _Rows, precision: Precision, dim: int | None) -> None:
        self._rows, self._dim = rows, dim
        self._precision: Precision = precision
        self.scale = rows.model.scale
        self.row_bytes = 0

    def encode_image(self, images: Any) -> np.ndarray:
        encode = self._rows.model.encode_image
        return self._through(self._rows.get(images, "image", lambda: encode(images)))

    def encode_text(self, texts: Any, *, role: Any = "query") -> np.ndarray:
        encode = self._rows.model.encode_text
        return self._through(self._rows.get(texts, role, lambda: encode(texts, role=role)))

    def untrained(self, seed: int) -> Any:
        raise NotImplementedError("compressed rows are compared with whole ones only")

    def _through(self, rows: np.ndarray) -> np.ndarray:
        found = compress(rows, self._precision, dim=self._dim)
        self.row_bytes = found.row_bytes
        return found.rows()
