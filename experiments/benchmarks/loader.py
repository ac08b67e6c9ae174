"""Images a second a core from webdataset JPEGs: each of our ways of decoding, open_clip, tf.data.

    pip install scikit-image scikit-learn        # the photographs that the test set is cut from
    python -m experiments.benchmarks.loader      # about 5 minutes
    python -m experiments.benchmarks.loader --photos 500 --rounds 3

The set: generated JPEGs of 400 to 600 pixels, cut from real photographs, varied in colour, in tars
of 500. Two measurements, in rounds that take turns, medians counted:

- one thread, one picture after another: decode, random part of (0.9, 1.0), 224 pixels (open_clip:
  its training transform, normalisation included, since it does that there);
- end to end: our batch loader with two threads on the tars, tokenizer included, and open_clip's own
  pipeline (webdataset, its transform and tokenizer, DataLoader with two workers). Our loader's
  threads give way to others (niceness 10), so the peers do here, or a busy machine would favour
  them;
- tf.data in the same way, from TFRecords, without a tokenizer.

The peers need environments of their own: `make parity` and the package webdataset there; and
`.venv-tf` with tensorflow-cpu. Without one the table has no such row. What was measured is in
README.md.
"""

import argparse
import dataclasses
import io
import json
import pathlib
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance

from contrastive.data.config import AugmentConfig, CropConfig, DataConfig
from contrastive.data.draws import example_keys
from contrastive.data.examples import read_pictures
from contrastive.data.pipeline import BatchLoader, load_tokenizer, open_source
from contrastive.data.records import Record
from contrastive.data.source_config import FieldsConfig
from contrastive.data.text_config import TokenizerConfig

HERE = pathlib.Path(__file__).parent
PEERS = {  # the Python and the script of each
    "open_clip": (".venv-parity/bin/python", "peer_open_clip_loader.py"),
    "tf.data": (".venv-tf/bin/python", "peer_tf_data_loader.py"),
}
PATHS = ("evaluation", "train", "train_fast")
BATCH = 128
_A_TAR = 500


# --- the photographs ------------------------------------------------------------------------------


def photographs() -> list[Image.Image]:
    """The colour photographs that scikit-image and scikit-learn ship."""
    import skimage.data  # pyright: ignore[reportMissingImports]
    import sklearn.datasets  # pyright: ignore[reportMissingImports]

    names = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png")
    folder = pathlib.Path(skimage.data.__file__).parent
    paths = [folder / name for name in names if (folder / name).is_file()]
    paths += sorted((pathlib.Path(sklearn.datasets.__file__).parent / "images").glob("*.jpg"))
    return [Image.open(path).convert("RGB") for path in paths]


def make_photo(sources: list[Image.Image], number: int) -> bytes:
    """A part of a photograph as a JPEG, always the same for the same number."""
    rng = np.random.default_rng(number)
    source = sources[number % len(sources)]
    size = (int(rng.integers(400, 601)), int(rng.integers(400, 601)))
    share = rng.uniform(0.5, 1.0)
    w, h = int(source.width * share), int(source.height * share)
    left, top = (int(rng.integers(0, n + 1)) for n in (source.width - w, source.height - h))
    image = source.crop((left, top, left + w, top + h)).resize(size, Image.Resampling.BICUBIC)
    for change in (ImageEnhance.Brightness, ImageEnhance.Color, ImageEnhance.Contrast):
        image = change(image).enhance(rng.uniform(0.8, 1.2))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=int(rng.integers(85, 91)))
    return data.getvalue()


