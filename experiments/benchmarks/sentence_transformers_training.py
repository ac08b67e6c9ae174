"""MiniLM fine-tuned side by side with sentence-transformers: the same pairs, batches and schedule.

    python -m experiments.data.minilm; python -m experiments.data.debian_descriptions
    make parity
    python -m experiments.benchmarks.sentence_transformers_training --output=runs/beside

Twice: the plain loss (MultipleNegativesRankingLoss; here ``info_nce``), and in mini-batches
(CachedMultipleNegativesRankingLoss; here gradient caching). No dropout and no weight decay, so that
both compute the same numbers: the first step's loss and gradients are compared, then losses along
the way, nDCG@10 of 2,000 unseen descriptions, pairs a second (median over the steps after the
first), and peak memory of the process. Each side runs in a process of its own, one after another,
and a run that is there is not repeated. A short form: ``--steps=3 --batch=32``.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import contrastive
from contrastive.data.tokenizer import Tokenizer
from contrastive.evaluation.information_retrieval import information_retrieval_metrics
from contrastive.evaluation.relevance import Relevance
from contrastive.objectives import LossConfig, make_objective
from contrastive.pretrained import mapping
from contrastive.pretrained.exporting import export_weights
from contrastive.pretrained.importing import Imported, import_weights, make_tokenizer
from contrastive.training.state import TrainState
from contrastive.training.step import make_train_step
from experiments.benchmarks.peak_memory import Peak

PEER = pathlib.Path(__file__).with_name("peer_sentence_training.py")
PYTHON = pathlib.Path(".venv-parity/bin/python")
SCALE, LENGTH = 20.0, 64


def read_pairs(file: pathlib.Path, split: str) -> list[tuple[str, str]]:
    """Queries and passages of a split, each passage once."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    chosen = {row["positive"]: row["query"] for row in rows if row["split"] == split}
    return [(query, positive) for positive, query in chosen.items()]


def write_plan(options: argparse.Namespace) -> None:
    """The batches, in an order that a seed says, and the rates: linear up, then a cosine down."""
    pairs = read_pairs(options.data, "train")
    order, batches = np.random.default_rng(0), []
    while len(batches) < options.steps:
        rows = order.permutation(len(pairs))
        for start in range(0, len(rows) - options.batch + 1, options.batch):
            chosen = [pairs[i] for i in rows[start : start + options.batch]]
            queries, positives = zip(*chosen, strict=True)
            batches.append({"queries": queries, "positives": positives})
    warm = max(options.steps // 10, 1)
    rates = [
        options.rate * min((i + 1) / warm, (1 + math.cos(math.pi * i / options.steps)) / 2)
        for i in range(options.steps)
    ]
    plan = {"batches": batches[: options.steps], "rates": rates, "scale": SCALE}
    (options.output / "plan.json").write_text(json.dumps(plan | {"text_length": LENGTH}))


def start(found: Imported, rates: list[float]) -> tuple[nnx.GraphDef, TrainState, Any]:
    """The imported model at step 0, at the fixed scale, and the optimizer."""
    found.towers.log_scale[...] = jnp.float32(math.log(SCALE))
    graphdef, parameters = nnx.split(found.towers)
    schedule = jnp.asarray(rates, jnp.float32)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(lambda step: schedule[step], eps=1e-8, weight_decay=0.0),
    )
    moments = optimizer.init(parameters)
    state = TrainState(jnp.zeros((), jnp.int32), parameters, moments, average=None)
    return graphdef, state, optimizer


def train_here(options: argparse.Namespace, out: pathlib.Path, chunks: int) -> None:
    """Our side: first gradients, all steps, the model as a folder of sentence-transformers."""
    plan = json.loads((options.output / "plan.json").read_text())
    found = import_weights(options.model)
    data = dataclasses.replace(found.settings.data, text_length=LENGTH)
    found = dataclasses.replace(found, settings=dataclasses.replace(found.settings, data=data))
    tokenizer = make_tokenizer(found.settings)
    assert tokenizer is not None
    graphdef, state, optimizer = start(found, plan["rates"])
    config = LossConfig(name="info_nce", scale_init=SCALE, mask_duplicates=False)
    objective = make_objective(config, pairs="texts", microbatches=chunks)

    def fixed(parameters: Any) -> Any:
        names = [path == ("log_scale",) for path, _ in nnx.to_flat_state(parameters)]
        return jax.tree.unflatten(jax.tree.structure(parameters), names)

    step = make_train_step(graphdef, objective, optimizer, seed=0, average_decay=None, frozen=fixed)
    longest = {name: _longest(tokenizer, plan["batches"], name) for name in plan["batches"][0]}
    out.mkdir(parents=True, exist_ok=True)
    values, seconds = [], []
    with Peak() as memory:
        for texts in plan["batches"]:
            begin = time.perf_counter()
            ids = (
                tokenizer.encode(texts[name])[:, : longest[name]]
                for name in ("queries", "positives")
            )
            batch: dict[str, Any] = dict(
                zip(("query", "positive"), map(jnp.asarray, ids), strict=True)
            )
            batch["id"] = jnp.arange(len(texts["queries"]), dtype=jnp.int32)
            if not values:
                _save_gradients(found, graphdef, objective, state, batch, out)
                begin = time.perf_counter()
            state, metrics = step(state, batch)
            values.append(float(metrics["loss"]))
            seconds.append(time.perf_counter() - begin)
    towers = nnx.merge(graphdef, state.parameters)
    export_weights(found.settings, towers, tokenizer, "huggingface", out / "model")
    numbers = {"losses": values, "seconds": seconds, "peak_bytes": memory.peak}
    (out / "numbers.json").write_text(json.dumps(numbers))


