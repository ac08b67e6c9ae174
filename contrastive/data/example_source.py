"""ArrayRecord, TFRecord, tensorflow-datasets builders: serialised ``tf.train.Example``s by number.

Nothing of TensorFlow is needed: the protocol buffer is read as it is, encoded pictures stay bytes.
"""

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64
from tensorflow_datasets.proto import tf_example_pb2

from contrastive.data import files
from contrastive.data.fields import Fields
from contrastive.data.records import DataErrors, Pairs, Record, SampleError
from contrastive.data.source_config import FieldsConfig
from contrastive.data.splits import HELD_OUT, check_split, fraction, nonempty
from contrastive.data.text_fields import TextFields, settle
from contrastive.data.tfrecords import Shard, TFRecords
from contrastive.errors import DataError, NoSuchSplit, StorageError


@runtime_checkable
class Payloads(Protocol):
    """Random access to serialised records."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class ExampleSource:
    """Records of serialised examples.

    Args:
      payloads: The serialised examples.
      fields: Which feature is what.
      rows: Which of them.
      name: What samples are called in messages, before their number.
      fingerprint: A digest of the files.
    """

    def __init__(
        self,
        payloads: Payloads,
        fields: Fields | TextFields,
        rows: Int64[np.ndarray, " n"],
        name: str,
        fingerprint: str,
    ) -> None:
        self._payloads, self.fields, self._rows, self._name = payloads, fields, rows, name
        self.errors = DataErrors()
        for path in payloads.cut_short if isinstance(payloads, TFRecords) else ():
            fault = SampleError("truncated file", "its last record is cut short and left out")
            self.errors.add(-1, path, fault)
        part = hashlib.blake2b(rows.tobytes(), digest_size=8).hexdigest()
        self.fingerprint = fingerprint + part + fields.fingerprint

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> Record:
        row = int(self._rows[index])
        key = f"{self._name} (record {row})"
        try:
            values = parse_example(self._payloads[row])
        except OSError as error:
            raise StorageError(
                f"{key} could be read when the file was opened and no longer can "
                f"({error.strerror or error}). Put it back, and the same command goes on."
            ) from error
        except Exception as error:  # the reader raises whatever its C++ half says
            raise SampleError("damaged record", f"{error}", key=key) from error
        return self.fields.record(values, base=self._name, key=key)


def parse_example(payload: bytes) -> dict[str, Any]:
    """The features of a ``tf.train.Example``: a value where there is one, else a list of them.

    Raises:
      ValueError: It is no such message, or has no features.
    """
    try:
        example = tf_example_pb2.Example.FromString(payload)  # pyright: ignore[reportAttributeAccessIssue]
    except Exception as error:
        raise ValueError("the record is not a tf.train.Example") from error
    values: dict[str, Any] = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        found = [] if kind is None else list(getattr(feature, kind).value)
        values[name] = found[0] if len(found) == 1 else found or None
    if not values:
        raise ValueError("the record is not a tf.train.Example with features")
    return values


def make_example(features: dict[str, bytes | list[bytes] | int]) -> bytes:
    """A serialised ``tf.train.Example``."""
    example = tf_example_pb2.Example()  # pyright: ignore[reportAttributeAccessIssue]
    for name, value in features.items():
        if isinstance(value, int):
            example.features.feature[name].int64_list.value.append(value)
        else:
            values = [value] if isinstance(value, bytes) else value
            example.features.feature[name].bytes_list.value.extend(values)
    return example.SerializeToString(deterministic=True)


def open_records(
    kind: Literal["array_record", "tfrecord"],
    pattern: str,
    split: str,
    config: FieldsConfig,
    pairs: Pairs,
) -> ExampleSource:
    """Opens the records of a split of ArrayRecord or TFRecord files as a kind of pairs.

    Raises:
      DataError: Files, features or the split are missing, or there is no record.
    """
    where, named = files.of_split(pattern, split)
    if kind == "array_record":
        files.check_local(where, "ArrayRecord files", "TFRecord, Parquet or tars")
    paths = files.expand(where, _SUFFIXES[kind])
    try:
        payloads = _OPEN[kind](paths)
        count = len(payloads)
    except Exception as error:
        raise DataError(f"{where} cannot be read as {kind}: {error}.") from error
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        digest.update(f"{os.path.basename(path)} {files.stamp(path)[0]}".encode())
    fields = settle(pairs, config, _features(payloads, count, where), where)
    rows = _rows(where, split, count, config, named)
    return ExampleSource(payloads, fields, rows, os.path.basename(paths[0]), digest.hexdigest())


def _open_array_records(paths: list[str]) -> Payloads:
    from array_record.python import array_record_data_source

    return array_record_data_source.ArrayRecordDataSource(paths)


def _open_tf_records(paths: list[str]) -> Payloads:
    return TFRecords([Shard(path) for path in paths])


_SUFFIXES = {"array_record": (".array_record", ".arrayrecord"), "tfrecord": (".tfrecord",)}
_OPEN: dict[str, Callable[[list[str]], Payloads]] = {
    "array_record": _open_array_records,
    "tfrecord": _open_tf_records,
}


def open_tfds(
    source: str, split: str, config: FieldsConfig, pairs: Pairs, notify: Callable[[str], None]
) -> ExampleSource:
    """Opens a split of a tensorflow-datasets builder: ``tfds:NAME[/CONFIG][:VERSION][:SPLIT]``, or
    ``tfds:FOLDER[:SPLIT]`` of a prepared data set. ``SPLIT`` is what is trained on.

    A data set that is not prepared yet is prepared in tensorflow-datasets' own folder, as
    ``tfds.data_source`` does.

    Raises:
      DataError: There is no such builder or split, it cannot be prepared, or its features are
        missing.
    """
    files.check_local(source.removeprefix("tfds:"), "prepared data sets", "their TFRecord files")
    name, pinned = _name_and_split(source)
    builder = _builder(name, notify)
    known = list(builder.info.splits)
    wanted = pinned if pinned and split == "train" else split
    if wanted.partition("[")[0] not in known:
        raise NoSuchSplit(f"{source} has no split {wanted!r}; it has {', '.join(known)}.")
    payloads = _payloads(builder, wanted)
    features, caption = builder.info.features, config.caption or "label"
    names = (
        features[caption].names if caption in features and _is_class(features[caption]) else None
    )
    found = _features(payloads, len(payloads), source)
    fields = settle(pairs, config, found, source, names)
    rows = np.arange(len(payloads), dtype=np.int64)
    about = f"{builder.info.full_name} {wanted} {len(payloads)} {builder.info.dataset_size}"
    return ExampleSource(payloads, fields, rows, f"{builder.name} {wanted}", about)


def _payloads(builder: Any, split: str) -> Payloads:
    """The records of a split, in whatever files they were prepared."""
    import tensorflow_datasets as tfds

    if builder.info.file_format == tfds.core.FileFormat.TFRECORD:
        return TFRecords(
            [
                Shard(os.fspath(part.filename), part.skip, None if part.take < 0 else part.take)
                for part in builder.info.splits[split].file_instructions
            ]
        )
    return builder.as_data_source(
        split=split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES
    )


def _is_class(feature: Any) -> bool:
    """Whether the numbers of a feature have names."""
    return bool(getattr(feature, "names", None))


def _name_and_split(source: str) -> tuple[str, str]:
    match = re.fullmatch(r"tfds:([^:]+(?::\d+\.\d+\.\d+)?)(?::(.+))?", source)
    if match is None:
        raise DataError(f"{source!r} is not of the form tfds:NAME[/CONFIG][:VERSION][:SPLIT].")
    return match[1], match[2] or ""


def _builder(name: str, notify: Callable[[str], None]) -> Any:
    import tensorflow_datasets as tfds

    try:
        folder = os.path.expanduser(name)
        if os.path.isdir(folder):
            return tfds.builder_from_directory(folder)
        builder = tfds.builder(name, file_format="array_record")
        if not builder.info.splits or not os.path.isdir(builder.data_dir):
            notify(f"Preparing {name} in {builder.data_dir} ...")
            with contextlib.redirect_stdout(io.StringIO()):
                builder.download_and_prepare()
        return builder
    except ModuleNotFoundError as error:
        raise DataError(
            f"tfds:{name} cannot be prepared without {error.name}: this builder needs "
            "contrastive[tensorflow] to be prepared (not to be trained on)."
        ) from error
    except Exception as error:  # builders raise whatever they like
        line = str(error).strip().split("\n")[0]
        raise DataError(f"tfds:{name} cannot be opened: {line}.") from error


def _features(payloads: Payloads, count: int, where: str) -> Sequence[str]:
    if not count:
        raise DataError(f"{where} holds no records.")
    try:
        return list(parse_example(payloads[0]))
    except Exception as error:
        raise DataError(f"{where} holds something else than tf.train.Example: {error}.") from error


def _rows(
    where: str, split: str, count: int, config: FieldsConfig, named: bool
) -> Int64[np.ndarray, " n"]:
    rows = np.arange(count, dtype=np.int64)
    if named:
        return rows
    check_split(where, split, "{split} in config.data.source")
    share = config.held_out_share
    out = np.array([fraction(str(row)) < share for row in range(count)]) if share else rows < 0
    setting = f"config.data.fields.held_out_share = {share}"
    return nonempty(where, split, rows[out == (split == HELD_OUT)], setting)
