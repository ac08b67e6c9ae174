"""Time and memory of the losses: partitioned, dense, and open_clip's on PyTorch.

Forward and backward of the softmax (CLIP) and sigmoid (SigLIP) loss, float32, on one CPU device and
on 8 simulated ones, against the rate of this machine's own matrix product.

    python -m experiments.benchmarks.losses                     # all: start it and leave it
    python -m experiments.benchmarks.losses --batches 1024,4096 --rounds 3

Timing is noisy where others use the machine too, so the forms of one batch size take turns, each
between two matrix products; rounds whose products differ by more than a tenth are dropped, and the
median of the rest counts. Every form runs in a process of its own: its peak memory is its own. The
peer needs `make parity`; without it the table has no such rows. What was measured is in README.md.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

HERE = pathlib.Path(__file__).parent
PARITY = HERE.parents[1] / ".venv-parity" / "bin" / "python"
# Operations in units of B²·d: three products of 2 with sigmoid, four with recomputed softmax.
LIMIT = {"softmax": 8, "sigmoid": 6}
FORMS = ("ours", "dense", "open_clip")


# --- one form in its own process ------------------------------------------------------------------


def make_step(form: str, family: str, batch: int, dim: int) -> Any:
    """A function that runs forward and backward once, and what it needs."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    from contrastive.logits import LogitPartition
    from contrastive.losses import clip_loss, sigmoid_loss

    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((batch, dim), np.float32) for _ in range(2)]
    rows = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in rows]
    mesh = None
    if jax.device_count() > 1:
        mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Explicit,))
        cut = NamedSharding(mesh, PartitionSpec("data"))
        x, y = (jax.device_put(r, cut) for r in rows)
    else:
        x, y = (jnp.asarray(r) for r in rows)
    exchange = {"dense": "dense"}.get(form, "gather" if mesh is None else "ring")
    partition = LogitPartition(mesh, exchange=exchange, block_rows=None if mesh else 512)
    if family == "softmax":
        loss = lambda x, y, s: clip_loss(x, y, s, partition=partition)  # noqa: E731
    else:
        loss = lambda x, y, s: sigmoid_loss(x, y, s, -10.0, partition=partition)  # noqa: E731
    scale = jnp.float32(14.0)
    step = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).lower(x, y, scale).compile()
    return lambda: jax.block_until_ready(step(x, y, scale))


def make_product() -> Any:
    """A function that returns this machine's rate of matrix products, operations a second."""
    import jax

    side = 4096
    a = jax.random.normal(jax.random.key(0), (side, side))
    product = jax.jit(lambda a: a @ a)
    product(a).block_until_ready()

    def rate() -> float:
        start = time.perf_counter()
        product(a).block_until_ready()
        return 2 * side**3 / (time.perf_counter() - start)

    return rate


def serve() -> None:
    """Answers requests in lines of JSON, like the peer."""
    import jax

    print(json.dumps({"ready": f"jax {jax.__version__}"}), flush=True)
    step = rate = None
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("product"):
            rate = rate or make_product()
            print(json.dumps({"rate": rate()}), flush=True)
            continue
        if step is None:
            step = make_step(*(request[key] for key in ("form", "loss", "batch", "dim")))
        start = time.perf_counter()
        step()
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "peak_bytes": peak}), flush=True)


