"""Retrieval of ours against CLIP_benchmark's and sentence-transformers': time and memory.

    make parity
    python -m experiments.benchmarks.evaluation --sizes 2000x10000
    python -m experiments.benchmarks.evaluation --sizes 10000x50000 100000x100000 --rounds 1

Query i looks for item i among the items, by float32 rows of 512. CLIP_benchmark's is its recall@1,
5, 10 one way, as its ``evaluate`` computes it after encoding; ours for it is ``retrieval_metrics``.
sentence-transformers' is its InformationRetrievalEvaluator with the rows in the place of a model;
ours for it is ``information_retrieval_metrics``. Every run is a process of its own, ours and the
peer's in turn; time includes compilation, not imports nor reading the rows. Memory is the largest
resident size above that before the call. A peer that asks for more than ``--limit-gib`` is refused
it by the system, and is reported as not running at that size. Keep the machine quiet.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from contrastive.whole import whole_file
from experiments.benchmarks.peak_memory import Peak

ROOT = pathlib.Path(__file__).parents[2]
PEER_PYTHON = ROOT / ".venv-parity" / "bin" / "python"
PEERS = ("clip_benchmark", "sentence")
# The same measure by its name at each of the two, to show that the same was computed.
MEASURE = {"clip_benchmark": ("recall@10", "recall@10"), "sentence": ("ndcg@10", "cosine_ndcg@10")}


def make_rows(path: pathlib.Path, queries: int, items: int, dim: int) -> None:
    """Items at random; query i is item i with so much noise that many are not found first."""
    rng = np.random.default_rng(0)
    gallery = rng.normal(size=(items, dim)).astype(np.float32)
    gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
    noise = rng.normal(size=(queries, dim)).astype(np.float32)
    rows = gallery[:queries] + np.float32(0.2) * noise
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.savez(path, queries=rows, gallery=gallery)


def ours(peer: str, path: pathlib.Path) -> dict[str, Any]:
    """This project's measures of the same; in a process of its own."""
    import jax

    from contrastive.evaluation.information_retrieval import information_retrieval_metrics
    from contrastive.evaluation.relevance import Relevance
    from contrastive.evaluation.retrieval import retrieval_metrics

    with np.load(path) as file:
        queries, gallery = file["queries"], file["gallery"]
    jax.devices()
    ids = np.arange(len(gallery))
    with Peak() as memory:
        start = time.perf_counter()
        if peer == "clip_benchmark":
            found = retrieval_metrics(queries, gallery, ids[: len(queries)], ids)
        else:
            right = Relevance.from_ids(ids[: len(queries)], ids)
            found = information_retrieval_metrics(queries, gallery, right)
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes": memory.peak - memory.start, "found": found}


def product_seconds(queries: int, items: int, dim: int) -> float:
    """Seconds that the machine's own float32 product of all rows takes, from a part of it."""
    import jax
    import jax.numpy as jnp

    rows, columns = min(queries, 1024), min(items, 8192)
    a, b = jnp.ones((rows, dim)), jnp.ones((columns, dim))
    multiply = jax.jit(lambda a, b: jnp.matmul(a, b.T, precision="highest"))
    multiply(a, b).block_until_ready()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        multiply(a, b).block_until_ready()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * queries * items / (rows * columns)


def run(command: list[str | pathlib.Path], limit: int, timeout: float) -> dict[str, Any] | str:
    """What a process printed last, or why it gave nothing."""
    limited = ["sh", "-c", 'ulimit -d "$0" && exec "$@"', str(limit // 1024), *command]
    # JAX on a CPU that is one device, as the peers see it.
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    environment.pop("XLA_FLAGS", None)
    try:
        done = subprocess.run(
            limited, capture_output=True, text=True, env=environment, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return f"more than {timeout:,.0f} s"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        memory = "allocate" in done.stderr or "MemoryError" in done.stderr or done.returncode < 0
        return "out of memory" if memory else last[-200:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(peer: str, path: pathlib.Path, rounds: int, limit: int, timeout: float) -> dict:
    """Medians of both, in turn."""
    commands: dict[str, list[str | pathlib.Path]] = {
        "ours": [sys.executable, "-m", __spec__.name, "--ours", peer, path],
        "peer": [
            PEER_PYTHON,
            "-W",
            "ignore",
            ROOT / "experiments/benchmarks/peer_evaluation.py",
            "--time",
            peer,
            path,
        ],
    }
    runs: dict[str, list[Any]] = {"ours": [], "peer": []}
    for _ in range(rounds):
        for name, command in commands.items():
            runs[name].append(run(command, limit, timeout))
    result: dict[str, Any] = {"against": peer}
    for name, found in runs.items():
        failed = [x for x in found if isinstance(x, str)]
        if failed:
            result[name] = failed[0]
            continue
        key = MEASURE[peer][name == "peer"]
        result[name] = {
            "seconds": float(np.median([x["seconds"] for x in found])),
            "bytes": max(x["bytes"] for x in found),
            MEASURE[peer][0]: found[0]["found"][key],
        }
    return result


def row(size: str, result: dict[str, Any], product: float) -> str:
    """One line of the table."""
    mine, theirs = result["ours"], result["peer"]
    cells = [size, result["against"]]
    for found in (mine, theirs):
        cells += (
            [found, "", ""]
            if isinstance(found, str)
            else [
                f"{found['seconds']:.1f} s",
                f"{found['bytes'] / 2**20:,.0f} MiB",
                f"{found[MEASURE[result['against']][0]]:.6f}",
            ]
        )
    if isinstance(mine, dict) and isinstance(theirs, dict):
        cells += [
            f"{mine['seconds'] / theirs['seconds']:.2f}",
            f"{mine['bytes'] / max(theirs['bytes'], 1):.3f}",
        ]
    else:
        cells += ["", ""]
    cells.append(f"{product:.1f} s")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["2000x10000"], metavar="QUERIESxITEMS")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-gib", type=float, default=20.0, help="memory of a process (20)")
    parser.add_argument("--timeout", type=float, default=7200.0, help="seconds of a process")
    parser.add_argument("--output", type=pathlib.Path, help="also write JSON")
    parser.add_argument("--ours", nargs=2, metavar=("PEER", "IN"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ours:
        print(json.dumps(ours(given.ours[0], pathlib.Path(given.ours[1]))))
        return
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    results = []
    print("| queries × items | peer | ours: time | memory | value | peer: time | memory | value | "
          "time ratio | memory ratio | the product alone |")  # fmt: skip
    print("|" + "---|" * 11)
    for size in given.sizes:
        queries, items = map(int, size.split("x"))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows.npz"
            make_rows(path, queries, items, given.dim)
            for peer in given.peers:
                product = product_seconds(queries, items, given.dim)
                limit = int(given.limit_gib * 2**30)
                found = measure(peer, path, given.rounds, limit, given.timeout)
                results.append({"size": size, "product_seconds": product, **found})
                print(row(size, found, product), flush=True)
    if given.output:
        with whole_file(given.output) as path:
            path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
