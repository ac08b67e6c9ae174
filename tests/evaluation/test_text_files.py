"""Files as others publish them."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contrastive.errors import DataError
from contrastive.evaluation.text_files import read_judged, read_pairs


def jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)


CORPUS = [
    {"_id": "d1", "title": "Cats", "text": "They purr."},
    {"_id": "d2", "title": "", "text": 'Dogs say "woof".'},
]
QUERIES = [{"_id": "q1", "text": "what purrs"}, {"_id": "q2", "text": "not judged"}]


@pytest.fixture
def beir(tmp_path):
    jsonl(tmp_path / "corpus.jsonl", CORPUS)
    jsonl(tmp_path / "queries.jsonl", QUERIES)
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n"
    )
    (tmp_path / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq2\td2\t1\n")
    return tmp_path


def test_beir_folder(beir):
    found = read_judged(beir)
    assert found.corpus == {"d1": "Cats They purr.", "d2": 'Dogs say "woof".'}
    assert found.queries == {"q1": "what purrs"}
    assert found.judgements == {"q1": {"d1": 2.0, "d2": 0.0}}
    assert read_judged(beir, "dev").queries == {"q2": "not judged"}


def test_a_name_is_of_one_text(beir):
    jsonl(beir / "corpus.jsonl", [*CORPUS, CORPUS[0]])
    assert len(read_judged(beir).corpus) == 2
    jsonl(beir / "corpus.jsonl", [*CORPUS, CORPUS[0] | {"text": "They hiss."}])
    with pytest.raises(DataError, match="row 3 has the name 'd1' of an earlier, other text"):
        read_judged(beir)


def test_trec_evals_qrels_and_gzipped_corpus(beir):
    (beir / "corpus.jsonl").unlink()
    jsonl(beir / "corpus.jsonl.gz", CORPUS)
    (beir / "qrels" / "test.tsv").write_text("q1 0 d1 1\nq1 0 d2 0\n")
    assert read_judged(beir).judgements == {"q1": {"d1": 1.0, "d2": 0.0}}


def test_nano_beir_folders_of_parquet(tmp_path):
    tables = {
        "corpus": {"_id": ["d1", "d2"], "text": ["a", "b"]},
        "queries": {"_id": ["q1"], "text": ["c"]},
        "qrels": {"query-id": ["q1", "q1"], "corpus-id": ["d1", "d2"]},
    }
    for name, columns in tables.items():
        (tmp_path / name).mkdir()
        pq.write_table(pa.table(columns), tmp_path / name / "train-00000-of-00001.parquet")
    found = read_judged(tmp_path)
    assert found.judgements == {"q1": {"d1": 1.0, "d2": 1.0}}
    assert found.corpus == {"d1": "a", "d2": "b"}


def test_a_file_of_pairs_is_a_set_of_its_positives(tmp_path):
    rows = [
        {"query": "cat", "positive": "it purrs", "split": "validation"},
        {"query": "tiger", "positive": "it purrs", "split": "validation"},
        {"query": "cat", "positive": "a pet", "split": "validation"},
        {"query": "dog", "positive": "woof", "split": "train"},
    ]
    jsonl(tmp_path / "pairs.jsonl", rows)
    found = read_judged(tmp_path / "pairs.jsonl")
    assert list(found.queries.values()) == ["cat", "tiger"]
    assert list(found.corpus.values()) == ["it purrs", "a pet"]
    assert found.judgements == {"q0": {"d0": 1.0, "d1": 1.0}, "q1": {"d0": 1.0}}
    assert list(read_judged(tmp_path / "pairs.jsonl", "train").queries.values()) == ["dog"]
    with pytest.raises(DataError, match=r"no split 'test', only train, validation"):
        read_judged(tmp_path / "pairs.jsonl", "test")


def test_missing_parts_are_named(beir):
    with pytest.raises(DataError, match="no split 'train', only dev, test"):
        read_judged(beir, "train")
    (beir / "corpus.jsonl").unlink()
    with pytest.raises(DataError, match=r"has no corpus\.jsonl"):
        read_judged(beir)
    jsonl(beir / "corpus.jsonl", [{"_id": "d1", "body": "x"}])
    with pytest.raises(DataError, match=r"row 1 has none of the columns text.*only _id, body"):
        read_judged(beir)
    with pytest.raises(DataError, match="there is no"):
        read_judged(beir / "nowhere")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"sentence1": "a", "sentence2": "b", "score": 2.5}\n'),
        ("b.jsonl", '{"query": "a", "positive": "b", "score": 2.5}\n'),
        ("sts-dev.csv", "main-news\theadlines\t2016\t0001\t2.5\ta\tb\n"),
        ("SICK.txt", "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n1\ta\tb\t2.5\n"),
        ("c.tsv", "score\tsentence1\tsentence2\n2.5\ta\tb\n"),
        ("d.csv", 'sentence1,sentence2,score\n"a",b,2.5\n'),
        ("STS.input.news.txt", "a\tb\nc\td\n"),
    ],
)
def test_pairs_with_scores(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    (tmp_path / "STS.gs.news.txt").write_text("2.5\n\n")  # SemEval: some pairs are not scored
    found = read_pairs(tmp_path / name)
    assert (found.first, found.second, found.scores) == (["a"], ["b"], [2.5])


def test_pairs_with_labels(tmp_path):
    jsonl(tmp_path / "new.jsonl.gz", [{"sentence1": "a", "sentence2": "b", "label": 1}])
    jsonl(tmp_path / "old.jsonl", [{"sent1": ["a", "c"], "sent2": ["b", "d"], "labels": [1, 0]}])
    assert read_pairs(tmp_path / "new.jsonl.gz", "label").scores == [1]
    assert read_pairs(tmp_path / "old.jsonl", "label").scores == [1, 0]
    assert read_pairs(tmp_path / "old.jsonl", None).second == ["b", "d"]


def test_damaged_pairs_are_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"sentence1": "a", "sentence2": "b", "score": "many"}\n')
    with pytest.raises(DataError, match=r"row 1: 'many' is no number"):
        read_pairs(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text("")
    with pytest.raises(DataError, match="no pairs"):
        read_pairs(tmp_path / "b.jsonl")
    (tmp_path / "c.jsonl").write_text("{\n")
    with pytest.raises(DataError, match="line 1 is not JSON"):
        read_pairs(tmp_path / "c.jsonl")
    (tmp_path / "d.tsv").write_text("a\tb\n")
    with pytest.raises(DataError, match="2 columns without a header"):
        read_pairs(tmp_path / "d.tsv")
    (tmp_path / "e.xlsx").write_text("a")
    with pytest.raises(DataError, match="none of"):
        read_pairs(tmp_path / "e.xlsx")
    (tmp_path / "STS.input.x.txt").write_text("a\tb\n")
    with pytest.raises(DataError, match="needs the scores beside it"):
        read_pairs(tmp_path / "STS.input.x.txt")


def test_texts_may_hold_what_unicode_calls_line_breaks(tmp_path):
    text = "one\u2028two\x85three\x0cfour"
    row = {"sentence1": text, "sentence2": "b", "score": 1}
    (tmp_path / "a.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\r\n")
    (tmp_path / "a.tsv").write_text(f"sentence1\tsentence2\tscore\r\n{text}\tb\t1\r\n\r\n")
    (tmp_path / "a.csv").write_text(f"\ufeffsentence1,sentence2,score\n{text},b,1\n")
    (tmp_path / "STS.input.a.txt").write_text(f"{text}\tb\n")
    (tmp_path / "STS.gs.a.txt").write_text("1\n")
    for name in ("a.jsonl", "a.tsv", "a.csv", "STS.input.a.txt"):
        assert read_pairs(tmp_path / name).first == [text]


def test_long_passages_in_csv(tmp_path):
    (tmp_path / "a.csv").write_text("sentence1,sentence2,score\n" + "x" * 200_000 + ",b,1\n")
    assert len(read_pairs(tmp_path / "a.csv").first[0]) == 200_000


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl.gz", b"no gzip", "cannot be read"),
        ("a.jsonl.gz", gzip.compress(b"{}" * 99, mtime=0)[:-9], "cannot be read"),
        ("a.parquet", b"no parquet", "cannot be read"),
        ("a.jsonl", b'{"sentence1": "a", "sentence2": "b", "score": NaN}', "nan is no number"),
        ("a.jsonl", b'{"sentence1": ["a"], "sentence2": "b", "score": [1]}', "lists of a row"),
        ("a.jsonl", b'{"sentence1": ["a"], "sentence2": ["b"], "score": 1}', "lists of a row"),
        ("a.jsonl", b"[" * 100_000, "line 1 is not JSON"),
        ("a.jsonl", b'{"score": ' + b"9" * 5000 + b"}", "line 1 is not JSON"),
        ("a.tsv", b"sentence1\tsentence2\tscore\na\tb\t1\tc\n", "line 2: 4 of 3 columns"),
        ("STS.input.x.txt", b"a\n", "line 1 has no tab"),
        ("STS.input.y.txt", b"a\tb\n", "row 1: 'x' is no number"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)  # fmt: skip
def test_damaged_files_are_one_sentence(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "STS.gs.x.txt").write_text("1\n")
    (tmp_path / "STS.gs.y.txt").write_text("x\n")
    with pytest.raises(DataError, match=words):
        read_pairs(tmp_path / name)


def test_a_split_is_never_silently_another(tmp_path, beir):
    jsonl(tmp_path / "plain.jsonl", [{"query": "cat", "positive": "it purrs"}])
    with pytest.raises(DataError, match="names no splits, not 'train' either"):
        read_judged(tmp_path / "plain.jsonl", "train")
    rows = [{"query": x, "positive": x, "split": x} for x in ("train", "extra")]
    jsonl(tmp_path / "splits.jsonl", rows)
    with pytest.raises(DataError, match="has the splits extra, train: choose one with --split"):
        read_judged(tmp_path / "splits.jsonl")
    jsonl(tmp_path / "one.jsonl", rows[:1])
    assert list(read_judged(tmp_path / "one.jsonl").queries.values()) == ["train"]
    jsonl(tmp_path / "late.jsonl", [rows[1], {"query": "cat", "split": "train"}])
    with pytest.raises(DataError, match="row 2 has none of the columns"):
        read_judged(tmp_path / "late.jsonl", "train")
    (beir / "qrels" / ".DS_Store").write_text("x")
    (beir / "qrels" / "test.tsv").unlink()
    (beir / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n\nq2\td2\t1\n\n")
    assert read_judged(beir).queries == {"q2": "not judged"}
    for file in (beir / "qrels").iterdir():
        file.unlink()
    pq.write_table(
        pa.table({"query-id": ["q1"], "corpus-id": ["d1"]}), beir / "qrels" / "train-0.parquet"
    )
    with pytest.raises(DataError, match="leave --split out"):
        read_judged(beir, "dev")


def test_pairs_with_several_positives_and_the_names_that_training_knows(tmp_path):
    rows = [
        {"question": "cat", "positives": ["it purrs", "a pet"]},
        {"question": "dog", "positives": ["a pet"]},
    ]
    jsonl(tmp_path / "pairs.jsonl", rows)
    found = read_judged(tmp_path / "pairs.jsonl")
    assert list(found.corpus.values()) == ["it purrs", "a pet"]
    assert found.judgements == {"q0": {"d0": 1.0, "d1": 1.0}, "q1": {"d1": 1.0}}
    jsonl(tmp_path / "pairs.jsonl", [{"question": ["cat"], "positives": ["a pet"]}])
    with pytest.raises(DataError, match=r"row 1: \['cat'\] is no text"):
        read_judged(tmp_path / "pairs.jsonl")
    jsonl(tmp_path / "pairs.jsonl", [{"query": "cat", "positive": {"text": "a pet"}}])
    with pytest.raises(DataError, match="is no text"):
        read_judged(tmp_path / "pairs.jsonl")