def make_tars(folder: pathlib.Path, photos: int) -> list[bytes]:
    """Writes the tars and returns the pictures."""
    sources = photographs()
    encoded = [make_photo(sources, number) for number in range(photos)]
    for begin in range(0, photos, _A_TAR):
        with tarfile.open(folder / f"photos-{begin // _A_TAR:04}.tar", "w") as tar:
            for number in range(begin, min(begin + _A_TAR, photos)):
                caption = f"a photo of thing number {number}, with some more words".encode()
                for suffix, data in (("jpg", encoded[number]), ("txt", caption)):
                    info = tarfile.TarInfo(f"{number:06}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return encoded


# --- ours -----------------------------------------------------------------------------------------


def settings(decoding: str, folder: pathlib.Path) -> DataConfig:
    """Open_clip's training pictures, CLIP's texts."""
    off = {field.name: 0.0 for field in dataclasses.fields(AugmentConfig)}
    config = DataConfig(
        source=f"{folder}/photos-*.tar",
        cache=str(folder / "cache"),
        fields=FieldsConfig(held_out_share=0.0),
        image_size=224,
        text_length=77,
        tokenizer=TokenizerConfig(preset="clip"),
        crop=CropConfig(area=(0.9, 1.0)),
        augment=AugmentConfig(**off),
        check="during",
        threads=2,
    )
    return dataclasses.replace(config, decoding=decoding)


def _record(data: bytes) -> Record:
    return Record(image=data, caption="", keywords=[], id=-1, key="")


def pictures_a_second(decoding: str, folder: pathlib.Path, encoded: list[bytes]) -> float:
    """One thread, processor time."""
    config = settings(decoding, folder)
    keys = example_keys(0, np.arange(len(encoded), dtype=np.int64))
    began = time.process_time()
    for i, data in enumerate(encoded):
        read_pictures(_record(data), config, keys[i : i + 1])
    return len(encoded) / (time.process_time() - began)


def samples_a_second(decoding: str, folder: pathlib.Path, batches: int) -> float:
    """The loader, wall time, from its second batch on."""
    config = settings(decoding, folder)
    source = open_source(config, "train")
    loader = BatchLoader(source, config, load_tokenizer(config), batch_size=BATCH, seed=0)
    try:
        next(loader)
        began = time.perf_counter()
        for _ in range(batches):
            next(loader)
        return batches * BATCH / (time.perf_counter() - began)
    finally:
        loader.close()


def errors(folder: pathlib.Path, encoded: list[bytes]) -> dict[str, tuple[int, float]]:
    """Largest and mean difference from Pillow's pixels, of 255."""
    keys = example_keys(0, np.arange(len(encoded), dtype=np.int64))

    def pixels(decoding: str) -> np.ndarray:
        config = settings(decoding, folder)
        pictures = [
            read_pictures(_record(data), config, keys[i : i + 1])[0]
            for i, data in enumerate(encoded)
        ]
        return np.stack([np.asarray(picture) for picture in pictures]).astype(np.int16)

    exact = pixels("evaluation")
    off = {name: np.abs(pixels(name) - exact) for name in PATHS[1:]}
    return {name: (int(x.max()), float(x.mean())) for name, x in off.items()}


# --- the peers ------------------------------------------------------------------------------------


class Peer:
    """Another library in its own environment; a request a line, an answer a line."""

    def __init__(self, python: pathlib.Path, script: pathlib.Path, folder: pathlib.Path) -> None:
        self._process = subprocess.Popen(
            [str(python), str(script), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: object) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("the peer has died; its complaint is above.")
        return float(json.loads(answer)["rate"])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def measure(forms: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median rate of each form, in rounds that take turns."""
    rates: dict[str, list[float]] = {name: [] for name in forms}
    for number in range(rounds):
        for name, run in forms.items():
            rates[name].append(run())
        print(f"round {number + 1} of {rounds}", {n: round(r[-1]) for n, r in rates.items()})
    return {name: statistics.median(found) for name, found in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=int, default=5000)
    parser.add_argument("--sample", type=int, default=200, help="pictures of the one-thread rounds")
    parser.add_argument("--batches", type=int, default=8, help="batches of the end-to-end rounds")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        encoded = make_tars(folder, options.photos)
        some = encoded[: options.sample]
        peers = {
            name: Peer(HERE.parents[1] / python, HERE / script, folder)
            for name, (python, script) in PEERS.items()
            if (HERE.parents[1] / python).exists()
        }
        one: dict[str, Callable[[], float]] = {
            path: lambda path=path: pictures_a_second(path, folder, some) for path in PATHS
        }
        two: dict[str, Callable[[], float]] = {
            path: lambda path=path: samples_a_second(path, folder, options.batches)
            for path in PATHS
        }
        for name, peer in peers.items():
            one[name] = lambda peer=peer: peer.ask(what="transform", count=options.sample)
            two[name] = lambda peer=peer: peer.ask(
                what="loader", batches=options.batches, batch=BATCH
            )
        found = {"one thread": measure(one, options.rounds)}
        found["end to end"] = measure(two, options.rounds)
        off = errors(folder, some)
        for peer in peers.values():
            peer.close()
    show(found, off)


def show(found: dict[str, dict[str, float]], off: dict[str, tuple[int, float]]) -> None:
    """The table."""
    base = "open_clip" if "open_clip" in found["one thread"] else "evaluation"
    print(
        f"\n| | images/s, one thread | × {base} | samples/s, 2 threads | × {base} | error of 255 |"
    )
    print("|---|---|---|---|---|---|")
    for name in found["one thread"]:
        cells = [name]
        for rates in found.values():
            cells += [f"{rates[name]:,.0f}", f"{rates[name] / rates[base]:.2f}"]
        worst = off.get(name)
        cells.append(
            "0"
            if name == "evaluation"
            else ""
            if worst is None
            else f"{worst[0]}, mean {worst[1]:.3f}"
        )
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    sys.exit(main())
