"""open_clip's losses on PyTorch, timed; runs in the second environment (`make parity`).

The other side of `experiments/benchmarks/losses.py`, which starts it as a process and talks to it
in lines of JSON: a request on standard input, an answer on standard output, so that rounds of the
two can be interleaved. It imports nothing of this project.
"""

import argparse
import json
import resource
import sys
import time
from importlib.metadata import version

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  in the second environment

# torchvision is installed without its compiled operators. Importing it needs these two to be
# declared; the losses call neither.
_OPERATORS = ("nms", "qnms")


def declare_operators() -> torch.library.Library:
    """Declares the operators; they last as long as what is returned."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _OPERATORS:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def open_clip_losses():
    """The two losses, as open_clip trains with them on one device."""
    declared = declare_operators()
    from open_clip.loss import ClipLoss, SigLipLoss  # pyright: ignore[reportMissingImports]

    del declared
    clip, sigmoid = ClipLoss(), SigLipLoss()
    return {
        "softmax": lambda x, y, scale, bias: clip(x, y, scale),
        "sigmoid": lambda x, y, scale, bias: sigmoid(x, y, scale, bias),
    }


def make_step(loss, batch: int, dim: int):
    """A closure that runs forward and backward once and returns seconds."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(batch, dim, generator=generator) for _ in range(2)]
    x, y = (torch.nn.functional.normalize(r).requires_grad_() for r in rows)
    scale = torch.tensor(14.0, requires_grad=True)
    bias = torch.tensor(-10.0, requires_grad=True)

    def step() -> float:
        for leaf in (x, y, scale, bias):
            leaf.grad = None
        start = time.perf_counter()
        loss(x, y, scale, bias).backward()
        return time.perf_counter() - start

    return step


def serve() -> None:
    """Answers ``{"loss", "batch", "dim"}`` with ``{"seconds", "peak_bytes"}``, a line each."""
    losses, steps = open_clip_losses(), {}
    versions = f"open_clip {version('open_clip_torch')}, torch {torch.__version__}"
    print(json.dumps({"ready": versions}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        key = request["loss"], request["batch"], request["dim"]
        if key not in steps:
            steps.clear()
            steps[key] = make_step(losses[key[0]], *key[1:])
        seconds = steps[key]()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "peak_bytes": peak}), flush=True)


def check() -> None:
    """Runs both losses once and prints what they give."""
    for name, loss in open_clip_losses().items():
        seconds = make_step(loss, 64, 16)()
        print(f"open_clip {name}: runs ({seconds * 1e3:.1f} ms)")


def values(given: str, result: str) -> None:
    """Value and gradients of both losses for the arrays x, y, scale, bias of a file."""
    arrays = {}
    for name, loss in open_clip_losses().items():
        leaves = {k: torch.tensor(v, requires_grad=True) for k, v in np.load(given).items()}
        value = loss(*(leaves[k] for k in ("x", "y", "scale", "bias")))
        value.backward()
        arrays[name] = value.detach().numpy()
        for key, leaf in leaves.items():
            if leaf.grad is not None:
                arrays[f"{name}/{key}"] = leaf.grad.numpy()
    np.savez(result, **arrays)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="run each loss once and stop")
    parser.add_argument("--values", nargs=2, metavar=("IN.npz", "OUT.npz"))
    args = parser.parse_args()
    if args.check:
        check()
    elif args.values:
        values(*args.values)
    else:
        serve()
