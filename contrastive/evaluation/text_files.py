"""Sets of texts as others publish them: BEIR and NanoBEIR folders, MTEB's and STS's pairs.

All files may be ``.jsonl``, ``.tsv``, ``.csv`` or ``.parquet``, and all but the last one gzipped.
"""

import csv
import dataclasses
import gzip
import io
import json
import math
import pathlib
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from contrastive.data.text_fields import POSITIVE_NAMES, QUERY_NAMES
from contrastive.errors import DataError, first_line

SUFFIXES = (".jsonl", ".json", ".tsv", ".csv", ".txt", ".parquet")
Row = Mapping[str, Any]
# The names that columns have, the usual one first.
_FIRST = ("sentence1", "sent1", "query", "sentence_A", "text1", *QUERY_NAMES)
_SECOND = ("sentence2", "sent2", "positive", "sentence_B", "text2", *POSITIVE_NAMES)
_SCORE = ("score", "similarity_score", "relatedness_score", "similarity")
_LABEL = ("label", "labels", "is_duplicate")
# sts-train.csv and its like: no header, a score in the fifth column, then the two sentences.
_STS_BENCHMARK = (4, 5, 6)


@dataclasses.dataclass(frozen=True)
class JudgedSet:
    """Queries, a corpus, and which of it is right for which query."""

    queries: Mapping[str, str]
    corpus: Mapping[str, str]
    judgements: Mapping[str, Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class PairSet:
    """Pairs of texts with what people say of each: a score, a label, or only that it is one."""

    first: Sequence[str]
    second: Sequence[str]
    scores: Sequence[float]  # empty where the pairs are translations or positives


def read_judged(path: pathlib.Path, split: str | None = None) -> JudgedSet:
    """Reads a folder in BEIR's layout, or a file of pairs.

    A folder holds ``corpus.*`` (``_id``, ``title``, ``text``), ``queries.*`` (``_id``, ``text``)
    and ``qrels/SPLIT.*`` (``query-id``, ``corpus-id``, ``score``, or trec_eval's four columns).
    NanoBEIR's is the same with a folder of parquet files for each, and qrels without scores. The
    text of a passage is its title, a space and its text. Of a file of pairs (``query``,
    ``positive``, which may be a list, perhaps ``split``) the positives of the split are the corpus;
    equal texts count once.

    Args:
      path: The folder or the file.
      split: Which judgements; None: ``test``, else ``dev`` or ``validation``, else the only ones.
        Where nothing names splits, there are none to choose from.

    Raises:
      DataError: Something is missing, empty, or has none of the names above; it says what.
    """
    if path.is_file():
        return _judged_from_pairs(path, split)
    corpus = dict(_texts(_find(path, "corpus")))
    queries = dict(_texts(_find(path, "queries")))
    file = _find_judgements(path, split)
    judgements: dict[str, dict[str, float]] = {}
    for number, row in enumerate(_rows(file), 1):
        query = _value(row, ("query-id", "query_id", "qid"), file, number)
        item = _value(row, ("corpus-id", "corpus_id", "docid", "pid"), file, number)
        score = next((row[name] for name in ("score", "relevance") if name in row), 1)
        judgements.setdefault(str(query), {})[str(item)] = _number(score, file, number)
    if not judgements:
        raise DataError(f"{file} judges nothing.")
    return JudgedSet({name: queries[name] for name in queries if name in judgements} or queries,
                     corpus, judgements)  # fmt: skip


def _judged_from_pairs(path: pathlib.Path, split: str | None) -> JudgedSet:
    rows = list(enumerate(_rows(path), 1))
    splits = {str(row["split"]) for _, row in rows if "split" in row}
    if splits or split is not None:
        wanted = _choose_split(splits, split, path)
        rows = [(number, row) for number, row in rows if str(row.get("split")) == wanted]
    if not rows:
        raise DataError(f"{path} holds no pairs.")
    queries: dict[str, str] = {}
    corpus: dict[str, str] = {}
    judgements: dict[str, dict[str, float]] = {}
    for number, row in rows:
        query = _text(row, _FIRST, path, number)
        positives = _value(row, _SECOND, path, number)
        one = queries.setdefault(query, f"q{len(queries)}")
        for positive in positives if isinstance(positives, list) else [positives]:
            text = _as_text(positive, path, number)
            other = corpus.setdefault(text, f"d{len(corpus)}")
            judgements.setdefault(one, {})[other] = 1.0
    return JudgedSet(
        {name: text for text, name in queries.items()},
        {name: text for text, name in corpus.items()},
        judgements,
    )


def read_pairs(path: pathlib.Path, what: str | None = "score") -> PairSet:
    """Reads pairs of texts with their scores or labels.

    MTEB's columns (``sentence1``, ``sentence2``, ``score`` or ``label``; ``labels`` of lists, a set
    a row), STS benchmark's and SICK's files, SemEval's two (``STS.input.NAME.txt`` beside
    ``STS.gs.NAME.txt``), and this project's (``query``, ``positive``, ``score``).

    Args:
      path: The file.
      what: ``score`` or ``label``; None: neither is needed.

    Raises:
      DataError: There is no such file, it is empty, or a row has no texts or no number.
    """
    if path.name.startswith("STS.input."):
        return _read_semeval(path)
    names = {"score": _SCORE, "label": _LABEL, None: ()}[what]
    first: list[str] = []
    second: list[str] = []
    scores: list[float] = []
    for number, row in enumerate(_rows(path, headless=True), 1):
        if isinstance(row, list):
            if len(row) <= max(_STS_BENCHMARK) or what == "label":
                raise DataError(
                    f"{path}, row {number}: {len(row)} columns without a header; expected are the "
                    f"columns {', '.join((_FIRST[0], _SECOND[0], *names[:1]))}."
                )
            score, one, other = (row[i] for i in _STS_BENCHMARK)
        else:
            one, other = (_value(row, x, path, number) for x in (_FIRST, _SECOND))
            score = _value(row, names, path, number) if names else None
        if isinstance(one, list):  # older files of MTEB: all pairs in one row
            lists = [x for x in (one, other, score) if x is not None]
            if not all(isinstance(x, list) and len(x) == len(one) for x in lists):
                raise DataError(f"{path}, row {number}: the lists of a row have one length.")
            first += [_as_text(x, path, number) for x in one]
            second += [_as_text(x, path, number) for x in other]
            scores += [] if score is None else [_number(x, path, number) for x in score]
            continue
        first.append(_as_text(one, path, number))
        second.append(_as_text(other, path, number))
        if score is not None:
            scores.append(_number(score, path, number))
    if not first:
        raise DataError(f"{path} holds no pairs.")
    return PairSet(first, second, scores)


def _read_semeval(path: pathlib.Path) -> PairSet:
    gold = path.with_name(path.name.replace("STS.input.", "STS.gs.", 1))
    if not gold.is_file():
        raise DataError(f"{path} needs the scores beside it: there is no {gold}.")
    lines = [line.split("\t") for line in _lines(_read_text(path))]
    scores = _lines(_read_text(gold))
    if len(lines) != len(scores):
        raise DataError(f"{path} has {len(lines)} pairs and {gold} {len(scores)} scores.")
    first: list[str] = []
    second: list[str] = []
    found: list[float] = []
    for number, (line, score) in enumerate(zip(lines, scores, strict=True), 1):
        if not score.strip():
            continue
        if len(line) < 2:
            raise DataError(f"{path}, line {number} has no tab between two texts.")
        first.append(line[0])
        second.append(line[1])
        found.append(_number(score, gold, number))
    if not first:
        raise DataError(f"{gold} scores no pair.")
    return PairSet(first, second, found)


def _find(folder: pathlib.Path, name: str) -> pathlib.Path:
    """A file, gzipped or not, or a folder of parquet files."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}.")
    for suffix in SUFFIXES:
        for end in ("", ".gz"):
            if (found := folder / f"{name}{suffix}{end}").is_file():
                return found
    if (inner := folder / name).is_dir() and list(inner.glob("*.parquet")):
        return inner
    raise DataError(
        f"{folder} has no {name}.jsonl (nor another of {', '.join(SUFFIXES)}): a folder in BEIR's "
        "layout has corpus.jsonl, queries.jsonl and qrels/test.tsv."
    )


def _find_judgements(folder: pathlib.Path, split: str | None) -> pathlib.Path:
    qrels = folder / "qrels"
    if not qrels.is_dir():
        return _find(folder, "qrels")
    if list(qrels.glob("*.parquet")) and not list(qrels.glob("*.tsv")):
        if split is not None:
            raise DataError(f"{qrels} holds Parquet files, all of one split: leave --split out.")
        return qrels
    found = {
        path.name.split(".")[0]: path
        for path in sorted(qrels.iterdir())
        if path.is_file() and not path.name.startswith(".")
    }
    return found[_choose_split(found, split, qrels)]


def _choose_split(found: Collection[str], split: str | None, where: pathlib.Path) -> str:
    """The split that is asked for; None: the usual one, or the only one."""
    if split is None:
        split = next((x for x in ("test", "dev", "validation") if x in found), None)
        split = next(iter(found)) if split is None and len(found) == 1 else split
    if split is not None and split in found:
        return split
    if not found:
        raise DataError(f"{where} names no splits" + (f", not {split!r} either." if split else "."))
    listed = ", ".join(sorted(found))
    if split is None:
        raise DataError(f"{where} has the splits {listed}: choose one with --split.")
    raise DataError(f"{where} has no split {split!r}, only {listed}.")


def _texts(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Name and text of each row; a name that comes again has to have the same text."""
    found: dict[str, str] = {}
    for number, row in enumerate(_rows(path), 1):
        name = str(_value(row, ("_id", "id", "query-id", "corpus-id"), path, number))
        title = _as_text(row.get("title") or "", path, number).strip()
        text = _text(row, ("text", "query", "passage"), path, number).strip()
        text = f"{title} {text}".strip()
        if found.setdefault(name, text) != text:
            raise DataError(
                f"{path}: row {number} has the name {name!r} of an earlier, other text."
            )
        yield name, text
    if not found:
        raise DataError(f"{path} is empty.")


def _rows(path: pathlib.Path, *, headless: bool = False) -> Iterator[Any]:
    """The rows of a file: mappings, or lists where a table of text has no header."""
    if not path.exists():
        raise DataError(f"there is no {path}.")
    if path.is_dir() and not list(path.glob("*.parquet")):
        raise DataError(f"{path} is a folder; expected is one of {', '.join(SUFFIXES)}.")
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if path.is_dir() or kind == "parquet":
        for file in sorted(path.glob("*.parquet")) if path.is_dir() else [path]:
            yield from _parquet_rows(file)
        return
    text = _read_text(path)
    if kind in ("jsonl", "json"):
        yield from _json_rows(path, text)
    elif kind in ("tsv", "csv", "txt"):
        yield from _table_rows(path, text, headless=headless)
    else:
        raise DataError(f"{path} is none of {', '.join(SUFFIXES)}.")


def _parquet_rows(path: pathlib.Path) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error


def _read_text(path: pathlib.Path) -> str:
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.name.endswith(".gz") else data
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    return data.decode("utf-8-sig", "replace")


def _lines(text: str) -> list[str]:
    """Lines as files have them: texts may hold other characters that Unicode calls line breaks."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def _json_rows(path: pathlib.Path, text: str) -> Iterator[Row]:
    for number, line in enumerate(_lines(text), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number} is not JSON: {first_line(error)}.") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number} is not an object with names.")
        yield row


def _table_rows(path: pathlib.Path, text: str, *, headless: bool) -> Iterator[Any]:
    """Rows by the names in the header; trec_eval's qrels and STS benchmark have none."""
    cells = _cells(path, text)
    if not cells:
        return
    header = [name.strip() for name in cells[0][1]]
    known = {*_FIRST, *_SECOND, "query-id", "query_id", "_id", "id", "qid"}
    if known & set(header):
        for number, row in cells[1:]:
            if len(row) < len(header) or any(row[len(header) :]):
                raise DataError(f"{path}, line {number}: {len(row)} of {len(header)} columns.")
            yield dict(zip(header, row, strict=False))
        return
    for number, row in cells:
        if headless:
            yield row
            continue
        if len(row) != 4:
            raise DataError(
                f"{path}, line {number} has neither the header query-id, corpus-id, score nor the "
                "four columns of trec_eval."
            )
        yield {"query-id": row[0], "corpus-id": row[2], "score": row[3]}


def _cells(path: pathlib.Path, text: str) -> list[tuple[int, list[str]]]:
    """The cells of each line that is not blank, after the line's number."""
    lines = _lines(text)
    if lines and "," in lines[0] and "\t" not in lines[0]:
        cells = _csv_cells(path, text)
    else:  # sentences hold quotes that are no quoting
        mark = "\t" if lines and "\t" in lines[0] else None
        cells = [(number, line.split(mark)) for number, line in enumerate(lines, 1)]
    return [(number, row) for number, row in cells if any(cell.strip() for cell in row)]


def _csv_cells(path: pathlib.Path, text: str) -> list[tuple[int, list[str]]]:
    before = csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        return [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num} is no CSV: {error}.") from error
    finally:
        csv.field_size_limit(before)


def _value(row: Row, names: Sequence[str], path: pathlib.Path, number: int) -> Any:
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise DataError(
        f"{path}, row {number} has none of the columns {', '.join(names)}, only {', '.join(row)}."
    )


def _text(row: Row, names: Sequence[str], path: pathlib.Path, number: int) -> str:
    return _as_text(_value(row, names, path, number), path, number)


def _as_text(value: Any, path: pathlib.Path, number: int) -> str:
    if isinstance(value, str | int | float):
        return str(value)
    raise DataError(f"{path}, row {number}: {value!r:.60} is no text.")


def _number(value: Any, path: pathlib.Path, number: int) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise DataError(f"{path}, row {number}: {value!r} is no number.")
    return found
