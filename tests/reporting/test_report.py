"""The report page: complete, self-contained, and written whatever is missing."""

import html.parser
import io
import json
import re
import types

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from contrastive.data.config import DataConfig
from contrastive.errors import UserError
from contrastive.evaluation.sets import EvaluationSet
from contrastive.reporting import page, write_report
from contrastive.reporting.examples import examples_of, thumbnail
from contrastive.reporting.sheet import write_sheet
from contrastive.reporting.terminal import half_blocks, shows_pictures

VOID = {"meta", "link", "img", "br", "line", "circle", "polyline", "polygon", "path", "hr"}


class Checker(html.parser.HTMLParser):
    """Balanced tags, and no address outside the page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [v for k, v in attrs if k in ("src", "href", "srcset", "action") and v]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def check(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert all(a.startswith(("data:", "#")) for a in checker.addresses), checker.addresses
    assert not re.search(r"url\((?!data:)|@import|https?://", text)
    return checker


CONFIG = {
    "name": "emoji <clip>",
    "total_steps": 40,
    "batch_size": 8,
    "data": {"source": "emoji", "tokenizer": {"path": None}},
    "loss": {"name": "clip", "max_scale": None},
}
RESULTS = {
    "unseen_artist/image_to_text/recall@1": 0.452,
    "unseen_artist/image_to_text/recall@1_chance": 1 / 1914,
    "unseen_artist/image_to_text/recall@1_raw_pixels": 0.18,
    "unseen_artist/image_to_text/queries": 1722.0,
    "unseen_artist/image_to_text/gallery": 1914.0,
    "unseen_artist/image_to_text/median_rank": 2.0,
    "unseen_artist/split": "unseen_artist",
}


def metrics_line(step: int) -> dict:
    return {
        "step": step,
        "loss": 20.0 / step,
        "accuracy/image_to_text": 0.5,
        "accuracy/text_to_image": 0.5,
        "scale": 14.0,
        "temperature": 1 / 14.0,
        "gradient_norm": 1.0,
        "learning_rate": 1e-3,
        "examples_per_second": 4.0,
        "input_wait_share": 0.0,
    }


@pytest.fixture
def workdir(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "evaluation.json").write_text(json.dumps(RESULTS))
    lines = [metrics_line(step) for step in range(10, 50, 10)]
    lines.insert(2, {"step": 20, "evaluation/unseen_artist/image_to_text/recall@1": 0.2})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def png(colour) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (12, 12), colour).save(out, "png")
    return out.getvalue()


NAMES = ("red", "green", "blue", "pink")
COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 128, 192))


class SwappedEncoder:
    """Knows colours by name, but takes pink for blue."""

    recipe = types.SimpleNamespace(data=DataConfig())

    def encode_image(self, images) -> np.ndarray:
        rows = [self._row(np.asarray(x, np.float32).mean(axis=(0, 1))) for x in images]
        return np.stack([self._row(COLOURS[2]) if r[:3].min() > 0.2 else r for r in rows])

    def encode_text(self, texts) -> np.ndarray:
        known = dict(zip(NAMES, COLOURS, strict=True))
        return np.stack([self._row(known.get(t, (128, 255, 0))) for t in texts])

    def _row(self, colour) -> np.ndarray:
        row = np.array([*colour, 32.0], np.float32)
        return row / np.linalg.norm(row)


def colour_set() -> EvaluationSet:
    return EvaluationSet(
        name="unseen_artist",
        images=np.stack([np.full((4, 4, 3), c, np.uint8) for c in COLOURS]),
        keys=NAMES,
        ids=np.arange(4, dtype=np.int32),
        texts=[*NAMES, "yellow"],
        text_ids=np.arange(5, dtype=np.int32),
        keywords=[("warm",), ("warm",), ("warm",), ("pale",)],
        encoded=[png(c) for c in COLOURS],
    )


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(page, "find_examples", lambda model, data: examples_of(model, colour_set()))
    return SwappedEncoder()


def test_the_page_is_whole_and_needs_nothing_else(workdir, model):
    path = write_report(workdir, model=model)
    assert path == workdir / "report" / "index.html"
    text = path.read_text()
    checker = check(text)
    assert checker.tags.count("svg") >= 6
    assert "emoji &lt;clip&gt;" in text
    assert "45 %" in text
    assert ".452" in text
    assert "nearest pixels" in text
    assert "log 8 = 2.08" in text
    assert "10 s of training" not in text
    assert "1 min 20 s of training" in text  # 40 steps of 8 pairs at 4 pairs a second
    assert "prefers-color-scheme: dark" in text
    assert "jax" in text
    assert "tokenizer.path" in text


def test_right_pictures_are_marked_and_mistakes_shown(workdir, model):
    examples = examples_of(model, colour_set())
    by_name = {query.text: query for query in examples.by_name}
    assert by_name["red"].hits[0].right
    assert by_name["red"].rank == 1
    assert by_name["pink"].rank > 1
    (warm,) = examples.by_keyword
    assert (warm.text, warm.right) == ("warm", 3)
    assert sum(hit.right for hit in warm.hits) == 3
    by_image = {query.name: query for query in examples.by_image}
    assert by_image["pink"].hits[0].name == "blue"
    assert not by_image["pink"].hits[0].right
    assert by_image["green"].hits[0].right
    (mistake,) = examples.mistakes
    assert (mistake.name, mistake.said) == ("pink", "blue")
    assert mistake.score < mistake.said_score
    assert mistake.said_picture == thumbnail(png(COLOURS[2]))
    text = write_report(workdir, model=model).read_text()
    assert 'aria-label="right"' in text
    assert 'class="said"' in text


def test_in_the_middle_of_a_run_what_is_there_is_shown(workdir):
    (workdir / "evaluation.json").unlink()
    lines = (workdir / "metrics.jsonl").read_text().splitlines()[:3]
    older = {k: 0.07 for k in map(json.loads, lines[::-1]) for k in k if "recall@1" in k}
    lines.insert(0, json.dumps({"step": 5} | older))
    (workdir / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 30, "lo')
    text = write_report(workdir).read_text()
    check(text)
    assert "The run stands at step 20 of 40" in text
    assert "quick evaluation at step 20" in text
    assert "No examples are shown" in text
    assert "20 %" in text


@pytest.mark.parametrize("missing", ["metrics.jsonl", "evaluation.json"])
def test_what_is_missing_is_left_out(workdir, missing):
    (workdir / missing).unlink()
    check(write_report(workdir).read_text())


@pytest.mark.parametrize(
    "content",
    [b"[1, 2]", b"\xff\xfe{", b"[" * 100_000, b'{"test/knn/images": "many", "test/knn/top1": [1]}'],
    ids=["list", "bytes", "deep", "words"],
)
def test_a_damaged_evaluation_is_left_out(tmp_path, content):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "evaluation.json").write_bytes(content)
    check(write_report(tmp_path).read_text())


def test_a_folder_with_nothing_but_settings(tmp_path):
    (tmp_path / "config.json").write_text("{damaged")
    text = write_report(tmp_path).read_text()
    check(text)
    assert "There is no evaluation yet" in text


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not the folder of a run"):
        write_report(tmp_path)


def test_thumbnails_are_square_and_small():
    out = io.BytesIO()
    Image.new("RGB", (400, 300), "navy").save(out, "png")
    uri = thumbnail(out.getvalue())
    assert uri.startswith("data:image/jpeg;base64,")
    assert len(uri) < 3_000
    assert thumbnail(png((1, 2, 3))).startswith("data:image/png;base64,")


def test_the_contact_sheet_is_whole(tmp_path):
    found = [
        types.SimpleNamespace(score=0.5, key="<a>", name="", encoded=png((9, 9, 9))),
        types.SimpleNamespace(score=0.25, key="b", name="pizza", encoded=png((99, 9, 9))),
    ]
    path = write_sheet(tmp_path / "search" / "x.html", 'a "slice"', found, 1914)
    text = path.read_text()
    check(text)
    assert "the nearest 2 of 1,914 pictures" in text
    assert "&lt;a&gt;" in text
    assert "0.500" in text


def test_half_blocks_show_two_pixels_a_character():
    image = Image.new("RGB", (2, 4))
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)]
    image.putdata([c for c in colours for _ in range(2)])
    text = half_blocks(image, 2)
    assert text.plain == "▀▀\n▀▀"
    styles = [text.get_style_at_offset(Console(), i) for i in (0, 3)]
    got = [(s.color.triplet, s.bgcolor.triplet) for s in styles]
    assert got == [((255, 0, 0), (0, 255, 0)), ((0, 0, 255), (255, 255, 0))]


def test_pictures_are_for_terminals_with_colours():
    assert not shows_pictures(Console(file=io.StringIO()))
    assert shows_pictures(
        Console(file=io.StringIO(), force_terminal=True, color_system="truecolor")
    )
    assert not shows_pictures(
        Console(file=io.StringIO(), force_terminal=True, color_system="standard")
    )
