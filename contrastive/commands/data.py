"""``contrastive data index | inspect | stats | convert``: a look at the data before a run."""

import base64
import dataclasses
import io
import json
import pathlib
import time
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table
from rich.text import Text

from contrastive.data import convert as convert_lib
from contrastive.data import files
from contrastive.data.config import DataConfig
from contrastive.data.pipeline import BatchLoader, open_source
from contrastive.data.records import InMemorySource, Source
from contrastive.data.survey import Survey, survey
from contrastive.data.tokenizer import Tokenizer, load_tokenizer
from contrastive.data.transforms import naflex_pixels
from contrastive.errors import DataError, NoSuchSplit, UserError
from contrastive.recipe import Recipe
from contrastive.reporting.sheet import Tile, write_tiles

_SPLITS = ("train", "validation", "test")
_SHEET = 64
TARGETS = get_args(convert_lib.Target)


def index(recipe: Recipe, *, workers: int, stream: Any = None) -> int:
    """Makes the index of webdataset tars, of each split that the source's name tells apart.

    Raises:
      UserError: Tars are missing or hold no samples; the format needs no index.
    """
    from contrastive.data.webdataset import tar_index

    config = recipe.data
    if config.kind != "webdataset":
        raise UserError(f"{config.source} is {config.kind}, which needs no index.")
    cache = pathlib.Path(config.cache).expanduser()
    named = "{split}" in config.source
    for split in _SPLITS if named else ("train",):
        pattern, _ = files.of_split(config.source, split)
        began = time.perf_counter()
        try:
            found, _ = tar_index(
                pattern,
                config.fields,
                cache,
                captions=config.pairs == "captions",
                workers=workers,
                progress=_progress(stream, "tars"),
            )
        except files.NothingThere:
            if split == "train":
                raise
            print(f"{pattern}: there are none.", file=stream)
            continue  # there need not be every split
        left_out = f"; faults: {found.errors.summary()}" if len(found.errors) else ""
        print(
            f"{pattern}: {len(found):,} samples in {len(found.shards):,} tars{left_out}; "
            f"{time.perf_counter() - began:.1f} s.",
            file=stream,
        )
    return 0


def inspect(
    recipe: Recipe,
    *,
    output: pathlib.Path | None,
    most: int,
    as_json: bool,
    stream: Any = None,
) -> int:
    """Prints what the training data is and writes a contact sheet of what reaches the model (not
    of pairs of texts).

    Args:
      recipe: The settings.
      output: The sheet, a page; None = ``data.html``.
      most: How many samples are looked at.
      as_json: Print one JSON object.
      stream: Where to print; None: standard output.

    Raises:
      UserError: There is no data, or the page cannot be written.
    """
    config = recipe.data
    source = open_source(config, "train")
    tokenizer = load_tokenizer(config, source)
    found = survey(source, config, tokenizer, most=most)
    page = None
    if config.pairs != "texts":
        page = _sheet(output or pathlib.Path("data.html"), recipe, source, tokenizer, found)
    tokens = _tokens(tokenizer, found.captions[:3])
    fields = getattr(getattr(source, "fields", None), "found", [])
    about = {"source": config.source, "format": config.kind, "splits": _split_sizes(config, source)}
    about |= {"fields": fields, **found.to_json(), "tokens": tokens}
    about["sheet"] = None if page is None else str(page)
    if as_json:
        print(json.dumps(about), file=stream)
        return 0
    console = Console(file=stream, highlight=False)
    _print_inspection(console, about, found, tokenizer)
    return 0


def stats(
    recipe: Recipe,
    *,
    most: int,
    as_json: bool,
    plots: pathlib.Path | None,
    split: str,
    stream: Any = None,
) -> int:
    """Prints lengths, duplicates and resolutions of a split; draws them.

    Raises:
      UserError: There is no data, or the plots cannot be written.
    """
    source = open_source(recipe.data, split)
    found = survey(source, recipe.data, load_tokenizer(recipe.data, source), most=most)
    about = found.to_json()
    if plots is not None:
        about["plot"] = str(_plot(found, plots))
    if as_json:
        print(json.dumps(about), file=stream)
        return 0
    console = Console(file=stream, highlight=False)
    console.print(_numbers(about))
    for line in _remarks(found):
        console.print(Text(line))
    if plots is not None:
        console.print(Text(f"Plot: {about['plot']}"))
    return 0


def convert(
    recipe: Recipe,
    *,
    target: convert_lib.Target,
    output: pathlib.Path,
    shard_size: int,
    split: str,
    stream: Any = None,
) -> int:
    """Writes a split in another format.

    Raises:
      UserError: There is no data, or the folder cannot be written to.
    """
    if shard_size < 1:
        raise UserError(f"--shard-size={shard_size} has to be at least 1.")
    source = open_source(recipe.data, split)
    errors = convert_lib.convert(
        source,
        target,
        output,
        pairs=recipe.data.pairs,
        split=split,
        shard_size=shard_size,
        progress=_progress(stream, "samples"),
    )
    left_out = f" Left out: {errors.summary()}." if len(errors) else ""
    suffix = "-*.tar" if target == "webdataset" else ".array_record-*"
    print(
        f"{len(source):,} samples of the split {split} read (--split: another).{left_out} "
        f"Use them with --config.data.source='{output}/{{split}}{suffix}'.",
        file=stream,
    )
    return 0


def _progress(stream: Any, what: str) -> Any:
    told = time.perf_counter()

    def tell(done: int, total: int) -> None:
        nonlocal told
        if time.perf_counter() - told > 5.0:
            told = time.perf_counter()
            print(f"{done:,} of {total:,} {what} ...", file=stream, flush=True)

    return tell


