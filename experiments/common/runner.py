"""The command line of an experiment, ``python -m experiments.NAME --output=DIR [--short|--full]``.

An experiment is a folder with ``experiment.py``, whose ``run(context)`` returns an
:class:`~experiments.common.outcome.Outcome`. What has come to its end is not run again; training
runs go on where they were.
"""

import argparse
import dataclasses
import importlib
import logging
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Literal, TypeAlias

from contrastive.cli import prepare
from contrastive.errors import UserError
from contrastive.whole import whole_file
from experiments.common import machine, plots
from experiments.common.outcome import Outcome, load, save, shown
from experiments.common.page import report, write_page

Scope: TypeAlias = Literal["short", "full"]
NAMES = (  # in the order in which they are run: what takes seconds first
    "log_b",
    "mutual_information",
    "learned_scale",
    "large_m",
    "alignment_uniformity",
    "gradient_anatomy",
    "hard_negatives",
    "triplet",
    "bi_encoder_cost",
    "dense_retrieval",
    "temperature",
    "sigmoid_vs_softmax",
)


@dataclasses.dataclass(frozen=True)
class Context:
    """What a run of an experiment is given.

    Attributes:
      output: Its folder, which exists.
      scope: ``short``: trainings are short, of one seed; ``full``: long ones, of all seeds.
    """

    output: pathlib.Path
    scope: Scope

    def say(self, text: str) -> None:
        """Tells how it goes."""
        print(text, flush=True)


def run(name: str, output: pathlib.Path, scope: Scope) -> Outcome:
    """Runs an experiment to its end, or reads what it found before: a short form is not run over
    a full one."""
    found = load(output)
    if found is not None and found.scope in (scope, "full"):
        return found
    output.mkdir(parents=True, exist_ok=True)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    module = importlib.import_module(f"experiments.{name}.experiment")
    start, seconds = time.monotonic(), 0.0
    try:
        found = module.run(Context(output, scope))
    finally:  # a sitting that was interrupted counts
        seconds = _spent(output / f"{scope}.seconds", time.monotonic() - start)
    found = dataclasses.replace(found, scope=scope, seconds=seconds, made=machine.made())
    for table in found.tables:
        table.write(output)
    for plot in found.plots:
        plots.write(plot, output)
    (output / "README.md").write_text(report(found), encoding="utf-8")
    write_page(output / "index.html", [found])
    save(found, output)
    return found


def _spent(file: pathlib.Path, seconds: float) -> float:
    """Adds this sitting to those before it."""
    seconds += float(file.read_text()) if file.exists() else 0.0
    with whole_file(file) as path:
        path.write_text(f"{seconds:.1f}\n")
    return seconds


def say(outcome: Outcome) -> None:
    """The tables and checks, on the terminal."""
    print(f"\n{outcome.title} ({outcome.scope}, {outcome.seconds:.0f} s)\n")
    for table in outcome.tables:
        print(table.markdown())
    for check in outcome.checks:
        print(f"{check.verdict}: {check.what} Expected {check.expected}; found {check.found}.")


def add_scope(parser: argparse.ArgumentParser) -> None:
    """``--short`` (also without a word) and ``--full``."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--short", action="store_true", help="one seed, on a laptop (the default)")
    group.add_argument("--full", action="store_true", help="all seeds; may take hours")


def main(name: str, arguments: Sequence[str] | None = None) -> None:
    """The command of one experiment; exit status 1 when an expectation was missed."""
    parser = argparse.ArgumentParser(prog=f"python -m experiments.{name}")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs") / name)
    add_scope(parser)
    options = parser.parse_args(arguments)
    scope: Scope = "full" if options.full else "short"
    prepare()
    try:
        found = run(name, options.output, scope)
    except UserError as error:
        sys.exit(f"experiments.{name}: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on.")
    say(found)
    print(f"\nPage: {options.output / 'index.html'}")
    sys.exit(int(bool(found.missed)))


def summary(outcomes: Sequence[Outcome]) -> str:
    """One line an experiment."""
    lines = []
    for one in outcomes:
        found = sum(check.met for check in one.checks)
        lines.append(
            f"{one.name}: {found} of {len(one.checks)} as expected, "
            f"{shown(one.seconds / 60)} minutes"
        )
    return "\n".join(lines)