def _longest(tokenizer: Tokenizer, batches: list[dict[str, list[str]]], name: str) -> int:
    """Ids of the longest text of a kind, a multiple of 8: what ``data.query_length`` is for. The
    peer pads each batch to its own longest text."""
    found = [tokenizer.lengths(tokenizer.encode(batch[name])).max() for batch in batches]
    return -(-int(max(found)) // 8) * 8


def _save_gradients(
    found: Imported, graphdef: Any, objective: Any, state: TrainState, batch: Any, out: pathlib.Path
) -> None:
    def value(parameters: Any) -> Any:
        return objective(nnx.merge(graphdef, parameters), batch, jax.random.key(0))[0]

    gradient = jax.jit(jax.grad(value))(state.parameters)
    flat = {"/".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(gradient)}
    arrays = mapping.write(found.family.rules(found.settings), flat)
    np.savez_compressed(out / "gradients.npz", **arrays)  # pyright: ignore[reportArgumentType]


def quality(options: argparse.Namespace, model: pathlib.Path) -> float:
    """nDCG@10 of the unseen descriptions, by the same code for both sides."""
    pairs = read_pairs(options.data, "validation")
    queries, positives = zip(*pairs, strict=True)
    loaded = contrastive.load(model)
    rows = loaded.encode_text(queries), loaded.encode_text(positives, role="passage")
    ids = np.arange(len(pairs), dtype=np.int32)
    found = information_retrieval_metrics(*rows, Relevance.from_ids(ids, ids))
    value = found["ndcg@10"]
    assert isinstance(value, float)
    return value


def compare(ours: pathlib.Path, theirs: pathlib.Path) -> tuple[float, float]:
    """Relative difference of the first loss, and the largest of a gradient (as a share of its
    norm, or of a thousandth of the largest one's where it is smaller)."""
    losses = [json.loads((p / "numbers.json").read_text())["losses"][0] for p in (ours, theirs)]
    a, b = (dict(np.load(p / "gradients.npz")) for p in (ours, theirs))
    largest = max(np.linalg.norm(g) for g in b.values())
    errors = [
        np.linalg.norm(a[name] - g) / max(np.linalg.norm(g), 1e-3 * largest)
        for name, g in b.items()
        if name in a
    ]
    assert len(errors) == len(b), sorted(set(b) - set(a))
    return abs(losses[0] / losses[1] - 1), float(max(errors))


def side(options: argparse.Namespace, name: str, chunks: int) -> pathlib.Path:
    """Runs a side in a process of its own, unless its numbers are there."""
    out = options.output / f"{name}-{'cached' if chunks > 1 else 'plain'}"
    if (out / "numbers.json").exists():
        return out
    if name == "ours":
        command = [sys.executable, "-m", "experiments.benchmarks.sentence_transformers_training"]
        command += [f"--output={options.output}", f"--model={options.model}", f"--ours={out}"]
        command += [f"--chunks={chunks}"]
    else:
        command = [str(PYTHON), "-W", "ignore", str(PEER)]
        command += [str(options.output), str(options.model), str(out)]
        command += [f"--mini-batch={options.batch // chunks}"] if chunks > 1 else []
    subprocess.run(command, check=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, default=pathlib.Path("data/minilm"))
    data = pathlib.Path("data/debian/pairs.jsonl")
    parser.add_argument("--data", type=pathlib.Path, default=data)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--chunks", type=int, default=8, help="mini-batches of the cached form")
    parser.add_argument("--ours", type=pathlib.Path, help="(used by itself) run our side into this")
    options = parser.parse_args()
    if options.ours is not None:
        train_here(options, options.ours, options.chunks)
        return
    options.output.mkdir(parents=True, exist_ok=True)
    write_plan(options)
    print("loss     side   first loss  gradients  last loss  nDCG@10  pairs/s  peak MiB")
    for kind, chunks in (("plain", 1), ("cached", options.chunks)):
        folders = {name: side(options, name, chunks) for name in ("ours", "peer")}
        loss, gradient = compare(folders["ours"], folders["peer"])
        for name, folder in folders.items():
            numbers = json.loads((folder / "numbers.json").read_text())
            speed = options.batch / statistics.median(numbers["seconds"][1:] or numbers["seconds"])
            print(
                f"{kind:8} {name:6} {numbers['losses'][0]:10.6f}  {'':9}  "
                f"{numbers['losses'][-1]:9.4f}  {quality(options, folder / 'model'):7.4f}  "
                f"{speed:7.1f}  {numbers['peak_bytes'] / 2**20:8.0f}"
            )
        print(f"{kind:8} differ {loss:10.1e}  {gradient:9.1e}")


if __name__ == "__main__":
    main()
