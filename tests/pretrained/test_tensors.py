"""Files of tensors: what is read, and what is refused before anything of it runs."""

import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from contrastive.errors import WeightsError
from contrastive.pretrained.tensors import read_tensors, write_safetensors


def arrays():
    rng = np.random.default_rng(0)
    return {
        "a": rng.normal(size=(3, 4)).astype(np.float32),
        "b": rng.normal(size=(2, 5)).astype(np.float32).T,
        "scalar": np.asarray(2.5, np.float32),
        "half": rng.normal(size=4).astype(np.float16),
        "ids": np.arange(7),
        "empty": np.zeros((0, 4), np.float32),
    }


def equal(found, wanted):
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


def test_safetensors(tmp_path):
    wanted = arrays() | {"bf16": np.ones((2, 2), ml_dtypes.bfloat16)}
    write_safetensors(tmp_path / "x.safetensors", wanted)
    equal(read_tensors(tmp_path / "x.safetensors"), wanted)
    (tmp_path / "x.safetensors").rename(tmp_path / "no_name")
    equal(read_tensors(tmp_path / "no_name"), wanted)


def test_torch(tmp_path, save_torch):
    equal(read_tensors(save_torch(tmp_path / "x.bin", arrays())), arrays())


def test_C10_weights_beside_an_optimizer_or_under_a_name(tmp_path, save_torch):
    content = {"state_dict": arrays(), "optimizer": {"step": 3, "m": [arrays()["a"]]}, "epoch": 2}
    equal(read_tensors(save_torch(tmp_path / "x.pt", content)), arrays())


def test_npz(tmp_path):
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", **arrays())
        equal(read_tensors(tmp_path / "x.npz"), arrays())


def sharded(tmp_path):
    wanted = arrays()
    names = {}
    for i, part in enumerate((["a", "b"], ["scalar", "half", "ids", "empty"])):
        file = f"model-{i + 1:05}-of-00002.safetensors"
        write_safetensors(tmp_path / file, {name: wanted[name] for name in part})
        names |= dict.fromkeys(part, file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return index


def test_shards(tmp_path):
    equal(read_tensors(sharded(tmp_path)), arrays())


def test_C10_a_missing_shard_is_named(tmp_path):
    index = sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"missing are model-00002-of-00002\.safe"):
        read_tensors(index)


def test_an_index_cannot_name_files_elsewhere(tmp_path):
    index = sharded(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(WeightsError, match="outside of its folder"):
        read_tensors(index)


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {}}',
        '{"weight_map": {"a": ""}}',
        '{"weight_map": {"a": "model.safetensors.index.json"}}',
        "[" * 100_000,
    ],
)
def test_what_is_no_index(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(WeightsError, match="not the index"):
        read_tensors(tmp_path / "model.safetensors.index.json")


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.97])
@pytest.mark.parametrize("name", ["x.safetensors", "x.bin", "x.npz"])
def test_truncated_files(tmp_path, save_torch, name, share):
    path = tmp_path / name
    if name == "x.bin":
        save_torch(path, arrays())
    elif name == "x.npz":
        np.savez(path, **arrays())
    else:
        write_safetensors(path, arrays())
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(WeightsError, match=r"x\.\w+ (is damaged|holds no weights)"):
        read_tensors(path)


