"""Every task on small files, with a model that knows colours."""

import json
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from contrastive.data.records import InMemorySource, Record
from contrastive.errors import ConfigError, DataError, UserError
from contrastive.evaluation import pictures as pictures_module
from contrastive.evaluation.baselines import RawPixels
from contrastive.evaluation.pictures import encode_source
from contrastive.evaluation.tasks import READS, TASKS, TaskOptions, run_tasks

NAMES = ("red", "green", "blue", "white", "black", "pink")
COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (255, 128, 192))


def colour_row(colour) -> np.ndarray:
    row = np.array([*colour, 64.0], np.float32)
    return row / np.linalg.norm(row)


class ColourModel:
    """Pictures by their mean colour, texts by the first colour that they name."""

    scale = 10.0

    def __init__(self) -> None:
        self.pictures = 0
        self.roles: list[str] = []

    def encode_image(self, images) -> np.ndarray:
        self.pictures += len(images)
        rows = [np.asarray(x.convert("RGB"), np.float32).mean(axis=(0, 1)) for x in images]
        return np.stack([colour_row(row) for row in rows])

    def encode_text(self, texts, *, role="query") -> np.ndarray:
        self.roles.append(role)

        def row(text: str) -> np.ndarray:
            known = [word for word in text.replace(".", " ").split() if word in NAMES]
            return colour_row(COLOURS[NAMES.index(known[0])] if known else (90, 90, 90))

        return np.stack([row(text) for text in texts])


def solid(colour, shade: int) -> bytes:
    import io

    out = io.BytesIO()
    Image.new("RGB", (4, 4), tuple(abs(c - shade) for c in colour)).save(out, "png")
    return out.getvalue()


@pytest.fixture
def pictures(tmp_path):
    """Four shades of each colour to train on, two to test on, captioned by class names."""
    for split, shades in (("train", (0, 10, 20, 30)), ("test", (5, 15))):
        rows = [(solid(c, s), n) for n, c in zip(NAMES, COLOURS, strict=True) for s in shades]
        table = pa.table({"image": [r[0] for r in rows], "caption": [r[1] for r in rows]})
        pq.write_table(table, tmp_path / f"{split}.parquet")
    (tmp_path / "names.json").write_text(json.dumps(list(NAMES)))
    return tmp_path


def options(path, **more) -> TaskOptions:
    return TaskOptions(data=str(path), name="colours", **more)


def test_pictures_are_encoded_once_for_all_tasks(pictures):
    model = ColourModel()
    tasks = ["retrieval", "zero_shot", "knn", "linear_probe", "few_shot", "geometry"]
    got = run_tasks(
        model, tasks, options(pictures, classes=str(pictures / "names.json"), shots=(1, 2))
    )
    assert got["colours/zero_shot/top1"] == 1.0
    assert got["colours/zero_shot/classes"] == 6
    assert got["colours/zero_shot/template_set"] == "plain"
    assert got["colours/zero_shot/split"] == "test"
    assert got["colours/image_to_text/recall@1"] == 1.0
    assert got["colours/image_to_text/gallery"] == 6  # equal captions count once
    assert got["colours/text_to_image/r_precision"] == 1.0
    assert got["colours/knn/top1"] == 1.0
    assert got["colours/knn/train_images"] == 24
    assert got["colours/linear_probe/top1"] > 0.8
    assert {"colours/few_shot/top1@1", "colours/few_shot/top1@2"} <= set(got)
    # The two pictures of a colour have one caption: they are one content.
    assert got["colours/geometry/information_ceiling"] == pytest.approx(np.log(6))
    assert got.each["colours/zero_shot/top1"].shape == (12,)
    assert model.pictures == 24 + 12


class Twins(ColourModel):
    """Colours by their means; its twin that has learned nothing sees no colour."""

    recipe = types.SimpleNamespace(data=types.SimpleNamespace(image_size=64))

    def untrained(self, seed):
        return Blind()


