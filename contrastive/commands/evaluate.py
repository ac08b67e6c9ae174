"""``contrastive evaluate`` and the last act of ``contrastive train``."""

import contextlib
import dataclasses
import errno
import fcntl
import io
import json
import logging
import os
import pathlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from contrastive.errors import UserError, first_line, of_storage
from contrastive.evaluation.measured import Measured
from contrastive.evaluation.suite import evaluate
from contrastive.evaluation.tasks import TaskOptions, check_tasks, run_tasks
from contrastive.folders import is_run
from contrastive.inference import Model
from contrastive.loading import load
from contrastive.mesh import Devices
from contrastive.recipe import Recipe, read_recipe
from contrastive.whole import whole_file

NUMBERS, LISTS, LOCK = "evaluation.json", "evaluation.npz", ".evaluation.lock"
_log = logging.getLogger(__name__)


def evaluate_run(workdir: pathlib.Path, *, devices: Devices) -> Measured:
    """Measures the newest checkpoint of a run on the data of its recipe and writes
    ``evaluation.json``.

    Raises:
      UserError: ``workdir`` is not the folder of a run.
    """
    if workdir.exists() and not is_run(workdir):
        raise UserError(
            f"{workdir} is not the folder of a run, which would be measured on its own data. Of "
            "other weights say what to measure: --task and --data."
        )
    model = load(workdir, devices=devices)
    return save_evaluation(workdir, model, read_recipe(workdir), devices=devices)


def evaluate_tasks(
    path: pathlib.Path,
    tasks: Sequence[str],
    options: TaskOptions,
    *,
    pooler: str | None = None,
    output: pathlib.Path | None = None,
    devices: Devices,
) -> Measured:
    """Measures whatever :func:`contrastive.load` opens, and adds to ``evaluation.json``.

    Args:
      path: A run, or imported weights.
      tasks: Keys of :data:`contrastive.evaluation.tasks.TASKS`.
      options: The data.
      pooler: Measure a second time with this pooling (:meth:`contrastive.inference.Model.pooled`)
        in place of the model's own; its results stand beside the others, as another set.
      output: The folder of ``evaluation.json``; None: ``path``, or the folder it is in.
      devices: Where to compute.

    Raises:
      UserError: See :func:`contrastive.evaluation.tasks.run_tasks`; or ``output`` is no folder.
    """
    check_tasks(tasks, options)  # before the model, which may take long to read
    folder = output or (path if path.is_dir() else path.parent)
    if output is not None:
        _make(output)
    if path.exists() and not os.access(folder, os.W_OK):  # said before anything is measured
        raise _unwritable(folder, os.strerror(errno.EACCES))
    model = load(path, devices=devices)
    other = None if pooler is None else model.pooled(pooler)
    results = run_tasks(model, tasks, options, devices=devices)
    if other is not None:
        _log.warning(
            "%s was made for the pooler %r; %r was asked for: both are measured.",
            path, model.pooler, other.pooler,
        )  # fmt: skip
        title = f"{options.title} with pooler {other.pooler}"
        again = dataclasses.replace(options, name=title)
        results.add(run_tasks(other, tasks, again, devices=devices))
        results[f"{options.title}/pooler"], results[f"{title}/pooler"] = model.pooler, other.pooler
    write_results(folder, results)
    return results


