"""Descriptions of Debian packages as pairs of texts: the line in lists, and the first paragraph.

    python -m experiments.data.debian_descriptions --output=data/debian
    contrastive data stats --config=... --config.data.source=data/debian/pairs.jsonl \\
        --config.data.pairs=texts

A package may have several descriptions over time; each line and each paragraph counts once, and
paragraphs of fewer than eight words do not. 2,000 pairs are ``validation``. The descriptions come
from the archive that this machine's ``apt`` is set to use; its own lists stay as they are.

Licence: each description belongs to its package and is under that package's (free) licence. Make
the file where it is needed; do not pass it on as a whole.
"""

import hashlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from experiments.data.packages import arguments, held_out, run, write_rows

HELD_OUT = 2000
LEAST_WORDS = 8


def translations(folder: Path) -> str:
    """The English descriptions of the archive."""
    lists = (folder / "debian-lists").resolve()
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    if not list(lists.glob("*_Translation-en*")):
        options = (
            f"Dir::State::Lists={lists}",
            "APT::Get::List-Cleanup=false",
            "Acquire::Languages=en",
            "Acquire::Languages::=en",
        )
        run(["apt-get", *(f"-o{option}" for option in options), "update"], folder)
    found = sorted(map(str, lists.glob("*_main_i18n_Translation-en*")))
    command = ["/usr/lib/apt/apt-helper", "cat-file", *found]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def descriptions(text: str) -> Iterator[tuple[str, str, str]]:
    """Package, line and first paragraph of each entry."""
    for stanza in text.split("\n\n"):
        package = re.search(r"^Package: (.+)$", stanza, re.MULTILINE)
        about = re.search(r"^Description-en: (.*(?:\n .*)*)", stanza, re.MULTILINE)
        if package is None or about is None:
            continue
        line, _, rest = about[1].partition("\n")
        paragraph = rest.split("\n .\n")[0]
        yield package[1], line.strip(), " ".join(paragraph.split())


def main() -> None:
    options = arguments(__doc__, "data/debian")
    lines: set[str] = set()
    paragraphs: set[str] = set()
    rows: dict[str, dict[str, str]] = {}
    for package, line, paragraph in descriptions(translations(options.packages)):
        if line in lines or paragraph in paragraphs or len(paragraph.split()) < LEAST_WORDS:
            continue
        lines.add(line)
        paragraphs.add(paragraph)
        key = f"{package} {hashlib.sha256(paragraph.encode()).hexdigest()[:8]}"
        rows[key] = {"key": key, "query": line, "positive": paragraph}
    out = held_out(rows, HELD_OUT)
    for key, row in rows.items():
        row["split"] = "validation" if key in out else "train"
    write_rows(options.output / "pairs.jsonl", list(rows.values()))


if __name__ == "__main__":
    main()