def _split_sizes(config: DataConfig, train: Source) -> dict[str, int]:
    sizes = {"train": len(train)}
    for split in _SPLITS[1:]:
        try:
            sizes[split] = len(open_source(config, split))
        except NoSuchSplit:
            continue
    return sizes


def _tokens(tokenizer: Tokenizer, captions: Sequence[str]) -> list[dict[str, Any]]:
    rows = tokenizer.encode(captions)
    return [
        {
            "caption": caption,
            "ids": [int(i) for i in row],
            "pieces": tokenizer.pieces(row),
            "text": tokenizer.decode(row),
        }
        for caption, row in zip(captions, rows, strict=True)
    ]


def _sheet(
    path: pathlib.Path, recipe: Recipe, source: Source, tokenizer: Tokenizer, found: Survey
) -> pathlib.Path:
    """The first rows of the order of training, with their augmentation and captions."""
    rows = found.rows[: 4 * _SHEET]
    if not rows:
        raise DataError(f"None of {found.samples:,} samples can be used: {found.errors.summary()}.")
    records = [source[i] for i in rows]
    config = dataclasses.replace(recipe.data, check="before", max_bad_share=1.0, threads=0)
    size = min(_SHEET, len(records))
    loader = BatchLoader(
        InMemorySource(records), config, tokenizer, batch_size=size, seed=recipe.seed
    )
    batch = next(loader)
    loader.close()
    tiles: list[Tile] = []
    for row, number in enumerate(batch["example"].tolist()):
        key = records[number]["key"].encode("utf-8", "backslashreplace").decode()
        if config.pairs == "views":
            views = (("view_a", "first view"), ("view_b", "second view"))
            tiles += [
                Tile(_data_uri(batch[view][row], config), name, "", key) for view, name in views
            ]
            continue
        ids = batch["text"][row]
        tokens = f"{tokenizer.lengths(ids[None])[0]} tokens"
        words = tokenizer.decode(ids) or "(nothing)"
        tiles.append(Tile(_data_uri(batch["image"][row], config), words, tokens, key))
    return write_tiles(
        path,
        over="data",
        title=recipe.data.source,
        facts=[
            f"{size} of {found.samples:,} samples as they reach the model",
            f"{config.image_size} × {config.image_size} pixels",
        ],
        tiles=tiles,
        footer="Pictures after augmentation; texts as the token ids spell them.",
    )


def _data_uri(pixels: np.ndarray, config: DataConfig) -> str:
    if config.preprocessing == "naflex":
        pixels = naflex_pixels(pixels, config.resize.patch)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def _print_inspection(
    console: Console, about: dict[str, Any], found: Survey, tokenizer: Tokenizer
) -> None:
    splits = ", ".join(f"{name} {size:,}" for name, size in about["splits"].items())
    console.print(Text(f"{about['source']} ({about['format']}): {splits}"))
    if about["fields"]:
        console.print(Text(f"fields: {', '.join(about['fields'])}"))
    console.print(_numbers(about))
    for line in _remarks(found):
        console.print(Text(line))
    for entry in about["tokens"]:
        console.print(Text(f"\n“{entry['caption']}”"))
        ids = tokenizer.without_markers(entry["ids"])
        console.print(Text(f"  {len(ids)} ids {ids}"))
        console.print(Text(f"  {' '.join(entry['pieces'])}"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("stage", "µs a sample", "samples a second"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for stage, value in about["microseconds"].items():
        table.add_row(stage, f"{value:,.0f}", f"{1e6 / value:,.0f}" if value else "")
    console.print(table)
    if about["sheet"] is not None:
        console.print(Text(f"Contact sheet: {about['sheet']}"))


def _numbers(about: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"{about['looked_at']:,} of {about['samples']:,} samples")
    quantiles = ("least", "p5", "median", "p95", "most")
    for name in quantiles:
        table.add_column(name, justify="right")
    for name in ("caption_characters", "caption_tokens", "width", "height", "picture_bytes"):
        values = about[name]
        if values:
            table.add_row(name.replace("_", " "), *(f"{values[q]:,.0f}" for q in quantiles))
    return table


def _remarks(found: Survey) -> list[str]:
    """What deserves a second look, a sentence each."""
    formats = ", ".join(f"{n:,} {kind}" for kind, n in found.kinds.items())
    lines = [f"formats: {formats}"] if formats else []
    if len(found.errors):
        lines.append(f"cannot be used: {found.errors.summary()}")
        first = found.errors.entries[:3]
        lines += [f"  {e['key']}: {e['reason']} {e.get('detail', '')}".rstrip() for e in first]
    if found.truncated:
        lines.append(f"captions that are cut: {found.truncated:,}")
    lines.append(
        f"repeated: {found.repeated_captions:,} captions, {found.repeated_pictures:,} "
        + ("pictures" if found.kinds else "queries")
    )
    lines += [f"  {n:,} × “{text}”" for text, n in found.frequent.items()]
    return lines


def _plot(found: Survey, folder: pathlib.Path) -> pathlib.Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots(2, 2).ravel()
    for axis, (title, values) in zip(
        axes,
        {
            "characters a caption": found.characters,
            "tokens a caption": found.tokens,
            "kilobytes a picture": [size / 1000 for size in found.sizes],
        }.items(),
        strict=False,
    ):
        axis.hist(values, bins=min(50, max(len(set(values)), 1)))
        axis.set_title(title)
    axes[3].plot(found.widths, found.heights, ".", alpha=0.3)
    axes[3].set_title("width and height in pixels")
    path = folder / "data_stats.png"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}.") from error
    return path