class Blind(ColourModel):
    def encode_image(self, images) -> np.ndarray:
        return np.tile(colour_row(np.array([1.0, 1.0, 1.0])), (len(images), 1))

    def encode_text(self, texts, *, role="query") -> np.ndarray:
        rows = np.random.default_rng(len(texts)).normal(size=(len(texts), 4)).astype(np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_probes_stand_beside_an_untrained_twin_and_pixels(pictures):
    wanted = options(pictures, classes=str(pictures / "names.json"), baselines=True)
    got = run_tasks(Twins(), ["knn", "linear_probe", "zero_shot"], wanted)
    for task in ("knn", "linear_probe"):
        assert got[f"colours/{task}/top1"] > 0.8
        assert got[f"colours/{task}/top1_raw_pixels"] > 0.6  # colours are pixels; length is lost
        assert got[f"colours/{task}/top1_random_init"] == pytest.approx(1 / len(NAMES), abs=0.01)
    assert not any("zero_shot" in key and key.endswith(("_init", "_pixels")) for key in got)
    with pytest.raises(ConfigError, match="--baselines has no effect"):
        run_tasks(Twins(), ["geometry"], options(pictures, baselines=True))


def test_similarity_stands_beside_an_untrained_twin(tmp_path):
    path = tmp_path / "sts.jsonl"
    pairs = [("red", "red", 5), ("red", "pink", 3), ("red", "green", 0.5), ("blue", "white", 1)]
    rows = [{"sentence1": a, "sentence2": b, "score": score} for a, b, score in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    got = run_tasks(Twins(), ["similarity"], options(path, baselines=True))
    assert got["colours/similarity/spearman"] > got["colours/similarity/spearman_random_init"]
    assert not any("raw_pixels" in key for key in got)


def test_a_black_picture_has_a_row_of_zeros():
    black, red = (Image.new("RGB", (9, 5), colour) for colour in ("black", "red"))
    rows = RawPixels(4).encode_image([black, red])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), [0.0, 1.0], atol=1e-6)


def test_labels_of_probes_may_be_the_captions(pictures):
    assert run_tasks(ColourModel(), ["knn"], options(pictures))["colours/knn/top1"] == 1.0


def test_prompts_and_names_decide(pictures):
    names = pictures / "other.json"
    names.write_text(json.dumps({"green": "red", "red": "green"} | {n: n for n in NAMES[2:]}))
    got = run_tasks(ColourModel(), ["zero_shot"], options(pictures, classes=str(names)))
    assert got["colours/zero_shot/top1"] == pytest.approx(8 / 12)  # two colours swapped: 4 wrong


def test_retrieval_over_judged_texts(tmp_path):
    (tmp_path / "qrels").mkdir()
    texts = {f"d{i}": f"a {name} thing" for i, name in enumerate(NAMES)}
    lines = [json.dumps({"_id": k, "text": v}) for k, v in texts.items()]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    queries = [json.dumps({"_id": f"d{i}", "text": f"some {n}"}) for i, n in enumerate(NAMES)]
    (tmp_path / "queries.jsonl").write_text("\n".join(queries))
    judged = "".join(f"d{i}\td{i}\t1\nd{i}\td{(i + 1) % 6}\t1\n" for i in range(6))
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    model = ColourModel()
    got = run_tasks(model, ["information_retrieval"], options(tmp_path))
    assert model.roles == ["query", "passage"]
    assert got["colours/information_retrieval/mrr@10"] == 1.0
    assert got["colours/information_retrieval/success@1"] == 1.0
    own = run_tasks(ColourModel(), ["information_retrieval"], options(tmp_path, without_self=True))
    assert own["colours/information_retrieval/mrr@10"] < 1.0
    assert own["colours/information_retrieval/recall@10"] == 1.0
    # A prompt is part of what is encoded.
    red = run_tasks(
        ColourModel(), ["information_retrieval"], options(tmp_path, query_prompt="red ")
    )
    assert red["colours/information_retrieval/success@1"] == pytest.approx(2 / 6)


def test_pairs_of_texts(tmp_path):
    pairs = [("red", "red", 5), ("red", "pink", 3), ("red", "green", 0.5), ("blue", "white", 1)]
    rows = [{"sentence1": a, "sentence2": b, "score": s, "label": int(s > 2)} for a, b, s in pairs]
    path = tmp_path / "sts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = ColourModel()
    got = run_tasks(model, ["similarity", "pair_classification"], options(path))
    assert set(model.roles) == {"query"}  # neither text of a pair is searched for
    assert got["colours/similarity/spearman"] > 0.5
    assert got["colours/pair_classification/average_precision"] > 0.5
    assert got.each["colours/similarity/spearman"].shape == (2, 4)
    rows = [{"sentence1": f"{name} one", "sentence2": f"ein {name}"} for name in NAMES]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    got = run_tasks(ColourModel(), ["bitext"], options(path))
    assert got["colours/bitext/accuracy"] == 1.0
    assert got["colours/bitext/f1"] == 1.0


