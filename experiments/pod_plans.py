"""The table of plans in docs/scaling.md: every row compiled once, kept, and printed.

    python -m experiments.pod_plans --output=plans         # goes on where it was stopped
    python -m experiments.pod_plans --output=plans --only=h100

A row is a recipe with settings on a machine; compiling one takes one to eight minutes on two cores.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A recipe on a machine."""

    recipe: str
    machine: str
    settings: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        name = "_".join([self.recipe, self.machine, *self.settings])
        return name.translate(str.maketrans({"/": "-", ":": "-", "*": "+"})) + ".json"


_LARGE = ("batch_size=65536",)
_MILLION = "batch_size=1048576"
ROWS = (
    Row("clip.py:b16", "v5e:16x16"),
    Row("clip.py:l14", "v5e:16x16"),
    Row("siglip.py:so400m", "v5e:16x16"),
    Row("siglip.py:g", "v5e:16x16", (*_LARGE, "train.microbatches=2")),
    Row("clip.py:b16", "v5e:16x16", (_MILLION, "train.microbatches=32")),
    Row("clip.py:b16", "v5e:16x16*2", ("mesh.slice=2",)),
    Row("clip.py:b16", "v5p:8x8x8"),
    Row("clip.py:l14", "v5p:8x8x8"),
    Row("siglip.py:so400m", "v5p:8x8x8"),
    Row("siglip.py:g", "v5p:8x8x8", _LARGE),
    Row("clip.py:b16", "v5p:8x8x8", (_MILLION, "train.microbatches=4")),
    Row("clip.py:b16", "h100:1x8", ("train.microbatches=8",)),
    Row("clip.py:b16", "h100:8x8"),
    Row("clip.py:l14", "h100:8x8"),
    Row("siglip.py:so400m", "h100:8x8", ("mesh.fsdp=8",)),
    Row("siglip.py:g", "h100:8x8", (*_LARGE, "mesh.fsdp=8", "train.microbatches=2")),
    Row("clip.py:b16", "h100:8x8", (_MILLION, "train.microbatches=16")),
    Row("clip.py:b16", "h100:64x8"),
    Row("clip.py:l14", "h100:64x8"),
    Row("siglip.py:so400m", "h100:64x8", ("mesh.fsdp=8",)),
    Row("siglip.py:g", "h100:64x8", (*_LARGE, "mesh.fsdp=8")),
    Row("clip.py:b16", "h100:64x8", (_MILLION, "train.microbatches=2")),
    Row("clip.py:l14", "h200:8x8"),
    Row("siglip.py:g", "h200:8x8", (*_LARGE, "mesh.fsdp=8")),
    Row("clip.py:l14", "v6e:16x16"),
    Row("clip.py:l14", "v4:8x8x8"),
)


def compiled(row: Row, folder: pathlib.Path) -> dict[str, Any] | None:
    """The plan of a row; None where it could not be made, with a word why."""
    path = folder / row.file
    if not path.exists():
        print(f"{row.recipe} on {row.machine} {' '.join(row.settings)} ...", file=sys.stderr)
        command = [sys.executable, "-m", "contrastive.cli", "plan", "--json"]
        command += [f"--config=configs/{row.recipe}", f"--topology={row.machine}"]
        command += [f"--config.{setting}" for setting in row.settings]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode:
            print(found.stderr.strip().splitlines()[-1:], file=sys.stderr)
            return None
        path.write_text(found.stdout)
    return json.loads(path.read_text())


def line(row: Row, plan: dict[str, Any]) -> str:
    """A row of the table."""
    mib, estimate = 2**20, plan["estimate"]
    holds, has = plan["peak_bytes_per_device"] / 2**30, plan["capacity_bytes"] / 2**30
    loss, both = plan["loss_sent_bytes_per_device"], plan["sent_bytes_per_device"]
    sent = (both - loss, loss, plan["sent_bytes_between_slices_per_device"])
    parts = (estimate[f"{name}_seconds"] for name in ("compute", "memory", "network"))
    cells = [
        ", ".join([f"`{row.recipe}`", *(f"`{setting}`" for setting in row.settings)]),
        f"`{row.machine}`",
        f"{plan['batch_size']:,}",
        f"{holds:.2f} of {has:.2f} GiB" + ("" if plan["fits"] else ": **does not fit**"),
        " / ".join(f"{count / mib:,.0f}" for count in sent) + " MiB",
        f"{estimate['step_seconds']:.2g} s ({' / '.join(f'{x:.2g}' for x in parts)})",
        f"{estimate['examples_per_second']:,.0f}",
        f"{estimate['device_hours']:,.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="folder of plans")
    parser.add_argument("--only", default="", help="machines that begin so")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for row in ROWS:
        if row.machine.startswith(options.only):
            plan = compiled(row, options.output)
            if plan is not None:
                print(line(row, plan), flush=True)


if __name__ == "__main__":
    main()
