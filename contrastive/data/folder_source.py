"""A folder of pictures: with a text file beside each (``cat.jpg``, ``cat.txt``), or in folders that
are named like what they show."""

import hashlib
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from contrastive.data import files
from contrastive.data.fields import decode_text, encoded
from contrastive.data.records import DataErrors, Record, SampleError
from contrastive.data.source_config import FieldsConfig
from contrastive.data.splits import HELD_OUT, check_split, fraction, nonempty
from contrastive.errors import DataError, NoSuchSplit

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_SPLIT_FOLDERS = {"train": ("train",), HELD_OUT: (HELD_OUT, "valid", "val"), "test": ("test",)}


class FolderSource:
    """Records of the pictures of a folder.

    Args:
      folder: What the names are relative to.
      names: The pictures.
      texts: Whether captions are in text files beside them; else the innermost folder's name is;
        None: there are no captions.
      undecodable: What becomes of a text that is not UTF-8.
    """

    def __init__(
        self, folder: pathlib.Path, names: Sequence[str], texts: bool | None, undecodable: str
    ) -> None:
        self._folder, self._names, self._texts = folder, names, texts
        self._undecodable = undecodable
        self.errors = DataErrors()
        listing = "\n".join(names).encode("utf-8", "surrogateescape")
        self.fingerprint = hashlib.blake2b(listing, digest_size=8).hexdigest()

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int, /) -> Record:
        name = self._names[index]
        try:
            caption, keywords = self.text(index)
            image = encoded(str(self._folder / name), "")
        except SampleError as error:
            raise SampleError(error.reason, error.detail, key=name) from error
        return Record(image=image, caption=caption, keywords=keywords, id=-1, key=name)

    def text(self, index: int, /) -> tuple[str, list[str]]:
        """Caption of a picture; there are no keywords."""
        name = self._names[index]
        if self._texts is None:
            return "", []
        if not self._texts:
            inner = os.path.basename(os.path.dirname(name))
            return decode_text(_bytes(inner), self._undecodable).replace("_", " ").strip(), []
        try:
            data = (self._folder / name).with_suffix(".txt").read_bytes()
        except FileNotFoundError:
            return "", []
        except OSError as error:
            raise SampleError("unreadable text file", str(error), key=name) from error
        return decode_text(data, self._undecodable).strip(), []


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def open_folder(
    source: str, split: str, config: FieldsConfig, *, captions: bool = True
) -> FolderSource:
    """Opens the pictures of a split: of the folder ``train``, ``validation`` or ``test`` in it
    where there are such, else a share of all by the hash of their names. Without ``captions``
    pictures alone will do.

    Raises:
      DataError: There is no such folder or split, no picture in it, or neither text files nor
        inner folders say what the pictures show.
    """
    files.check_local(source, "folders of pictures", "webdataset tars or Parquet")
    path = pathlib.Path(source.replace("{split}", split)).expanduser()
    named = "{split}" in source
    if not path.is_dir():
        error = NoSuchSplit if named and split != "train" else DataError
        raise error(f"There is no folder {path}.")
    if not named and (path / "train").is_dir():
        found = [path / name for name in _SPLIT_FOLDERS.get(split, (split,))]
        named, path = True, next((folder for folder in found if folder.is_dir()), found[0])
        if not path.is_dir():
            raise NoSuchSplit(f"{source} has no folder for the split {split!r}.")
    names, texts = _scan(path)
    if not names:
        raise DataError(f"{path} holds no picture ({', '.join(SUFFIXES)}).")
    if captions and not texts and any(os.sep not in name for name in names):
        raise DataError(
            f"{path} holds pictures without captions: put a text file beside each (cat.jpg, "
            "cat.txt), or the pictures into folders that are named like what they show."
        )
    if not named:
        check_split(source, split, "folder")
        share, wanted = config.held_out_share, split == HELD_OUT
        rows = np.array([(fraction(name) < share) == wanted for name in names])
        setting = f"config.data.fields.held_out_share = {share}"
        chosen = nonempty(source, split, np.flatnonzero(rows).astype(np.int64), setting)
        names = [names[i] for i in chosen]
    return FolderSource(path, names, texts if captions else None, config.undecodable)


def _scan(folder: pathlib.Path) -> tuple[list[str], bool]:
    """The pictures under a folder, in order, and whether there is a text file beside any."""
    names: list[str] = []
    texts: set[str] = set()
    for inner, folders, found in os.walk(folder):
        folders.sort()
        for name in found:
            stem, suffix = os.path.splitext(os.path.join(inner, name))
            if suffix.lower() in SUFFIXES and not name.startswith("."):
                names.append(os.path.relpath(os.path.join(inner, name), folder))
            elif suffix.lower() == ".txt":
                texts.add(stem)
    stems = (os.path.splitext(os.path.join(folder, name))[0] for name in names)
    return sorted(names), any(stem in texts for stem in stems)