def test_options_without_effect_are_errors(pictures):
    fields = {"split", "classes", "templates", "form", "query_prompt", "passage_prompt",
              "without_self", "most", "shots", "search", "baselines"}  # fmt: skip
    assert set().union(*READS.values()) == fields
    assert set(READS) == set(TASKS)
    with pytest.raises(ConfigError, match="--classes has no effect on the task similarity"):
        run_tasks(ColourModel(), ["similarity"], options(pictures, classes="cifar10"))
    with pytest.raises(UserError, match="'nothing' is no task"):
        run_tasks(ColourModel(), ["nothing"], options(pictures))
    with pytest.raises(UserError, match="needs --classes"):
        run_tasks(ColourModel(), ["zero_shot"], options(pictures))
    path = pictures / "pairs.jsonl"
    path.write_text('{"query": "red", "positive": "a red thing"}\n')
    with pytest.raises(DataError, match=r"no query of .* has the name of a passage"):
        run_tasks(ColourModel(), ["information_retrieval"], options(path, without_self=True))
    with pytest.raises(DataError, match="'red' is none of the 10 classes of cifar10"):
        run_tasks(ColourModel(), ["zero_shot"], options(pictures, classes="cifar10"))


def test_captions_that_are_no_classes_are_no_labels(tmp_path):
    for split in ("train", "test"):
        rows = [(solid(c, i), f"picture {n} {i}") for i, (n, c) in enumerate(zip(NAMES, COLOURS, strict=True))]  # fmt: skip  # noqa: E501
        table = pa.table({"image": [r[0] for r in rows], "caption": [r[1] for r in rows]})
        pq.write_table(table, tmp_path / f"{split}.parquet")
    with pytest.raises(UserError, match="6 different captions for 6 pictures"):
        run_tasks(ColourModel(), ["knn"], options(tmp_path))


def test_neighbours_that_are_searched_approximately_say_what_they_missed(pictures):
    got = run_tasks(ColourModel(), ["knn"], options(pictures, search="approx"))
    assert got["colours/knn/search_recall"] > 0.9
    assert "colours/knn/search_recall" not in run_tasks(ColourModel(), ["knn"], options(pictures))


def picture_source(records):
    return InMemorySource(
        [
            Record(image=image, caption=caption, keywords=[], id=-1, key=str(i))
            for i, (image, caption) in enumerate(records)
        ]
    )


def test_a_picture_with_several_captions_is_encoded_once():
    red, blue = (solid(COLOURS[i], 0) for i in (0, 2))
    source = picture_source([(red, "red"), (blue, "blue"), (red, "a red thing"), (blue, "red")])
    model = ColourModel()
    found = encode_source(model, source)
    assert model.pictures == 2
    np.testing.assert_array_equal(found.pictures, [0, 1, 0, 1])
    assert len(set(found.ids.tolist())) == 1  # "red" belongs to both, so all is one content


def test_pictures_that_cannot_be_read_are_counted_or_too_many():
    records = [(solid(COLOURS[i % 6], i), NAMES[i % 6]) for i in range(20)]
    found = encode_source(ColourModel(), picture_source([*records, (b"broken", "red")]))
    assert (found.skipped, len(found.captions)) == (1, 20)
    with pytest.raises(DataError, match="4 of 24 pictures cannot be read: 4 "):
        encode_source(ColourModel(), picture_source([*records, *[(b"broken", "red")] * 4]))


def test_few_pixels_are_held_at_a_time(monkeypatch):
    class Careful(ColourModel):
        def encode_image(self, images):
            assert len(images) <= 3
            return super().encode_image(images)

    monkeypatch.setattr(pictures_module, "PIXELS", 3 * 16)
    source = picture_source([(solid(COLOURS[i % 6], i), NAMES[i % 6]) for i in range(20)])
    found = encode_source(Careful(), source)
    monkeypatch.undo()
    np.testing.assert_array_equal(found.rows, encode_source(ColourModel(), source).rows)


def test_names_of_sets():
    for data, title in (
        ("data/fashion_mnist", "fashion_mnist"),
        ("data/debian/pairs.jsonl", "debian"),
        ("data/similarity/simlex999.jsonl", "simlex999"),
        ("tfds:cifar10", "cifar10"),
        ("sts/STS.input.MSRpar.txt", "STS.input.MSRpar"),  # beside others of the same beginning
        ("scifact.v2", "scifact.v2"),
        ("corpus.jsonl.gz", "corpus"),
    ):
        assert TaskOptions(data=data).title == title


@pytest.mark.parametrize("data", [".", "pairs.jsonl", "..", "/"])
def test_every_set_has_a_name(data):
    assert TaskOptions(data=data).title


def test_the_name_of_a_set_holds_no_slash():
    with pytest.raises(ConfigError, match="holds no slash"):
        TaskOptions(data="x", name="a/b")