def _make(folder: pathlib.Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output = {folder} is no folder: {error.strerror or error}.") from error


def save_evaluation(
    workdir: pathlib.Path, model: Model, recipe: Recipe, *, devices: Devices | None = None
) -> Measured:
    """Measures a model on the data of its recipe and writes ``evaluation.json``."""
    results = evaluate(model, recipe, quick=False, devices=devices)
    write_results(workdir, results)
    return results


def write_results(folder: pathlib.Path, results: Measured) -> None:
    """Writes ``evaluation.json`` (numbers), and ``evaluation.npz`` (the values that they are the
    means of, and what pages draw), whole or not at all. What the files say of other sets and tasks
    stays, also where another process writes at the same time.

    Raises:
      UserError: The folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _held(folder):
        _write(folder, results)


@contextlib.contextmanager
def _held(folder: pathlib.Path) -> Iterator[None]:
    """No other evaluation writes into the folder meanwhile."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        known = _unwritable(folder, error.strerror)
        raise of_storage(error, str(known)) or known from error
    try:
        with contextlib.suppress(OSError):  # some file systems know no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _unwritable(folder: pathlib.Path, why: str | None) -> UserError:
    return UserError(f"cannot write {folder / NUMBERS} ({why}); --output takes another folder.")


def _write(folder: pathlib.Path, results: Measured) -> None:
    before = _earlier(folder)
    measured = {_task(name) for name in results}
    kept = Measured(
        {name: value for name, value in before.items() if _task(name) not in measured},
        {name: value for name, value in before.each.items() if _task(name) not in measured},
        {name: value for name, value in before.drawn.items() if _task(name) not in measured},
    ).add(results)
    with whole_file(folder / NUMBERS) as path:
        path.write_text(json.dumps(dict(sorted(kept.items())), indent=2) + "\n")
    lists = {f"each/{name}": _small(values) for name, values in kept.each.items()}
    lists |= {f"drawn/{name}": _small(values) for name, values in kept.drawn.items()}
    out = io.BytesIO()
    np.savez_compressed(out, allow_pickle=False, **lists)
    with whole_file(folder / LISTS) as path:
        path.write_bytes(out.getvalue())


def _earlier(folder: pathlib.Path) -> Measured:
    """What the folder holds; what is damaged does not stop new results from being kept."""
    found = Measured()
    for name, read in ((NUMBERS, _read_numbers), (LISTS, _read_lists)):
        try:
            found.add(read(folder / name) if (folder / name).is_file() else {})
        except UserError as error:
            _log.warning("%s It is replaced.", error)
    return found


def _task(name: str) -> str:
    return name.rpartition("/")[0]


def _small(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32) if values.dtype == np.float64 else values


def read_results(folder: pathlib.Path) -> Measured:
    """What :func:`write_results` wrote; of an older or incomplete folder the numbers alone.

    Raises:
      UserError: There is no ``evaluation.json``, or one of the files is damaged.
    """
    file = folder / NUMBERS
    if not file.is_file():
        raise UserError(
            f"{folder} has not been evaluated: there is no {file}. `contrastive evaluate {folder}` "
            "makes it."
        )
    results = _read_numbers(file)
    return results.add(_read_lists(folder / LISTS)) if (folder / LISTS).is_file() else results


def is_evaluated(folder: pathlib.Path) -> bool:
    """Whether there is an ``evaluation.json`` that can be read."""
    try:
        _read_numbers(folder / NUMBERS)
        return True
    except (UserError, OSError):
        return False


def _read_numbers(file: pathlib.Path) -> Measured:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is damaged: {first_line(error)}.") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} is damaged: it holds no object in braces.")
    for name, value in found.items():
        if not isinstance(value, int | float | str | None):
            raise UserError(f"{file} is damaged: {name} is neither a number nor a word.")
    return Measured(found)


def _read_lists(file: pathlib.Path) -> Measured:
    results = Measured()
    try:
        with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as lists:
            for name in lists.files:
                kind, _, metric = name.partition("/")
                (results.each if kind == "each" else results.drawn)[metric] = lists[name]
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{file} is damaged: {error}. Without that file, numbers have no intervals."
        ) from error
    return results


def parse_options(given: Mapping[str, Any]) -> TaskOptions | None:
    """The options that the command line gave; None where no data was named.

    Raises:
      UserError: Options of tasks without ``--data``, numbers out of range.
    """
    values = {name: value for name, value in given.items() if value is not None}
    if "data" not in values:
        if values:
            raise UserError(f"--{next(iter(values)).replace('_', '-')} needs --data, and --task.")
        return None
    if values.get("most", 1) < 1 or min(values.get("shots", (1,))) < 1:
        raise UserError("--most and --shots have to be at least 1.")
    return TaskOptions(**values)