class Evil:
    """Unpickling makes a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("form", ["zip", "plain", "list"])
def test_a_pickle_with_code_runs_nothing(tmp_path, form):
    content = {"weight": Evil(tmp_path / "ran")}
    data = pickle.dumps([content] if form == "list" else content, protocol=2)
    path = tmp_path / "x.bin"
    if form == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", data)
    else:
        path.write_bytes(data)
    with pytest.raises(WeightsError, match=r"asks for (posix|nt)\.mkdir; only tensors"):
        read_tensors(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "code",
    [
        b"cbuiltins\neval\n(S'1+1'\ntR.",
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x02cnumpy\nload\n.",
        b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}(X\x08\x00\x00\x00__code__K\x01ub.",
    ],
)
def test_other_ways_to_name_code(tmp_path, code):
    with zipfile.ZipFile(tmp_path / "x.bin", "w") as archive:
        archive.writestr("archive/data.pkl", code)
    with pytest.raises(WeightsError):
        read_tensors(tmp_path / "x.bin")


def nested(depth):
    """Instructions that make a tuple of the one before, twice, ``depth`` times: few bytes, and
    2^depth entries for whoever walks through it."""
    return b"".join([b")", b"2\x86" * depth])


SMALL_AND_COSTLY = {
    "memo": b"\x80\x02}r" + struct.pack("<I", 1 << 24) + b".",
    "bytes": b"\x80\x05\x96" + struct.pack("<Q", 1 << 28) + b".",
    "key": b"\x80\x02}" + nested(22) + b"K\x01s.",
    "ordered": b"\x80\x02ccollections\nOrderedDict\n]" + nested(22) + b"K\x01\x86a\x85R.",
    "set": b"\x80\x04\x8f(" + nested(22) + b"\x90.",
    "shape": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nFloatStorage\n"
    b"U\x010U\x03cpuK\x01tQK\x00" + nested(22) + b"K\x00K\x00\x86\x89}tR.",
}


@pytest.mark.parametrize("name", SMALL_AND_COSTLY)
def test_a_small_pickle_cannot_ask_for_much(tmp_path, name):
    """Neither memory, nor hashes or texts of what it says: 2^22 steps stand for 2^60."""
    with zipfile.ZipFile(tmp_path / "x.bin", "w") as archive:
        archive.writestr("archive/data.pkl", SMALL_AND_COSTLY[name])
        archive.writestr("archive/data/0", b"\0" * 4)
    tracemalloc.start()
    try:
        with pytest.raises(WeightsError, match=r"is damaged|no state dict") as error:
            read_tensors(tmp_path / "x.bin")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert name == "memo" or "is damaged" in str(error.value)
    assert len(str(error.value)) < 500


def test_numpy_objects_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.array([Evil(tmp_path / "ran")], object))
    with pytest.raises(WeightsError, match="Python objects"):
        read_tensors(tmp_path / "x.npz")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["bomb.npz", "bomb.bin"])
def test_zip_bombs_are_not_unpacked(tmp_path, name):
    data = io.BytesIO()
    np.save(data, np.zeros(80 << 18, np.float32))  # 80 MiB, that become 80 KiB
    inner = "a.npy" if name.endswith("npz") else "archive/data/0"
    with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(inner, data.getvalue())
    with pytest.raises(WeightsError, match="would unpack to 83,886,208"):
        read_tensors(tmp_path / name)


def test_an_array_that_claims_more_than_is_there(tmp_path):
    header = np.lib.format.header_data_from_array_1_0(np.zeros(3))
    header["shape"] = (1 << 50,)
    data = io.BytesIO()
    np.lib.format.write_array_header_1_0(data, header)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", data.getvalue())
    with pytest.raises(WeightsError, match="cut short"):
        read_tensors(tmp_path / "x.npz")


@pytest.mark.parametrize("damage", ["packed", "encrypted", "method", "header", "shape"])
def test_other_damage_of_an_archive(tmp_path, damage):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, a=np.random.default_rng(0).normal(size=2000))
    data = bytearray(path.read_bytes())
    directory = data.find(b"PK\x01\x02")
    if damage == "packed":
        data[500:540] = b"\xff" * 40
    elif damage == "encrypted":
        data[6] |= 1
        data[directory + 8] |= 1
    elif damage == "method":
        data[8] = data[directory + 10] = 99
    path.write_bytes(data)
    header = {
        "header": "{'descr': (((",
        "shape": "{'descr': '<f4', 'fortran_order': 0, 'shape': (True,)}",
    }
    if damage in header:
        text = header[damage].encode()
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
    with pytest.raises(WeightsError, match="is damaged"):
        read_tensors(path)


def test_numbers_of_eight_bits_are_not_read(tmp_path):
    header = json.dumps({"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0")
    with pytest.raises(WeightsError, match=r"of a kind that is not read here: .*float8"):
        read_tensors(path)


def test_the_form_before_pytorch_1_6(tmp_path, save_torch):
    values = np.arange(12, dtype=np.float32)
    wanted = {
        "a": values.reshape(3, 4),
        "b": values.reshape(3, 4).T,
        "c": np.array(5.0, np.float32),
    }
    equal(read_tensors(save_torch.old(tmp_path / "x.pt", wanted)), wanted)
    data = (tmp_path / "x.pt").read_bytes()
    for end in (10, 100, len(data) - 1):
        (tmp_path / "x.pt").write_bytes(data[:end])
        with pytest.raises(WeightsError, match="is damaged"):
            read_tensors(tmp_path / "x.pt")


def test_a_small_file_cannot_claim_a_large_storage(tmp_path, save_torch):
    """Nothing is made of the size that it claims, and nothing read beside what it has."""
    claimed = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (1 << 28, 2), (0, 0))
    path = save_torch.old(tmp_path / "x.pt", {"a": claimed}, stride=(1, 1 << 28), stored=4)
    assert path.stat().st_size < 1000
    with pytest.raises(WeightsError, match="larger than the file"):
        read_tensors(path)


def test_tensors_that_share_a_storage_are_not_copied(tmp_path, save_torch):
    square = np.arange(9, dtype=np.float32).reshape(3, 3)
    found = read_tensors(save_torch(tmp_path / "x.bin", {"a": square.T}))["a"]
    np.testing.assert_array_equal(found, square.T)
    assert found.strides == square.T.strides  # a view


def test_tensors_beyond_their_storage(tmp_path, save_torch):
    save_torch(tmp_path / "x.bin", {"a": np.zeros((2, 3), np.float32)})
    with zipfile.ZipFile(tmp_path / "x.bin") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    wide = parts["archive/data.pkl"].replace(b"K\x02K\x03\x86", b"K\x7fK\x7f\x86")
    assert wide != parts["archive/data.pkl"]
    with zipfile.ZipFile(tmp_path / "x.bin", "w") as archive:
        for name, data in (parts | {"archive/data.pkl": wide}).items():
            archive.writestr(name, data)
    with pytest.raises(WeightsError, match="beyond its storage"):
        read_tensors(tmp_path / "x.bin")


def test_other_files(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"hello, I am a text")
    with pytest.raises(WeightsError, match="holds no weights"):
        read_tensors(tmp_path / "x.bin")
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(WeightsError, match="no file of PyTorch"):
        read_tensors(tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02N.")
        archive.writestr("a/constants.pkl", b"\x80\x02N.")
    with pytest.raises(WeightsError, match="TorchScript program"):
        read_tensors(tmp_path / "x.pt")
    with pytest.raises(WeightsError, match="there is no file"):
        read_tensors(tmp_path / "nothing")
    save_file({"a": np.zeros(3)}, str(tmp_path / "fine.safetensors"))
    assert list(read_tensors(tmp_path / "fine.safetensors")) == ["a"]