class Server:
    """A process that answers requests."""

    def __init__(self, command: list[str], devices: int):
        flags = f"--xla_force_host_platform_device_count={devices}"
        self.process = subprocess.Popen(
            command,
            env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.versions: str = self._read()["ready"]

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with status {self.process.wait()}.")
        return json.loads(line)

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to one request."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# --- rounds ---------------------------------------------------------------------------------------


def start(form: str, devices: int) -> Server:
    """The process of one form."""
    if form == "open_clip":
        return Server([str(PARITY), str(HERE / "peer_open_clip.py")], devices)
    return Server([sys.executable, "-m", "experiments.benchmarks.losses", "--serve"], devices)


def memory_needed(form: str, batch: int) -> int:
    """Bytes that a form holds at least: dense forms keep several matrices of logits."""
    return 0 if form == "ours" else 4 * 4 * batch**2


def available_memory() -> int:
    """Bytes that a process can still take."""
    fields = dict(
        line.split(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines()
    )
    return int(fields["MemAvailable"].split()[0]) * 1024


def measure(
    family: str, devices: int, batch: int, dim: int, forms: list[str], rounds: int
) -> list[dict[str, Any]]:
    """One row of the table for each form."""
    rows: list[dict[str, Any]] = []
    servers: dict[str, Server] = {}
    for form in forms:
        row = {"loss": family, "devices": devices, "batch": batch, "form": form}
        rows.append(row)
        if memory_needed(form, batch) > 0.8 * available_memory():
            row["note"] = f"needs more than {memory_needed(form, batch) / 2**30:.0f} GiB"
        else:
            servers[form] = start(form, devices)
    meter = start("ours", 1)
    request = {"loss": family, "batch": batch, "dim": dim}
    seen: dict[str, list[tuple[float, float]]] = {form: [] for form in servers}
    peaks: dict[str, int] = {}
    for number in range(rounds):
        before = meter.ask(product=True)["rate"]
        for form, server in servers.items():
            if number == 0 and rounds > 1:
                server.ask(form=form, **request)  # the first call is slower than the others
                before = meter.ask(product=True)["rate"]
            answer = server.ask(form=form, **request)
            after = meter.ask(product=True)["rate"]
            peaks[form] = answer["peak_bytes"]
            if abs(before - after) < 0.1 * before or rounds == 1:
                seen[form].append((answer["seconds"], (before + after) / 2))
            before = after
    for server in (meter, *servers.values()):
        server.close()
    for row in rows:
        form = row["form"]
        if form not in servers:
            continue
        row["versions"] = servers[form].versions
        if not seen[form]:
            row["note"] = "too noisy to say"
            continue
        work = LIMIT[family] * batch**2 * dim
        row["seconds"] = statistics.median(seconds for seconds, _ in seen[form])
        row["of_limit"] = statistics.median(work / s / rate for s, rate in seen[form])
        row["rounds"] = len(seen[form])
        row["peak_bytes"] = peaks[form]
    return rows


def machine() -> dict[str, Any]:
    """Processor, cores and memory."""
    fields = [line.split(":", 1) for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()]
    names = [field[1].strip() for field in fields if field[0].strip() == "model name"]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": names[0] if names else "unknown",
        "cores": os.cpu_count(),
        "memory_gib": round(total / 2**30, 1),
        "python": sys.version.split()[0],
    }


def save(rows: list[dict[str, Any]], folder: pathlib.Path) -> None:
    """Rows, table and plot."""
    rows = sorted(rows, key=lambda r: (r["devices"], r["loss"], r["batch"]))
    folder.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine(), "rows": rows}
    (folder / "losses.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "losses.txt").write_text(table(rows) + "\n")
    plot(rows, folder / "losses.png")


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text; `x ours` is the time in units of ours."""
    ours = {
        (r["loss"], r["devices"], r["batch"]): r.get("of_limit")
        for r in rows
        if r["form"] == "ours"
    }
    head = f"{'loss':9}{'devices':>8}{'batch':>8}  {'form':10}{'seconds':>10}"
    lines = [head + f"{'of limit':>10}{'x ours':>8}{'peak MiB':>10}"]
    for r in rows:
        line = f"{r['loss']:9}{r['devices']:>8}{r['batch']:>8}  {r['form']:10}"
        if "seconds" not in r:
            lines.append(line + "  " + r["note"])
            continue
        mine = ours[r["loss"], r["devices"], r["batch"]]
        times = f"{mine / r['of_limit']:>8.2f}" if mine else f"{'':>8}"
        peak = r["peak_bytes"] / 2**20
        lines.append(line + f"{r['seconds']:>10.3f}{r['of_limit']:>10.2f}{times}{peak:>10,.0f}")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Share of the matrix-product limit, and peak memory, over the batch."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), sharex=True, layout="constrained")
    colours = dict(zip(FORMS, ("tab:blue", "tab:gray", "tab:orange"), strict=True))
    for column, family in enumerate(LIMIT):
        for form in FORMS:
            for devices, style in ((1, "-o"), (8, "--s")):
                kept = [
                    r
                    for r in rows
                    if (r["loss"], r["form"], r["devices"]) == (family, form, devices)
                    and "seconds" in r
                ]
                if not kept:
                    continue
                batch = [r["batch"] for r in kept]
                label = f"{form}, {devices} device{'s' if devices > 1 else ''}"
                options: dict[str, Any] = {"color": colours[form], "label": label}
                axes[0, column].plot(batch, [r["of_limit"] for r in kept], style, **options)
                peak = [r["peak_bytes"] / 2**20 for r in kept]
                axes[1, column].plot(batch, peak, style, **options)
        axes[0, column].set_title(f"{family}: {LIMIT[family]}·B²·d operations")
        axes[0, column].axhline(1, color="black", linewidth=0.8, label="the limit")
        axes[0, column].set(ylim=(0, None), xscale="log", ylabel="share of the product's rate")
        axes[1, column].set(yscale="log", xlabel="batch", ylabel="peak memory of the process, MiB")
        axes[0, column].legend(fontsize="small")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measures, prints the table, saves it and the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", default="1024,2048,4096,8192,16384")
    parser.add_argument("--largest", type=int, default=65536, help="one round on one device; 0: no")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--devices", default="1,8")
    parser.add_argument("--losses", default="softmax,sigmoid")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "results")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    forms = [f for f in args.forms.split(",") if f != "open_clip" or PARITY.exists()]
    rows = []
    for devices in map(int, args.devices.split(",")):
        for family in args.losses.split(","):
            batches = [int(batch) for batch in args.batches.split(",")]
            if args.largest and devices == 1:
                batches.append(args.largest)
            for batch in batches:
                here = [f for f in forms if f != "open_clip" or devices == 1]
                rounds = 1 if batch == args.largest else args.rounds
                rows += measure(family, devices, batch, args.dim, here, rounds)
                print("\n".join(table(rows).splitlines()[-len(here) :]), flush=True)
                save(rows, args.output)
    print(table(rows))


if __name__ == "__main__":
    main()
