"""10,000 tars of 10,000 samples, shuffled as one set: memory, and time to the first batch.

    python -m experiments.benchmarks.loader_scale                 # about a minute, 2.1 GB of disk
    python -m experiments.benchmarks.loader_scale --tars 100      # smaller

A simulation: one tar of 10,000 tiny pictures is linked 10,000 times under different names, and its
index is repeated as often, so it has its true size and every sample is really read. A second
process then opens the set and takes batches; its numbers are printed. Making the index of one tar
is timed as well: that is what each of the 10,000 would take.
"""

import argparse
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time

import numpy as np
from PIL import Image

from contrastive.data.config import DataConfig
from contrastive.data.source_config import FieldsConfig
from contrastive.data.tar_index import Slot, index_shard

SAMPLES = 10_000
FIELDS = FieldsConfig(held_out_share=0.0)
SLOTS = (Slot("image", ("png",), True), Slot("caption", ("txt",), True))


def make_tar(path: pathlib.Path) -> None:
    """A tar of tiny pictures with captions."""
    with tarfile.open(path, "w") as tar:
        for number in range(SAMPLES):
            picture = io.BytesIO()
            colour = (number % 256, number // 256, 128)
            Image.new("RGB", (8, 8), colour).save(picture, "PNG")
            for suffix, data in (("png", picture.getvalue()), ("txt", f"thing {number}".encode())):
                info = tarfile.TarInfo(f"{number:06}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def make_index(pattern: str, cache: pathlib.Path, tars: int, rows: np.ndarray) -> None:
    """The index that `contrastive data index` would make of the linked tars."""
    from contrastive.data.webdataset import _identify

    shards, digest = _identify(pattern, FIELDS, captions=True)
    folder = cache / f"webdataset-{digest}"
    folder.mkdir(parents=True)
    with open(folder / "samples.bin", "wb") as table, open(folder / "keys.bin", "wb") as keys:
        for _ in range(tars):
            table.write(rows[:, :-1].tobytes())
            keys.write(rows[:, -1].tobytes())
    about = {
        "shards": shards,
        "starts": [number * len(rows) for number in range(tars + 1)],
        "members": ["image", "txt"],
        "bad": [],
        "counts": {},
        "notes": [],
        "fingerprint": "simulated",
    }
    (folder / "index.json").write_text(json.dumps(about))


def settings(folder: pathlib.Path) -> DataConfig:
    """As a run would have them."""
    return DataConfig(
        source=f"{folder}/shards/*.tar",
        cache=str(folder / "cache"),
        fields=FIELDS,
        image_size=8,
        text_length=16,
    )


def take(folder: pathlib.Path, batches: int) -> dict[str, float]:
    """Opens the set and takes batches; runs in a process of its own."""
    began = time.perf_counter()
    from contrastive.data.pipeline import BatchLoader, load_tokenizer, open_source

    config = settings(folder)
    imported = time.perf_counter()
    source = open_source(config, "train")
    opened = time.perf_counter()
    tokenizer = load_tokenizer(config, source)
    learned = time.perf_counter()
    loader = BatchLoader(source, config, tokenizer, batch_size=1024, seed=0)
    examples = [next(loader)["example"]]
    first = time.perf_counter()
    examples += [next(loader)["example"] for _ in range(batches - 1)]
    done = time.perf_counter()
    loader.close()
    seen = np.concatenate(examples)
    assert len(np.unique(seen)) == len(seen)
    status = pathlib.Path("/proc/self/status").read_text()
    memory = {
        name: int(line.split()[1]) / 2**20
        for line in status.splitlines()
        for name in ("VmHWM", "RssAnon", "RssFile")
        if line.startswith(f"{name}:")
    }
    return {
        "samples": len(source),
        "seconds_to_import": imported - began,
        "seconds_to_open": opened - imported,
        "seconds_to_learn_a_vocabulary": learned - opened,
        "seconds_to_first_batch_after_that": first - learned,
        "samples_a_second": 1024 * (batches - 1) / (done - first),
        "tars_touched": len(np.unique(seen // SAMPLES)),
        **{f"{name}_GiB": size for name, size in memory.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tars", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is not None:
        print(json.dumps(take(options.folder, options.batches)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_tar(folder / "one.tar")
        began = time.perf_counter()
        rows = index_shard(str(folder / "one.tar"), SLOTS).rows
        print(f"index of one tar: {time.perf_counter() - began:.2f} s")
        (folder / "shards").mkdir()
        for number in range(options.tars):
            (folder / "shards" / f"{number:05}.tar").symlink_to(folder / "one.tar")
        make_index(f"{folder}/shards/*.tar", folder / "cache", options.tars, rows)
        module = "experiments.benchmarks.loader_scale"
        command = [sys.executable, "-m", module, "--folder", name, "--batches", options.batches]
        answer = subprocess.run(
            [str(word) for word in command], check=True, capture_output=True, text=True
        )
    for key, value in json.loads(answer.stdout.splitlines()[-1]).items():
        print(f"{key:>34}  {value:,.2f}")


if __name__ == "__main__":
    main()
