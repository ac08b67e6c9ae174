"""The committed tiny models of other libraries, and files as PyTorch writes them."""

import collections
import io
import pathlib
import pickle
import shutil
import sys
import types
import zipfile

import numpy as np
import pytest

FIXTURES = pathlib.Path(__file__).parents[1] / "parity" / "fixtures"


@pytest.fixture
def copied(tmp_path):
    """``copied(name)``: a copy of a committed model that a test may change."""

    def copy(name):
        return pathlib.Path(shutil.copytree(FIXTURES / name, tmp_path / name))

    return copy


class _Storage:
    def __init__(self, array, key):
        self.array, self.key = array, key


_MAGIC = 0x1950A86A20F9469CFC6C


class _Pickler(pickle.Pickler):
    """Arrays as PyTorch's tensors: a call of its rebuilding function on a storage."""

    def __init__(self, file, torch, *, stride=None, old=False):
        super().__init__(file, protocol=2)
        self.torch, self.storages = torch, []
        self.stride, self.more = stride, (None,) if old else ()

    def reducer_override(self, value):
        if not isinstance(value, np.ndarray):
            return NotImplemented
        storage = _Storage(value, str(len(self.storages)))
        self.storages.append(storage)
        stride = self.stride or tuple(step // value.itemsize for step in value.strides)
        hooks = collections.OrderedDict()
        arguments = (storage, 0, value.shape, stride, False, hooks)
        return self.torch._utils._rebuild_tensor_v2, arguments

    def persistent_id(self, value):
        if not isinstance(value, _Storage):
            return None
        kind = {"float32": "FloatStorage", "int64": "LongStorage", "float16": "HalfStorage"}
        named = getattr(self.torch, kind[value.array.dtype.name])
        return "storage", named, value.key, "cpu", value.array.size, *self.more


@pytest.fixture
def save_torch(monkeypatch):
    """``save_torch(path, content)``: a file in the form of ``torch.save``; ``save_torch.old``: as
    before PyTorch 1.6, with the strides and the bytes of each storage that are given."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    torch._utils = utils
    for name in ("FloatStorage", "LongStorage", "HalfStorage"):
        setattr(torch, name, type(name, (), {"__module__": "torch"}))
    utils._rebuild_tensor_v2 = types.FunctionType(
        (lambda *_: None).__code__, {}, "_rebuild_tensor_v2"
    )
    utils._rebuild_tensor_v2.__module__ = "torch._utils"
    utils._rebuild_tensor_v2.__qualname__ = "_rebuild_tensor_v2"

    def there():
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "torch._utils", utils)

    def save(path, content, compression=zipfile.ZIP_STORED):
        there()
        data = io.BytesIO()
        pickler = _Pickler(data, torch)
        pickler.dump(content)
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("archive/data.pkl", data.getvalue())
            archive.writestr("archive/byteorder", "little")
            for storage in pickler.storages:
                raw = storage.array.tobytes(order="A")
                archive.writestr(f"archive/data/{storage.key}", raw)
            archive.writestr("archive/version", "3\n")
        return path

    def old(path, content, stride=None, stored=None):
        there()
        with path.open("wb") as file:
            for head in (_MAGIC, 1001, {"protocol_version": 1001, "little_endian": True}):
                pickle.dump(head, file, protocol=2)
            pickler = _Pickler(file, torch, stride=stride, old=True)
            pickler.dump(content)
            pickle.dump([storage.key for storage in pickler.storages], file, protocol=2)
            for storage in pickler.storages:
                raw = storage.array.tobytes(order="A") if stored is None else bytes(stored)
                file.write(storage.array.size.to_bytes(8, "little") + raw)
        return path

    save.old = old
    return save
