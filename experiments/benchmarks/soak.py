"""Whether the loader's memory stays flat: batches from tars for an hour, resident memory beside.

    python -m experiments.benchmarks.soak                      # an hour
    python -m experiments.benchmarks.soak --minutes=5 --load=1

Generated pictures in tars go through the whole training path (read, decode, random part, colours,
tokens, batch) in two threads; a tenth of them is damaged, so that errors are counted as well. The
memory of the process is read once a second. The line through it over the second half of the time
says how much it grows in an hour; the run fails above ``--most`` MiB.
"""

import argparse
import io
import pathlib
import sys
import tarfile
import tempfile
import time

import numpy as np
from PIL import Image

from contrastive.data.config import CropConfig, DataConfig
from contrastive.data.pipeline import BatchLoader, load_tokenizer, open_source
from contrastive.data.source_config import FieldsConfig

_A_TAR, _TARS = 100, 10


def make_tars(folder: pathlib.Path) -> None:
    """1,000 samples of 200 × 160 pixels, every tenth one cut short."""
    for number in range(_TARS):
        with tarfile.open(folder / f"a-{number:02}.tar", "w") as tar:
            for i in range(_A_TAR):
                rng = np.random.default_rng(number * _A_TAR + i)
                small = rng.integers(0, 256, (10, 8, 3), dtype=np.uint8)
                data = io.BytesIO()
                Image.fromarray(small).resize((160, 200)).save(data, "JPEG", quality=85)
                picture = data.getvalue()
                picture = picture[: len(picture) // 2] if i % 10 == 9 else picture
                caption = f"thing {number} {i} of many".encode()
                for suffix, value in (("jpg", picture), ("txt", caption)):
                    info = tarfile.TarInfo(f"{i:06}.{suffix}")
                    info.size = len(value)
                    tar.addfile(info, io.BytesIO(value))


def resident_mib() -> float:
    """What this process has taken for itself: without the pages of files, which come and go."""
    status = pathlib.Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--load", type=float, default=1.0, help="share of the time that it works")
    parser.add_argument("--most", type=float, default=16.0, help="MiB an hour")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_tars(folder)
        config = DataConfig(
            source=f"{folder}/a-*.tar",
            cache=str(folder / "cache"),
            fields=FieldsConfig(held_out_share=0.0),
            image_size=96,
            crop=CropConfig(area=(0.3, 1.0)),
            decoding="train",
            check="during",
            max_bad_share=0.2,
        )
        source = open_source(config, "train")
        tokenizer = load_tokenizer(config, source, folder)
        loader = BatchLoader(source, config, tokenizer, batch_size=64, seed=0)
        times, memory, batches = [], [], 0
        begin = time.monotonic()
        while (now := time.monotonic() - begin) < 60 * options.minutes:
            next(loader)
            batches += 1
            took = time.monotonic() - begin - now
            time.sleep(took * (1 / options.load - 1))
            if not times or now - times[-1] > 1.0:
                times.append(now)
                memory.append(resident_mib())
                if sys.stderr.isatty():
                    print(f"\r{now / 60:6.1f} min {memory[-1]:8.1f} MiB", end="", file=sys.stderr)
        loader.close()
    half = len(times) // 2
    growth = float(np.polyfit(times[half:], memory[half:], 1)[0]) * 3600
    quarters = [float(np.mean(part)) for part in np.array_split(memory, 4)]
    print(
        f"{batches:,} batches of 64 in {options.minutes:g} minutes; mean of each quarter "
        f"{', '.join(f'{mib:.1f}' for mib in quarters)} MiB; over the second half it grows by "
        f"{growth:+.1f} MiB an hour."
    )
    return int(growth > options.most)


if __name__ == "__main__":
    sys.exit(main())
