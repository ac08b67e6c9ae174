"""Zip files of strangers: nothing is unpacked that is far larger than what is there."""

import pathlib
import zipfile

from contrastive.errors import WeightsError

_HARMLESS = 64 << 20  # an entry up to this size may be packed as tightly as it likes
_TIGHTEST = 100  # times that a larger one may be smaller when packed; weights hardly shrink
_ENTRIES = 200_000


def open_zip(path: pathlib.Path) -> zipfile.ZipFile:
    """Opens a zip file whose directory says nothing suspicious.

    Raises:
      WeightsError: It is damaged, or unpacks to far more than it is.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise WeightsError(f"{path} is damaged: {error}.") from error
    entries = archive.infolist()
    total = sum(entry.file_size for entry in entries)
    size = path.stat().st_size
    bomb = len(entries) > _ENTRIES or any(
        entry.file_size > max(_HARMLESS, _TIGHTEST * max(entry.compress_size, 1))
        for entry in entries
    )
    if bomb or total > max(_HARMLESS, _TIGHTEST * size):
        archive.close()
        raise WeightsError(
            f"{path} has {size:,} bytes and would unpack to {total:,}: this is no file of weights. "
            "Nothing was unpacked."
        )
    return archive


def read_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """The bytes of one entry, never more than its directory says."""
    with archive.open(info) as handle:
        data = handle.read(info.file_size)
        if handle.read(1):
            raise WeightsError(f"{archive.filename} is damaged: {info.filename} is too long.")
    return data
