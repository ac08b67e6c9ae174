"""Named arrays from the files that weights are published in; no code of a file is ever run.

safetensors (one file, or shards with an index), PyTorch's zip files (``.bin``, ``.pt``) without
PyTorch, NumPy's ``.npz``. A file that is damaged, cut short, unpacks to far more than it is, or
asks for anything but tensors is an error before anything of it is used.
"""

import json
import math
import pathlib
import zipfile
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
import safetensors
import safetensors.numpy

from contrastive.errors import WeightsError, first_line
from contrastive.pretrained.torch_file import read_torch
from contrastive.pretrained.zips import open_zip, read_entry

Tensors: TypeAlias = dict[str, np.ndarray]


def read_tensors(path: pathlib.Path) -> Tensors:
    """The arrays of a file, by name.

    Args:
      path: ``.safetensors``, ``.index.json`` of sharded files, ``.npz``, or a PyTorch state dict
        (any other name). The content decides, the name only where it says nothing.

    Raises:
      WeightsError: The file is missing, damaged, of no such kind, or unsafe.
    """
    if not path.is_file():
        raise WeightsError(f"there is no file {path}.")
    if path.name.endswith(".index.json"):
        return _sharded(path)
    with path.open("rb") as handle:
        head = handle.read(9)
    try:
        if head.startswith(b"PK\x03\x04"):
            return _npz(path) if path.suffix == ".npz" else read_torch(path)
        if path.suffix == ".safetensors" or _is_safetensors(head, path):
            return _safetensors(path)
        if head.startswith(b"\x80"):
            return read_torch(path)
    except (WeightsError, PermissionError):
        raise
    except Exception as error:  # the decoders of hostile files raise whatever they like
        raise WeightsError(f"{path} is damaged: {first_line(error)}.") from error
    raise WeightsError(
        f"{path} holds no weights: it is neither safetensors nor a zip file of PyTorch or NumPy."
    )


def write_safetensors(path: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a ``.safetensors`` that PyTorch's libraries take, too."""
    whole = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    for name, array in tensors.items():
        whole[name] = whole[name].reshape(array.shape)  # ascontiguousarray makes () to (1,)
    safetensors.numpy.save_file(whole, str(path), metadata={"format": "pt"})


def _is_safetensors(head: bytes, path: pathlib.Path) -> bool:
    """Eight bytes of length, and JSON behind them."""
    if len(head) < 9 or head[8:9] != b"{":
        return False
    return int.from_bytes(head[:8], "little") < path.stat().st_size


def _safetensors(path: pathlib.Path) -> Tensors:
    try:
        with safetensors.safe_open(str(path), framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except AttributeError as error:  # eight bits a number, for example
        raise WeightsError(
            f"{path} holds numbers of a kind that is not read here: {first_line(error)}."
        ) from error


def _sharded(index: pathlib.Path) -> Tensors:
    try:
        names = json.loads(index.read_text())["weight_map"]
        files = sorted(set(names.values()))
        outside = any(pathlib.PurePath(name).name != name for name in files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{index} is not the index of sharded weights.") from error
    if outside:
        raise WeightsError(f"{index} names files outside of its folder.")
    if not files or any(not name or name.endswith(".index.json") for name in files):
        raise WeightsError(f"{index} is not the index of sharded weights: it names no files.")
    paths = [index.parent / name for name in files]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise WeightsError(
            f"{index} names {len(paths)} files; missing are {', '.join(missing)}. Nothing was read."
        )
    found: Tensors = {}
    for path in paths:
        found |= read_tensors(path)
    absent = sorted(set(names) - set(found))
    if absent:
        raise WeightsError(f"{index} names tensors that no file has: {', '.join(absent[:10])}.")
    return found


def _npz(path: pathlib.Path) -> Tensors:
    with open_zip(path) as archive:
        return dict(_members(archive, path))


def _members(archive: zipfile.ZipFile, path: pathlib.Path) -> Iterator[tuple[str, np.ndarray]]:
    for info in archive.infolist():
        if not info.filename.endswith(".npy"):
            raise WeightsError(f"{path} holds {info.filename!r}, which is no array.")
        with archive.open(info) as handle:
            version = np.lib.format.read_magic(handle)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }.get(version)
            if read is None:
                raise WeightsError(f"{path}: {info.filename} has an unknown version {version}.")
            shape, by_columns, dtype = read(handle)
        if dtype.hasobject:
            raise WeightsError(
                f"{path}: {info.filename} holds Python objects. They could run code; nothing was "
                "read."
            )
        size = math.prod(shape) * dtype.itemsize
        data = read_entry(archive, info)
        if len(data) < size:
            raise WeightsError(f"{path} is damaged: {info.filename} is cut short.")
        values = np.frombuffer(data[len(data) - size :], dtype)
        name = info.filename.removesuffix(".npy")
        yield name, values.reshape(shape, order="F" if by_columns else "C")
