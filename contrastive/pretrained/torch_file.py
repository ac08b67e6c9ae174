"""PyTorch's files of tensors, read without PyTorch and without running what they ask for.

Such a file is a pickle of nested dictionaries whose tensors point into stored bytes. A pickle can
call anything that it can name: here it can name a dozen things, all of which are made in this file,
and anything else is an error. It can also ask for work and memory that have nothing to do with its
size (an entry far beyond the end of its list of objects, tuples whose hash takes years): the
instructions that do so are not understood here, and keys are names and numbers only.
"""

import collections
import io
import math
import pathlib
import pickle
import zipfile
from collections.abc import Callable
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from contrastive.errors import WeightsError
from contrastive.pretrained.zips import open_zip, read_entry

_DTYPES: dict[str, Any] = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}
_LARGEST_PICKLE = 256 << 20
_MAGIC = 0x1950A86A20F9469CFC6C
_SHOWN = 100  # letters of what a file says, in a message
# What the library writes, in both of its protocols, and other spellings of the same. Sets, byte
# arrays of a length that is only claimed and instructions that build by other ways are left out.
_INSTRUCTIONS = b"".join(
    getattr(pickle, name)
    for name in (
        *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "GLOBAL", "STACK_GLOBAL", "REDUCE"),
        *("BUILD", "BINPERSID", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET"),
        *("LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "INT", "LONG", "BININT", "BININT1"),
        *("BININT2", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING"),
        *("SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2"),
        *("TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS"),
    )
)
_RUN: dict[int, Any] = pickle._Unpickler.dispatch
_CONTAINERS = ("state_dict", "model_state_dict", "model")  # what a checkpoint calls its weights


def read_torch(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The tensors of a state dict, or of the one inside a checkpoint of a training.

    Raises:
      WeightsError: The file is damaged, or holds or asks for anything else than tensors, numbers
        and names.
    """
    return state_dict(load_torch(path), path)


def state_dict(content: Any, path: pathlib.Path) -> dict[str, np.ndarray]:
    """The state dict in what a file holds: itself, or under one of the usual names."""
    if isinstance(content, dict):
        tensors = {k: v for k, v in content.items() if isinstance(v, np.ndarray)}
        if tensors and all(isinstance(k, str) for k in tensors):
            return tensors
        for name in _CONTAINERS:
            if isinstance(content.get(name), dict):
                return state_dict(content[name], path)
    raise WeightsError(f"{path} holds no state dict: no dictionary of tensors by name.")


def load_torch(path: pathlib.Path) -> Any:
    """What a PyTorch file holds, tensors as NumPy arrays."""
    with path.open("rb") as handle:
        if handle.read(4) != b"PK\x03\x04":
            handle.seek(0)
            return _load_old(handle, path)
    with open_zip(path) as archive:
        return _load_zip(archive, path)


def _load_zip(archive: zipfile.ZipFile, path: pathlib.Path) -> Any:
    entries = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1 or any(name.endswith("/constants.pkl") for name in entries):
        kind = "a TorchScript program" if len(pickles) == 1 else "no file of PyTorch"
        raise WeightsError(f"{path} is {kind}; a state dict is expected.")
    root = pickles[0].removesuffix("data.pkl")
    order = entries.get(f"{root}byteorder")
    if order is not None and read_entry(archive, order) != b"little":
        raise WeightsError(f"{path} was written on a machine with big-endian numbers.")
    if entries[pickles[0]].file_size > _LARGEST_PICKLE:
        raise WeightsError(f"{path}: the list of its tensors is too large.")

    def storage(dtype: np.dtype, key: str, count: int) -> np.ndarray:
        info = entries.get(f"{root}data/{key}")
        if info is None or info.file_size != count * dtype.itemsize:
            raise WeightsError(f"{path} is damaged: the bytes of storage {key} are not there.")
        return np.frombuffer(read_entry(archive, info), dtype)

    return _Reader(io.BytesIO(read_entry(archive, entries[pickles[0]])), path, storage).read()


def _load_old(handle: Any, path: pathlib.Path) -> Any:
    """The form before PyTorch 1.6: pickles one behind the other, then the bytes of the tensors,
    which the tensors refer to before they are read."""

    def no_storage(*_: Any) -> np.ndarray:
        raise WeightsError(f"{path} is damaged.")

    def plain() -> Any:
        return _Reader(handle, path, no_storage).read()

    if plain() != _MAGIC:
        raise WeightsError(f"{path} is a pickle, but no file of PyTorch.")
    _, system = plain(), plain()
    if not isinstance(system, dict) or not system.get("little_endian", True):
        raise WeightsError(f"{path} was written on a machine with big-endian numbers.")
    start, size = handle.tell(), path.stat().st_size
    sizes: dict[str, tuple[np.dtype, int]] = {}

    def measured(dtype: np.dtype, key: str, count: int) -> np.ndarray:
        sizes[key] = dtype, count
        if sum(n * kind.itemsize for kind, n in sizes.values()) > size:
            raise WeightsError(f"{path} is damaged: its tensors are larger than the file.")
        return np.broadcast_to(np.zeros((), dtype), (count,))  # one number, in one place

    _Reader(handle, path, measured).read()
    keys = plain()
    stored: dict[str, np.ndarray] = {}
    for key in keys if isinstance(keys, list) else []:
        count = int.from_bytes(handle.read(8), "little")
        dtype, wanted = sizes.get(key, (np.dtype(np.uint8), -1))
        data = handle.read(count * dtype.itemsize) if count == wanted else b""
        if count != wanted or len(data) != count * dtype.itemsize:
            raise WeightsError(f"{path} is damaged: the bytes of storage {key} are not there.")
        stored[key] = np.frombuffer(data, dtype)
    handle.seek(start)
    if set(stored) != set(sizes):
        raise WeightsError(f"{path} is damaged: bytes of tensors are missing.")
    return _Reader(handle, path, lambda dtype, key, count: stored[key]).read()


class _Storage:
    """A kind of storage, as pickles name it; nothing can be set on it."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype


class _Reader(pickle._Unpickler):  # the one in Python: its memo grows with what is in it
    """Unpickles containers, names, numbers and tensors, and refuses everything else."""

    stack: list[Any]
    dispatch: ClassVar[dict[int, Any]] = {code: _RUN[code] for code in _INSTRUCTIONS}

    def __init__(
        self,
        handle: Any,
        path: pathlib.Path,
        storage: Callable[[np.dtype, str, int], np.ndarray],
    ) -> None:
        super().__init__(handle)
        self._path, self._storage = path, storage
        self._stored: dict[str, np.ndarray] = {}

    def read(self) -> Any:
        """The next pickled object.

        Raises:
          WeightsError: It is damaged, or asks for something else than tensors.
        """
        try:
            return self.load()
        except WeightsError:
            raise
        except Exception as error:  # a damaged pickle raises whatever it likes
            raise WeightsError(f"{self._path} is damaged: its list of tensors ends.") from error

    def find_class(self, module: str, name: str) -> Any:
        """Called for each name in the pickle."""
        if not name:
            raise WeightsError(f"{self._path} is damaged: its list of tensors ends.")
        if module == "torch" and name in _DTYPES:
            return _Storage(np.dtype(_DTYPES[name]))
        known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): self._ordered,
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
            ("torch", "Size"): lambda sizes=(): tuple(sizes),
        }
        found = known.get((module, name))
        if found is None:
            asked = f"{module}.{name}"[:_SHOWN]
            raise WeightsError(
                f"{self._path} is a pickle that asks for {asked}; only tensors are read. Nothing "
                "was run. Ask for the weights as safetensors."
            )
        return found

    def _set_item(self) -> None:
        self._check_keys(self.stack[-2:-1])
        _RUN[pickle.SETITEM[0]](self)

    def _set_items(self) -> None:
        self._check_keys(self.stack[::2])
        _RUN[pickle.SETITEMS[0]](self)

    dispatch |= {pickle.SETITEM[0]: _set_item, pickle.SETITEMS[0]: _set_items}

    def _ordered(self, pairs: Any = ()) -> collections.OrderedDict:
        self._check_keys([key for key, _ in pairs])
        return collections.OrderedDict(pairs)

    def _check_keys(self, keys: list[Any]) -> None:
        if any(type(key) not in (str, int) for key in keys):
            raise WeightsError(f"{self._path} is damaged: a key is neither a name nor a number.")

    def persistent_load(self, pid: Any) -> np.ndarray:
        """Called for each reference to stored bytes."""
        match pid:
            case ("storage", _Storage() as kind, str(key), _, int(count), *_):
                if key not in self._stored:
                    self._stored[key] = self._storage(kind.dtype, key, count)
                return self._stored[key]
        raise WeightsError(f"{self._path} is damaged: it refers to no storage.")

    def _tensor(self, storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> np.ndarray:
        numbers = (offset, *shape, *stride)
        if not isinstance(storage, np.ndarray) or len(shape) != len(stride):
            raise WeightsError(f"{self._path} is damaged: a tensor has no storage.")
        if any(type(n) is not int or n < 0 for n in numbers):
            raise WeightsError(f"{self._path} is damaged: a tensor has sizes that are no numbers.")
        if math.prod(shape) == 0:
            return np.zeros(shape, storage.dtype)
        last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
        if last >= storage.size or math.prod(shape) > storage.size:
            raise WeightsError(f"{self._path} is damaged: a tensor reaches beyond its storage.")
        # A view: many tensors may share a storage. The storage's own step, which is 0 while sizes
        # are measured, keeps it inside what is there.
        steps = tuple(step * storage.strides[0] for step in stride)
        return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False)
