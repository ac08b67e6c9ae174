"""The readers of every format that is not a table of text."""

import logging
import pathlib

from contrastive.data import files
from contrastive.data.config import DataConfig
from contrastive.data.records import Source
from contrastive.data.source_config import Format
from contrastive.errors import ConfigError

_log = logging.getLogger(__name__)


def open_reader(config: DataConfig, kind: Format, split: str) -> Source:
    """Opens the records of a split.

    Raises:
      DataError: The data is missing, empty or damaged, or has no such split.
    """
    source, fields, pairs = config.source, config.fields, config.pairs
    if kind == "jsonl":
        from contrastive.data.jsonl_source import open_jsonl

        return open_jsonl(source, split, fields, pairs)
    if kind in ("parquet", "arrow"):
        from contrastive.data.arrow_source import open_table

        return open_table(source, kind, split, fields, pairs)
    if kind in ("array_record", "tfrecord"):
        from contrastive.data.example_source import open_records

        return open_records(kind, source, split, fields, pairs)
    if kind == "tfds":
        from contrastive.data.example_source import open_tfds

        return open_tfds(source, split, fields, pairs, _log.warning)
    if kind == "image_folder":
        from contrastive.data.folder_source import open_folder

        return open_folder(source, split, fields, captions=pairs == "captions")
    if kind == "webdataset":
        return _open_webdataset(config, split)
    raise ConfigError(f"config.data.format = {kind!r} has no reader.")


def _open_webdataset(config: DataConfig, split: str) -> Source:
    import numpy as np

    from contrastive.data import webdataset
    from contrastive.data.shard_cache import ShardCache
    from contrastive.data.splits import HELD_OUT, check_split, nonempty

    pattern, named = files.of_split(config.source, split)
    if not named:
        check_split(pattern, split, "{split} in config.data.source")
    cache = pathlib.Path(config.cache).expanduser()
    captions = config.pairs == "captions"
    index, fields = webdataset.tar_index(
        pattern, config.fields, cache, captions=captions, on_first_use=True
    )
    read_at = files.read_at
    if config.stream.lanes and any(map(files.is_remote, index.shards)):
        room = int(config.stream.cache_gib * 2**30)
        read_at = ShardCache(cache / "tars", room).read_at
    share = config.fields.held_out_share
    if named or (not share and split == "train"):
        return webdataset.WebDatasetSource(index, fields, read_at=read_at)
    chosen = webdataset.held_out(index, share) == (split == HELD_OUT)
    small = np.uint32 if len(index) < 1 << 32 else np.int64
    rows = np.flatnonzero(chosen).astype(small)
    setting = f"config.data.fields.held_out_share = {share}"
    rows = nonempty(pattern, split, rows, setting)
    return webdataset.WebDatasetSource(index, fields, rows, read_at)