def test_pictures_without_captions_are_no_pairs(tmp_path):
    """What is said of some pictures is measured on them, and not on an empty text."""
    rows = [(solid(c, 0), n) for n, c in zip(NAMES, COLOURS, strict=True)]
    got = []
    for name, more in (("named", 0), ("some", 5)):
        shades = [(solid(COLOURS[0], 50 + i), "") for i in range(more)]
        table = pa.table({"image": [r[0] for r in rows + shades],
                          "caption": [r[1] for r in rows + shades]})  # fmt: skip
        (tmp_path / name).mkdir()
        for split in ("train", "test"):
            pq.write_table(table, tmp_path / name / f"{split}.parquet")
        got.append(run_tasks(ColourModel(), ["geometry"], options(tmp_path / name)))
    for metric in ("alignment", "uniformity_texts", "information_bound"):
        assert got[0][f"colours/geometry/{metric}"] == got[1][f"colours/geometry/{metric}"]
    assert got[1]["colours/geometry/information_ceiling"] == pytest.approx(np.log(6))
    table = pa.table({"image": [r[0] for r in rows], "caption": [""] * len(rows)})
    pq.write_table(table, tmp_path / "some" / "test.parquet")
    with pytest.raises(DataError, match="has no captions"):
        run_tasks(ColourModel(), ["geometry"], options(tmp_path / "some"))


@pytest.mark.parametrize("task", ["knn", "linear_probe", "few_shot"])
def test_a_probe_is_not_measured_on_what_it_learned_from(pictures, task):
    with pytest.raises(UserError, match="--split has to name another"):
        run_tasks(ColourModel(), [task], options(pictures, split="train"))


def test_the_content_of_a_set_is_what_is_compared(tmp_path):
    """Files of pairs have no names of their own: sets of one size are still told apart."""

    def content(rows):
        path = tmp_path / "pairs.jsonl"
        keys = ("query", "positive")
        path.write_text(
            "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)
        )
        got = run_tasks(ColourModel(), ["information_retrieval"], options(path))
        return got["colours/information_retrieval/content"]

    first = [("red", "a red thing"), ("blue", "a blue thing")]
    assert content(first) == content(first)
    assert content(first) != content([("red", "a red thing"), ("green", "a green thing")])
    judged = [("red", "a red thing"), ("blue", "a red thing"), ("red", "a blue thing")]
    assert content(first) != content(judged)


def test_equal_captions_do_not_make_equal_sets():
    def content(shade):
        records = [(solid((200, 0, 0), i + shade), "red") for i in range(3)]
        return encode_source(ColourModel(), picture_source(records)).content

    assert content(0) == content(0) != content(5)


def test_data_that_names_no_splits_says_that_a_part_of_it_is_measured(tmp_path, caplog):
    rows = [(solid(COLOURS[i % 6], i), f"{NAMES[i % 6]} {i}") for i in range(60)]
    table = pa.table({"image": [r[0] for r in rows], "caption": [r[1] for r in rows]})
    pq.write_table(table, tmp_path / "pictures.parquet")
    got = run_tasks(ColourModel(), ["retrieval"], options(tmp_path / "pictures.parquet"))
    count = int(got["colours/image_to_text/queries"])
    assert 0 < count < 30
    assert f"has no split 'test': measured are the {count} pictures of 'validation'" in caplog.text
    (tmp_path / "pictures.parquet").rename(tmp_path / "test.parquet")  # all of it is to be measured
    got = run_tasks(ColourModel(), ["retrieval"], options(tmp_path / "{split}.parquet"))
    assert got["colours/image_to_text/queries"] == 60


def test_data_without_a_split_to_measure_on_says_so(pictures):
    (pictures / "test.parquet").unlink()
    with pytest.raises(DataError, match="has no split to measure on, neither test nor validation"):
        run_tasks(ColourModel(), ["geometry"], options(pictures))


class BrokenModel(ColourModel):
    """Gives NaN, as a diverged or badly imported model does."""

    def encode_image(self, images):
        return super().encode_image(images) * np.float32(np.nan)

    def encode_text(self, texts, *, role="query"):
        return super().encode_text(texts, role=role) * np.float32(np.nan)


@pytest.mark.parametrize(
    "task", ["retrieval", "zero_shot", "knn", "linear_probe", "few_shot", "geometry"]
)
def test_rows_of_nan_are_one_sentence(pictures, task):
    more = {"classes": str(pictures / "names.json")} if task == "zero_shot" else {}
    with pytest.raises(UserError, match="is not finite"):
        run_tasks(BrokenModel(), [task], options(pictures, **more))
