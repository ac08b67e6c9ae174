"""Pairs of texts with negatives: read from every table, in the batch, and through to the loss."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contrastive import losses, reference
from contrastive.data.config import AugmentConfig, DataConfig
from contrastive.data.draws import example_keys
from contrastive.data.examples import read_examples
from contrastive.data.pairs import choose_negatives
from contrastive.data.pipeline import BatchLoader, load_tokenizer, open_source
from contrastive.data.records import DataErrors, InMemorySource
from contrastive.data.source_config import CsvConfig, FieldsConfig
from contrastive.data.text_config import TokenizerConfig
from contrastive.errors import ConfigError, DataError
from contrastive.objectives.judged import existing_negatives

CONFIG = DataConfig(
    source="a.jsonl",
    pairs="texts",
    text_length=8,
    tokenizer=TokenizerConfig(kind="words"),
    negatives=2,
    threads=0,
)
ROWS = [
    {
        "id": f"q{i}",
        "question": f"what is number {i}",
        "positive": f"answer {i}",
        "negatives": [f"wrong {i} {j}" for j in range(i % 4)],
    }
    for i in range(12)
]


class Indexed(InMemorySource):
    fingerprint = "abc"
    errors = DataErrors()


@pytest.fixture
def open_loader():
    loaders = []

    def open_one(source, config=CONFIG, *, batch_size=4, **options):
        tokenizer = load_tokenizer(config, source)
        loader = BatchLoader(source, config, tokenizer, batch_size=batch_size, seed=1, **options)
        loaders.append(loader)
        return loader, tokenizer

    yield open_one
    for loader in loaders:
        loader.close()


def jsonl(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def csv_text(rows, cell, tab=","):
    lines = [tab.join(("id", "question", "positive", "negatives"))]
    for row in rows:
        cells = (row["id"], row["question"], row["positive"], cell(row["negatives"]))
        lines.append(tab.join('"' + c.replace('"', '""') + '"' for c in cells))
    return "\n".join(lines) + "\n"


def write(kind, folder):
    """The rows as a file of this kind, and the settings that it needs."""
    fields = {}
    if kind == "jsonl":
        return jsonl(folder / "a.jsonl"), fields
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), folder / "a.parquet")
        return str(folder / "a.parquet"), fields
    if kind == "arrow":
        table = pa.Table.from_pylist(ROWS)
        with pa.ipc.new_stream(folder / "a.arrow", table.schema) as writer:
            writer.write_table(table)
        return str(folder / "a.arrow"), fields
    if kind == "csv":  # a list as JSON in the cell
        (folder / "a.csv").write_text(csv_text(ROWS, json.dumps))
        return str(folder / "a.csv"), fields
    if kind == "tsv":
        (folder / "a.tsv").write_text(csv_text(ROWS, " ; ".join, "\t"))
        return str(folder / "a.tsv"), {"negatives_separator": ";"}
    numbered = [
        {"query": row["question"], "answer": row["positive"]}
        | {f"negative_{j}": (row["negatives"] + [""] * 3)[j] for j in range(3)}
        | {"key": row["id"]}
        for row in ROWS
    ]
    return jsonl(folder / "numbered.jsonl", numbered), fields


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow", "csv", "tsv", "numbered"])
def test_every_table_gives_the_same_pairs(kind, tmp_path):
    source, fields = write(kind, tmp_path)
    config = DataConfig(source=source, pairs="texts", fields=FieldsConfig(**fields))
    found = {}
    for split in ("train", "validation"):
        part = open_source(config, split)
        for i in range(len(part)):
            record = part[i]
            assert record["key"] not in found
            found[record["key"]] = record
            words, others = part.text(i)
            assert words == record["caption"]
            assert {record["query"], *record["negatives"]} == set(others)
    assert set(found) == {row["id"] for row in ROWS}
    for row in ROWS:
        record = found[row["id"]]
        assert record["query"] == row["question"]
        assert record["caption"] == row["positive"]
        assert record["negatives"] == row["negatives"]
        assert record["image"] == b""


def test_negatives_by_key_from_a_file(tmp_path):
    more = [{"key": "q1", "negatives": ["far", "wrong 1 0"]}]
    more += [{"key": "q8", "negatives": [text]} for text in ("away", "beyond")]
    fields = FieldsConfig(negatives_file=jsonl(tmp_path / "more.jsonl", more), held_out_share=0.0)
    source = jsonl(tmp_path / "a.jsonl")
    config = DataConfig(source=source, pairs="texts", negatives=1, fields=fields)
    source = open_source(config, "train")
    found = {record["key"]: record["negatives"] for record in map(source.__getitem__, range(12))}
    assert found["q1"] == ["wrong 1 0", "far"]  # equal ones once
    assert found["q8"] == ["away", "beyond"]
    assert found["q2"] == ["wrong 2 0", "wrong 2 1"]
    without = dataclasses.replace(fields, negatives_file=None)
    plain = open_source(dataclasses.replace(config, fields=without), "train")
    assert plain.fingerprint != source.fingerprint
    for text, words in (
        ('{"key": "q1"}\n', r"line 1.*KeyError"),
        ('\n{"key": "q1", "negatives": [3]}\n', r"line 2.*negatives are texts"),
        ('{"key": "q1", "negatives": "far"}\n', r"line 1.*texts in a list"),
        ('{"key": "q1", "negatives": {"far": 1}}\n', r"line 1.*texts in a list"),
        ('{"key": "q1", "negatives": ["\\ud800"]}\n', r"line 1.*text is not utf-8"),
        ("[" * 100_000 + "\n", r"line 1.*nested too deeply"),
        ("no\n", "line 1"),
        ("\n", "holds no negatives"),
    ):
        (tmp_path / "more.jsonl").write_text(text)
        with pytest.raises(DataError, match=words):
            open_source(config, "train")
    (tmp_path / "more.jsonl").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        open_source(config, "train")
    nameless = [{k: v for k, v in row.items() if k != "id"} for row in ROWS]
    jsonl(tmp_path / "more.jsonl", more)
    jsonl(tmp_path / "a.jsonl", nameless)
    with pytest.raises(DataError, match="no field for the key of a sample"):
        open_source(config, "train")


def test_a_file_of_negatives_whose_keys_are_those_of_no_pair_is_not_trained_on(
    open_loader, tmp_path, caplog
):
    plain = [{k: v for k, v in row.items() if k != "negatives"} for row in ROWS]
    more = [{"key": "other 1", "negatives": ["far"]}]
    fields = FieldsConfig(negatives_file=jsonl(tmp_path / "more.jsonl", more), held_out_share=0.0)
    config = dataclasses.replace(
        CONFIG, source=jsonl(tmp_path / "a.jsonl", plain), fields=fields, negatives=1
    )
    with pytest.raises(DataError, match=r"none of the 12 pairs comes with .*the keys in"):
        open_loader(open_source(config, "train"), config)
    jsonl(tmp_path / "more.jsonl", [*more, {"key": "q1", "negatives": ["far"]}])
    open_loader(open_source(config, "train"), config)
    assert "Only 1 of the 12 pairs come with hard negatives." in caplog.messages
    during = dataclasses.replace(config, check="during")
    open_loader(open_source(during, "train"), during)
    nowhere = dataclasses.replace(during, fields=FieldsConfig(held_out_share=0.0))
    with pytest.raises(DataError, match=r"negatives = 1, but .*a\.jsonl has no field"):
        open_loader(open_source(nowhere, "train"), nowhere)


def test_passages_as_retrieval_sets_write_them(tmp_path):
    rows = [
        {
            "query_id": "7",
            "query": "who",
            "positive_passages": [{"docid": "1", "title": "Me", "text": "I did"}, {"text": "no"}],
            "negative_passages": [{"docid": "2", "title": "", "text": "You"}],
        }
    ] * 2
    fields = FieldsConfig(held_out_share=0.0)
    config = DataConfig(source=jsonl(tmp_path / "a.jsonl", rows), pairs="texts", fields=fields)
    record = open_source(config, "train")[0]
    assert (record["query"], record["caption"], record["negatives"]) == ("who", "Me I did", ["You"])
    assert record["key"] == "7"


def records_of(rows):
    return [
        {
            "image": b"",
            "caption": row["positive"],
            "keywords": [],
            "id": -1,
            "key": row["id"],
            "query": row["question"],
            "negatives": row["negatives"],
        }
        for row in rows
    ]


@pytest.mark.parametrize("check", ["before", "during"])
def test_batch_is_as_agreed(open_loader, check):
    config = dataclasses.replace(CONFIG, check=check)
    loader, tokenizer = open_loader(Indexed(records_of(ROWS)), config)
    batch = next(loader)
    words = () if check == "before" else (2,)
    assert {name: x.shape for name, x in batch.items() if name != "weight"} == {
        "query": (4, 8),
        "positive": (4, 8),
        "negatives": (4, 2, 8),
        "negative_weight": (4, 2),
        "negative_id": (4, 2, *words),
        "id": (4, *words),
        "example": (4,),
    }
    assert batch["negative_id"].dtype == batch["id"].dtype
    for i, example in enumerate(batch["example"]):
        row = ROWS[example]
        assert tokenizer.decode(batch["query"][i]) == row["question"]
        assert tokenizer.decode(batch["positive"][i]) == row["positive"]
        count = min(len(row["negatives"]), 2)
        assert batch["negative_weight"][i].tolist() == [1.0] * count + [0.0] * (2 - count)
        shown = [tokenizer.decode(ids) for ids in batch["negatives"][i]]
        assert set(shown[:count]) <= set(row["negatives"])
        assert len(set(shown[:count])) == count
        assert shown[count:] == [""] * (2 - count)
        unknown = np.array(-1, np.int32).view(np.uint32) if words else -1
        assert (batch["negative_id"][i, count:] == unknown).all()


def test_negatives_are_drawn_anew_and_evenly():
    own = [[str(i) for i in range(5)]] * 4000
    chosen = np.array(choose_negatives(own, example_keys(0, np.arange(4000)), 2))
    assert (np.diff(chosen, axis=1) > 0).all()
    pairs, times = np.unique(chosen, axis=0, return_counts=True)
    assert len(pairs) == 10
    assert ((times - 400) ** 2 / 400).sum() < 30  # chi square, 9 degrees
    assert choose_negatives([["a"], [], ["a", "b"]], example_keys(0, np.arange(3)), 2) == [
        [0],
        [],
        [0, 1],
    ]


def test_resume_and_processes(open_loader):
    source = InMemorySource(records_of(ROWS))
    whole, _ = open_loader(source)
    batches = [next(whole) for _ in range(7)]
    parts = [open_loader(source, process_index=i, process_count=2)[0] for i in range(2)]
    for part in parts:
        part.restore({**whole.state(), "step": 5})
    halves = [next(part) for part in parts]
    for name, rows in batches[5].items():
        np.testing.assert_array_equal(np.concatenate([h[name] for h in halves]), rows)
    changed = records_of(ROWS)
    changed[3]["negatives"] = ["another"]
    with pytest.raises(DataError, match="The data has changed"):
        open_loader(InMemorySource(changed))[0].restore(whole.state())


def test_hidden_tokens_in_all_texts(open_loader):
    words = TokenizerConfig(kind="words", hidden=0.5)
    config = dataclasses.replace(CONFIG, tokenizer=words, text_length=10)
    loader, tokenizer = open_loader(InMemorySource(records_of(ROWS)), config, batch_size=12)
    batch = next(loader)
    for name in ("query", "positive", "negatives"):
        rows = batch[name].reshape(-1, 10)
        text = np.arange(10) < tokenizer.lengths(rows)[:, None]
        share = (rows == tokenizer.unknown_id).sum() / (text.sum() - 2 * len(rows))
        assert 0.3 < share < 0.7, name


def content(rows, **options):
    """Content ids by example, and of negatives by (example, text)."""
    config = dataclasses.replace(CONFIG, negatives=4, **options)
    source = Indexed(records_of(rows))
    tokenizer = load_tokenizer(config, source)
    loader = BatchLoader(source, config, tokenizer, batch_size=len(rows), seed=0)
    batch = next(loader)
    loader.close()
    ids, negatives = {}, {}
    for i, example in enumerate(batch["example"].tolist()):
        ids[example] = tuple(np.atleast_1d(batch["id"][i]).tolist())
        for j in np.flatnonzero(batch["negative_weight"][i]):
            text = tokenizer.decode(batch["negatives"][i, j])
            negatives[example, text] = tuple(np.atleast_1d(batch["negative_id"][i, j]).tolist())
    return ids, negatives


@pytest.mark.parametrize("check", ["before", "during"])
def test_a_negative_that_is_a_positive_has_its_content_id(check):
    rows = [dict(row) for row in ROWS]
    rows[0]["negatives"] = ["Answer  5", "nothing else"]
    rows[1]["negatives"] = ["nothing else", "answer 1"]
    rows[2]["positive"] = "ANSWER 3"
    ids, negatives = content(rows, check=check)
    assert negatives[0, "answer 5"] == ids[5]
    assert negatives[1, "answer 1"] == ids[1]
    assert negatives[0, "nothing else"] == negatives[1, "nothing else"]
    assert ids[2] == ids[3]
    assert len({*ids.values(), *negatives.values()}) == 11 + len(
        {"nothing else", *(text for row in rows[2:] for text in row["negatives"])}
    )


def test_equal_queries_are_equal_content_where_asked():
    rows = [dict(row) for row in ROWS]
    rows[2]["question"] = "What is number  3"
    assert content(rows)[0][2] == content(rows)[0][3]
    second = content(rows, content="second")[0]
    assert second[2] != second[3]
    during = content(rows, check="during")[0]
    assert during[2] != during[3]


def test_bad_texts_are_counted_by_reason(open_loader):
    rows = records_of(ROWS)
    rows[1]["query"], rows[2]["caption"] = "  ", ""
    loose = dataclasses.replace(CONFIG, max_bad_share=0.5)
    loader, _ = open_loader(Indexed(rows), loose)
    assert loader.errors.counts == {"empty query": 1, "empty positive": 1}
    during, _ = open_loader(Indexed(rows), dataclasses.replace(loose, check="during"))
    batches = [next(during) for _ in range(3)]
    bad = [e for b in batches for e, w in zip(b["example"], b["weight"], strict=True) if w == 0]
    assert sorted(bad) == [1, 2]
    for batch in batches:
        for row in np.flatnonzero(batch["weight"] == 0):
            assert not batch["negative_weight"][row].any()


def test_hostile_rows(tmp_path):
    lines = [
        b'{"id": "a", "question": "caf\xe9", "positive": "p"}',
        b'{"id": "b", "question": 5, "positive": "p"}',
        b'{"id": "c", "question": {"body": "x"}, "positive": "p"}',
        b'["no object"]',
        b'{"id": "d", "question": null, "positive": "p", "negatives": null}',
        b'{"id": "d", "question": "q", "positive": "p", "negatives": "' + b"[" * 100_000 + b'"}',
        b'{"id": "d", "question": "q", "positive": ' + b"[" * 900 + b"]" * 900 + b"}",
        b"[" * 100_000,
        b'{"id": "e", "question": "\xef\xbb\xbfq", "positive": ["p", "r"], "negatives": "n"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    fields = FieldsConfig(held_out_share=0.0, negatives="negatives")
    config = DataConfig(source=str(tmp_path / "a.jsonl"), pairs="texts", fields=fields)
    source = open_source(config, "train")
    found = []
    for i in range(len(source)):
        try:
            row = source[i]
            found.append((row["query"], row["caption"], [text[:9] for text in row["negatives"]]))
        except Exception as error:
            found.append(str(error).partition(":")[0])
    assert found == [
        "text is not utf-8",
        "value is not a text",
        "object without a text",
        "line is not a JSON object",
        ("", "p", []),
        ("q", "p", ["[" * 9]),
        "value is nested too deeply",
        "line is not a JSON object",
        ("q", "p", ["n"]),
    ]


def unit(tokens):
    """Rows that depend on the tokens alone: a stand-in for a tower."""
    table = np.random.default_rng(0).normal(size=(5000, 6))
    rows = table[tokens].sum(axis=-2)
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("check", ["before", "during"])
@pytest.mark.parametrize("share", [True, False])
def test_the_loss_gets_what_the_reference_expects(open_loader, check, share):
    """From texts to InfoNCE: the plain float64 loss is computed from the texts themselves."""
    rows = [dict(row) for row in ROWS]
    rows[4]["negatives"] = ["answer 7", "wrong 4", "answer 4"]  # the last is its own positive
    rows[9]["positive"] = "Answer 7"
    config = dataclasses.replace(CONFIG, check=check, negatives=3)
    loader, tokenizer = open_loader(Indexed(records_of(rows)), config, batch_size=12)
    batch = next(loader)
    found = losses.info_nce(
        jnp.asarray(unit(batch["query"])),
        jnp.asarray(unit(batch["positive"])),
        10.0,
        negatives=jnp.asarray(unit(batch["negatives"])),
        share_negatives=share,
        key_ids=batch["id"],
        negative_ids=batch["negative_id"],
        negative_weights=batch["negative_weight"],
        weights=batch.get("weight"),
    )

    def rows_of(texts):
        return unit(tokenizer.encode(texts)).astype(np.float64)

    order = [rows[e] for e in batch["example"]]
    queries = rows_of([row["question"] for row in order])
    positives = rows_of([row["positive"] for row in order])
    total = 0.0
    for i, row in enumerate(order):
        own = row["positive"].lower()
        rivals = [positives[j] for j in range(12) if order[j]["positive"].lower() != own]
        mine = order if share else [row]
        texts = [t for other in mine for t in other["negatives"] if t != own]
        rivals = np.array(rivals + list(rows_of(texts))) if texts else np.array(rivals)
        logits = 10.0 * np.concatenate([[queries[i] @ positives[i]], rivals @ queries[i]])
        total += np.log(np.exp(logits - logits[0]).sum())
    np.testing.assert_allclose(found, total / 12, rtol=1e-5)
    oracle, _ = reference.info_nce(
        unit(batch["query"]),
        unit(batch["positive"]),
        10.0,
        negatives=unit(batch["negatives"]),
        share_negatives=share,
        key_ids=batch["id"],
        negative_ids=batch["negative_id"],
        negative_weights=batch["negative_weight"],
    )
    np.testing.assert_allclose(oracle, total / 12, rtol=1e-5)


@pytest.mark.parametrize(
    "change,words",
    [
        ({"augment": AugmentConfig(flip=0.5)}, r"config\.data\.augment has no effect"),
        ({"fields": FieldsConfig(image="x")}, r"config\.data\.fields\.image has no effect"),
        ({"source": "a.tar"}, "webdataset holds no pairs of texts"),
        ({"source": "emoji"}, "emoji holds no pairs of texts"),
        ({"content": "first"}, "use 'second' or 'either'"),
        ({"negatives": -1}, "negatives = -1"),
        (
            {"negatives": 0, "fields": FieldsConfig(negatives_file="more.jsonl")},
            r"negatives_file has no effect: config\.data\.negatives",
        ),
        ({"content": "either", "check": "during"}, "needs config.data.check = 'before'"),
        ({"source": "a.csv", "csv": CsvConfig(caption="x")}, r"csv\.caption has no effect"),
        ({"source": "a.csv", "fields": FieldsConfig(split="x")}, r"fields\.split has no effect"),
        ({"fields": FieldsConfig(keywords_separator=",")}, "keywords_separator has no effect"),
    ],
)
def test_settings_that_cannot_be(change, words):
    with pytest.raises(ConfigError, match=words):
        dataclasses.replace(CONFIG, **change)


def test_columns_that_are_missing_are_named(tmp_path):
    source = jsonl(tmp_path / "a.jsonl", [{"text": "a", "other": "b"}])
    with pytest.raises(DataError, match=r"no field for the query.*'text', 'other'"):
        open_source(DataConfig(source=source, pairs="texts"), "train")
    fields = FieldsConfig(query="text", positive="missing")
    with pytest.raises(DataError, match=r"no field 'missing' \(config\.data\.fields\.positive"):
        open_source(DataConfig(source=source, pairs="texts", fields=fields), "train")


def test_queries_have_a_length_of_their_own(open_loader):
    whole = next(open_loader(InMemorySource(records_of(ROWS)), batch_size=12)[0])
    short = dataclasses.replace(CONFIG, query_length=4)  # of six: two words between the markers
    loader, tokenizer = open_loader(InMemorySource(records_of(ROWS)), short, batch_size=12)
    batch = next(loader)
    assert batch["query"].shape == (12, 4)
    assert {tokenizer.decode(row) for row in batch["query"]} == {"what is"}
    assert loader.truncated_captions == 12
    end = np.full((12, 1), tokenizer.end_id)
    np.testing.assert_array_equal(batch["query"], np.hstack([whole["query"][:, :3], end]))
    for name in ("positive", "negatives", "id", "example"):
        np.testing.assert_array_equal(batch[name], whole[name])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"query_length": 2}, r"config\.data\.query_length = 2 is too little"),
        (
            {"query_length": 4, "query_prefix": "what is "},
            r"query_length = 4 .*query_prefix, leave",
        ),
        ({"passage_prefix": "what is number 1 or 2: "}, r"_length = 8 .*passage_prefix, leave"),
        ({"joined": True, "text_length": 4}, r"config\.data\.text_length = 4 is too little"),
        (
            {"joined": True, "query_prefix": "is ", "passage_prefix": "answer 1 2 "},
            "prefix and pas",
        ),
    ],
)
def test_a_row_has_room_for_more_than_what_stands_before_a_text(change, message):
    config = dataclasses.replace(CONFIG, **change)
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(config, InMemorySource(records_of(ROWS)))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"query_length": 9}, "query_length = 9 has to lie between 1 and config.data.text_length"),
        ({"query_length": 0}, "query_length = 0 has to lie"),
        ({"query_length": 4, "joined": True}, "query_length: joined texts"),
        ({"query_length": 4, "query_from": "positive", "negatives": 0}, "queries that are the pos"),
        ({"query_length": 4, "pairs": "captions", "negatives": 0}, "query_length has no effect"),
    ],
)
def test_lengths_of_queries_that_cannot_be(change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_prefixes_stand_before_every_text_and_the_positive_may_be_the_query(open_loader):
    words = {"query_prefix": "ask: ", "passage_prefix": "say: "}
    config = dataclasses.replace(CONFIG, **words)
    loader, tokenizer = open_loader(InMemorySource(records_of(ROWS)), config, batch_size=12)
    batch = next(loader)
    for row, example in enumerate(batch["example"].tolist()):
        texts = {"query": f"ask: {ROWS[example]['question']}"}
        texts["positive"] = f"say: {ROWS[example]['positive']}"
        for name, text in texts.items():
            np.testing.assert_array_equal(batch[name][row], tokenizer.encode([text])[0])
        for j in np.flatnonzero(batch["negative_weight"][row]):
            text = tokenizer.decode(batch["negatives"][row, j])
            assert text.startswith("say : wrong")
    assert tokenizer.decode(batch["query"][0]).startswith("ask :")  # words of the vocabulary
    twice = dataclasses.replace(CONFIG, query_from="positive", negatives=0)
    batch = next(open_loader(InMemorySource(records_of(ROWS)), twice, batch_size=12)[0])
    np.testing.assert_array_equal(batch["query"], batch["positive"])


LABELS = ("similar", "opposite")


def test_labels_reach_the_batch_by_name_or_number(tmp_path, open_loader):
    rows = [
        {**row, "label": (LABELS[i % 2], str(i % 2), i % 2)[i % 3]} for i, row in enumerate(ROWS)
    ]
    fields = FieldsConfig(labels=LABELS, held_out_share=0.0)
    config = dataclasses.replace(
        CONFIG, source=jsonl(tmp_path / "a.jsonl", rows), fields=fields, negatives=0
    )
    for check in ("before", "during"):
        source = open_source(config, "train")
        loader, _ = open_loader(source, dataclasses.replace(config, check=check))
        for _ in range(3):
            batch = next(loader)
            np.testing.assert_array_equal(batch["label"], batch["example"] % 2)
            assert batch["label"].dtype == np.int32


def test_a_label_that_is_none_is_a_bad_sample(tmp_path):
    rows = [{**row, "label": "similar"} for row in ROWS]
    rows[3]["label"], rows[4]["label"], rows[6]["label"] = "other", 2, "9" * 5000
    del rows[5]["label"]
    fields = FieldsConfig(labels=LABELS, held_out_share=0.0)
    config = dataclasses.replace(
        CONFIG, source=jsonl(tmp_path / "a.jsonl", rows), fields=fields, max_bad_share=0.5
    )
    examples = read_examples(open_source(config, "train"), config)
    assert len(examples) == 8
    assert examples.errors.counts == {"unknown label": 4}
    other = dataclasses.replace(config, source=jsonl(tmp_path / "b.jsonl"))
    with pytest.raises(DataError, match="no field for the label: looked for label, gold_label"):
        open_source(other, "train")
    with pytest.raises(ConfigError, match="two labels or more"):
        FieldsConfig(labels=("one",))


def test_joined_texts_are_one_row_with_a_marker_before_each(tmp_path, open_loader):
    config = dataclasses.replace(
        CONFIG, source=jsonl(tmp_path / "a.jsonl"), joined=True, text_length=12, query_prefix="ask "
    )
    loader, tokenizer = open_loader(open_source(config, "train"), config)
    batch = next(loader)
    assert {"joined", "joined_negatives"} < set(batch)
    assert "query" not in batch
    begin, end = tokenizer.begin_id, tokenizer.end_id
    for i, example in enumerate(batch["example"]):
        row = loader.examples.queries[example], loader.examples.captions[example]
        first, second = (tokenizer.without_markers(tokenizer.encode([t])[0]) for t in row)
        ask = tokenizer.without_markers(tokenizer.encode(["ask"])[0])
        wanted = [begin, *ask, *first, begin, *second, end]
        assert batch["joined"][i, : len(wanted)].tolist() == wanted
        assert (batch["joined"][i, len(wanted) :] == tokenizer.pad_id).all()
    for room in (6, 7, 8):
        small = load_tokenizer(dataclasses.replace(config, text_length=room), loader._source)
        ids, cut = small.encode_joined(["one"], ["answer 1 is number 1 what"])
        assert (ids[0] == begin).sum() == 2
        assert (ids[0] != small.pad_id).all()
        assert cut == 1


@pytest.mark.parametrize("check", ["before", "during"])
def test_a_miner_that_returns_the_own_passage_gives_no_negative(open_loader, tmp_path, check):
    """Lines in another order than the pairs, a passage that repeats, and the pair's own: what is
    found by key stays with its pair, and what is of its content is no negative of it."""
    plain = [{k: v for k, v in row.items() if k != "negatives"} for row in ROWS]
    plain[7]["positive"] = "Answer  3"  # the passage of pair 3, too
    more = [
        {"key": row["id"], "negatives": [row["positive"], "answer 3", f"far {i}"]}
        for i, row in reversed(list(enumerate(plain)))
    ]
    fields = FieldsConfig(negatives_file=jsonl(tmp_path / "more.jsonl", more), held_out_share=0.0)
    config = dataclasses.replace(
        CONFIG, source=jsonl(tmp_path / "a.jsonl", plain), fields=fields, negatives=3, check=check
    )
    loader, tokenizer = open_loader(open_source(config, "train"), config)
    for _ in range(3):
        batch = next(loader)
        there = existing_negatives({k: jnp.asarray(v) for k, v in batch.items()}, masked=True)
        for row, example in enumerate(batch["example"].tolist()):
            far = tokenizer.encode([f"far {example}"])[0]
            kept = batch["negatives"][row][np.asarray(there[row]) > 0]
            others = [] if example in (3, 7) else [tokenizer.encode(["answer 3"])[0]]
            assert sorted(map(tuple, kept)) == sorted(map(tuple, [far, *others]))


@pytest.mark.parametrize("check", ["before", "during"])
def test_the_own_positive_is_no_negative_whatever_ids_the_source_gives(
    open_loader, tmp_path, check
):
    rows = [{**row, "content_id": 100 + i} for i, row in enumerate(ROWS)]
    rows[7]["positive"] = "answer 3"  # as pair 3, of another id
    rows = [{**row, "negatives": [row["positive"].upper(), "far"]} for row in rows]
    fields = FieldsConfig(held_out_share=0.0)
    config = dataclasses.replace(
        CONFIG, source=jsonl(tmp_path / "a.jsonl", rows), fields=fields, check=check
    )
    batch = next(open_loader(open_source(config, "train"), config, batch_size=12)[0])
    there = existing_negatives({k: jnp.asarray(v) for k, v in batch.items()}, masked=True)
    assert np.asarray(there).tolist() == [[0.0, 1.0]] * 12


@pytest.mark.parametrize("last", [2**31 - 1, 2**31 - 8])
def test_ids_that_leave_no_number_for_others_are_refused(tmp_path, last):
    rows = [{**ROWS[0], "content_id": last}, *ROWS[1:]]
    fields = FieldsConfig(held_out_share=0.0)
    config = dataclasses.replace(CONFIG, source=jsonl(tmp_path / "a.jsonl", rows), fields=fields)
    with pytest.raises(DataError, match=f"fields.id. reach {last}, which leaves no numbers"):
        read_examples(open_source(config, "train"), config)
    given = [{**row, "content_id": last - i, "negatives": []} for i, row in enumerate(ROWS)]
    jsonl(tmp_path / "a.jsonl", given)
    assert read_examples(open_source(config, "train"), config).ids[0] == last


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_ids_and_labels_as_tables_hold_numbers(tmp_path, kind):
    """Texts in CSV; floats where pandas has met an empty cell."""
    rows = {name: [row[name] for row in ROWS] for name in ("question", "positive")}
    rows |= {
        "content_id": [float(i) for i in range(12)],
        "label": [float(i % 2) for i in range(12)],
    }
    options = {"fields": FieldsConfig(labels=LABELS, held_out_share=0.0)}
    if kind == "csv":
        options = {"fields": FieldsConfig(labels=LABELS), "csv": CsvConfig(held_out_share=0.0)}
        lines = [
            f"{q},{p},{i:.0f},{label:.0f}" for q, p, i, label in zip(*rows.values(), strict=True)
        ]
        (tmp_path / "a.csv").write_text("\n".join([",".join(rows), *lines]))
    else:
        pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    source = str(tmp_path / f"a.{kind}")
    config = dataclasses.replace(CONFIG, source=source, negatives=0, **options)
    found = read_examples(open_source(config, "train"), config)
    assert found.ids.tolist() == list(range(12))
    assert found.labels.tolist() == [0, 1] * 6


@pytest.mark.parametrize("about", [b"{", b"null", b"[]", b'{"info": null}', b"\xff"])
def test_notes_of_others_in_a_table_do_no_harm(tmp_path, about):
    rows = {name: [row[name] for row in ROWS] for name in ("question", "positive")}
    table = pa.table(rows).replace_schema_metadata({b"huggingface": about})
    pq.write_table(table, tmp_path / "a.parquet")
    fields = FieldsConfig(held_out_share=0.0)
    config = dataclasses.replace(CONFIG, source=str(tmp_path / "a.parquet"), fields=fields)
    assert len(open_source(config, "train")) == 12
