"""Hard negatives as numbers of other samples: from each kind of file to the batch and its ids."""

import dataclasses
import json
import logging
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contrastive.data.config import DataConfig
from contrastive.data.numbered import read_examples_with_negatives, read_numbers
from contrastive.data.pipeline import BatchLoader, load_tokenizer, open_source
from contrastive.data.source_config import FieldsConfig, PartConfig
from contrastive.data.text_config import TokenizerConfig
from contrastive.errors import ConfigError, DataError

ROWS = [{"query": f"what is {i}", "positive": f"answer {i}"} for i in range(12)]
NUMBERS = [[(i + 1) % 12, (i + 5) % 12][: i % 3] for i in range(12)]


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write(path, numbers=NUMBERS):
    """An index, as the suffix says."""
    if path.suffix == ".jsonl":
        lines(path, [row if i % 2 else {"negatives": row} for i, row in enumerate(numbers)])
    elif path.suffix == ".parquet":
        table = {"of": list(range(len(numbers))), "negatives": [row or None for row in numbers]}
        pq.write_table(pa.table(table), path)
    else:
        full = [row + [-1] * (3 - len(row)) for row in numbers]
        np.savez(path, negatives=np.array(full, np.int32), scores=np.ones(3))
    return str(path)


@pytest.fixture
def config_of(tmp_path):
    def make(index, rows=ROWS, **options):
        fields = FieldsConfig(negatives_index=str(index), held_out_share=0.0)
        plain = {
            "source": lines(tmp_path / "pairs.jsonl", rows),
            "pairs": "texts",
            "text_length": 8,
            "tokenizer": TokenizerConfig(kind="words"),
            "negatives": 2,
            "threads": 0,
            "fields": fields,
        }
        return DataConfig(**(plain | options))

    return make


def examples_of(config):
    return read_examples_with_negatives(open_source(config, "train"), config)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "npz"])
def test_every_kind_of_file_gives_the_positives_of_the_samples_that_it_names(
    suffix, tmp_path, config_of
):
    found = examples_of(config_of(write(tmp_path / f"index.{suffix}")))
    assert list(found.negatives) == [[f"answer {j}" for j in row] for row in NUMBERS]
    assert list(found.negative_ids) == [[int(found.ids[j]) for j in row] for row in NUMBERS]
    other = write(tmp_path / f"other.{suffix}", [[], *NUMBERS[1:4], [7], *NUMBERS[5:]])
    assert examples_of(config_of(other)).fingerprint != found.fingerprint


def test_they_reach_the_batch_beside_those_of_the_pair(tmp_path, config_of):
    rows = [{**row, "negatives": [f"wrong {i}"]} for i, row in enumerate(ROWS)]
    config = config_of(write(tmp_path / "index.npz"), rows, negatives=3)
    source = open_source(config, "train")
    tokenizer = load_tokenizer(config, source)
    loader = BatchLoader(source, config, tokenizer, batch_size=4, seed=1)
    own = loader.examples.ids
    for _ in range(3):
        batch = next(loader)
        for i, example in enumerate(batch["example"].tolist()):
            count = 1 + len(NUMBERS[example])
            assert batch["negative_weight"][i].tolist() == [1.0] * count + [0.0] * (3 - count)
            texts = [f"wrong {example}", *(f"answer {j}" for j in NUMBERS[example])]
            np.testing.assert_array_equal(batch["negatives"][i, :count], tokenizer.encode(texts))
            assert batch["negative_id"][i, 1:count].tolist() == own[NUMBERS[example]].tolist()
    loader.close()


def test_what_is_no_negative_is_counted_and_left_out(tmp_path, config_of, caplog):
    rows = [dict(row) for row in ROWS]
    rows[3]["positive"] = rows[0]["positive"]  # equal in content
    rows[4]["positive"] = " "  # cannot be used
    index = write(tmp_path / "index.jsonl", [[0, 3, 4, 5], [4], *[[] for _ in range(10)]])
    with caplog.at_level(logging.WARNING):
        found = examples_of(config_of(index, rows))
    assert list(found.negatives)[:2] == [["answer 5"], []]
    said = "Of the 5 samples that .* names, 2 cannot be used and 2 are equal in content"
    assert any(re.search(said, message) for message in caplog.messages)
    given = [{**row, "content_id": i} for i, row in enumerate(rows)]
    given[5]["positive"] = "Answer  0"  # the words of pair 0 under another id
    five = write(tmp_path / "five.jsonl", [[5, 6], *[[] for _ in range(11)]])
    assert examples_of(config_of(five, given)).negatives[0] == ["answer 6"]
    index = write(tmp_path / "index.jsonl", [[i, 4] for i in range(12)])
    with pytest.raises(DataError, match=r"names 22 samples, of which none.*11 cannot.*11 are eq"):
        examples_of(config_of(index, rows))


@pytest.mark.parametrize(
    "numbers, words",
    [
        (NUMBERS[:-1], r"has 11 rows, and the training split has 12 samples"),
        ([*NUMBERS, []], r"has 13 rows"),
        (
            [[1], [12], *NUMBERS[2:]],
            r"row 1, names the sample 12: samples have the numbers 0 to 11",
        ),
        ([[-2], *NUMBERS[1:]], r"row 0, names the sample -2"),
        ([["a text"], *NUMBERS[1:]], r"holds no numbers of samples"),
        ([[1.5], *NUMBERS[1:]], r"is no list of whole numbers"),
    ],
    ids=["short", "long", "beyond", "negative", "text", "fraction"],
)
def test_an_index_that_does_not_fit_is_refused(numbers, words, tmp_path, config_of):
    with pytest.raises(DataError, match=words):
        examples_of(config_of(write(tmp_path / "index.jsonl", numbers)))


def test_files_that_hold_no_index(tmp_path, config_of):
    with pytest.raises(DataError, match="cannot be read"):
        read_numbers(str(tmp_path / "none.npz"))
    with pytest.raises(DataError, match=r"^nowhere://bucket/index.npz: .*in buckets need"):
        read_numbers("nowhere://bucket/index.npz")
    with pytest.raises(DataError, match=r"has to end in \.npz, \.parquet, \.jsonl"):
        read_numbers("index.txt")
    (tmp_path / "bad.npz").write_bytes(b"PK no")
    with pytest.raises(DataError, match="holds no numbers of samples under the name 'negatives'"):
        read_numbers(str(tmp_path / "bad.npz"))
    np.savez(tmp_path / "flat.npz", negatives=np.arange(3))
    with pytest.raises(DataError, match="holds no numbers"):
        read_numbers(str(tmp_path / "flat.npz"))
    pq.write_table(pa.table({"other": [[1]]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match="holds no numbers"):
        read_numbers(str(tmp_path / "other.parquet"))
    with pytest.raises(ConfigError, match=r"negatives_index needs config\.data\.check = 'before'"):
        config_of("index.npz", check="during")
    with pytest.raises(ConfigError, match=r"negatives_index has no effect: .*negatives, how many"):
        config_of("index.npz", negatives=0)


def test_parts_of_a_mixture_have_their_own_numbers(tmp_path, config_of):
    plain = FieldsConfig(held_out_share=0.0)
    fields = dataclasses.replace(plain, negatives_index=write(tmp_path / "index.npz"))
    others = [{"query": f"who is {i}", "positive": f"person {i}"} for i in range(5)]
    parts = (
        PartConfig(name="b", source=lines(tmp_path / "b.jsonl", others), fields=plain),
        PartConfig(name="a", source=lines(tmp_path / "a.jsonl", ROWS), fields=fields),
    )
    config = config_of("", fields=FieldsConfig())
    config = dataclasses.replace(config, source="mixture", mixture=parts)
    found = examples_of(config)
    expected = [[] for _ in range(5)] + [[f"answer {j}" for j in row] for row in NUMBERS]
    assert list(found.negatives) == expected
    assert config.numbered
