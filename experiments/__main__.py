"""All experiments: ``python -m experiments --short`` (or ``--full``), one page at the end.

Each runs in a process of its own and is not run again once it has come to its end; what was
interrupted goes on. ``--publish=docs/results`` writes tables, plots and text of what is finished;
without ``--short`` and ``--full`` nothing is run.
"""

import argparse
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence

from experiments.common.outcome import load
from experiments.common.page import publish, write_page
from experiments.common.runner import NAMES, add_scope, summary


def wait_for(command: Sequence[str]) -> int:
    """The exit status of a command. Ctrl-C reaches it as well, and it is waited for: trials that it
    has started save a checkpoint first."""
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs/experiments"))
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help="these, not all"
    )
    parser.add_argument(
        "--publish", type=pathlib.Path, metavar="FOLDER", help="such as docs/results"
    )
    add_scope(parser)
    options = parser.parse_args()
    scope = "full" if options.full else "short"
    start, failed = time.monotonic(), []
    only_publish = options.publish is not None and not (options.short or options.full)
    for name in () if only_publish else options.only:
        command = [sys.executable, "-m", f"experiments.{name}", f"--output={options.output / name}"]
        try:
            status = wait_for([*command, f"--{scope}"])
        except KeyboardInterrupt:
            sys.exit("interrupted; the same command goes on.")
        if status:
            failed.append(name)
    found = [load(options.output / name) for name in NAMES]
    outcomes = [outcome for outcome in found if outcome is not None]
    if not outcomes:
        sys.exit("no experiment has come to its end.")
    page = write_page(options.output / "index.html", outcomes)
    print(f"\n{summary(outcomes)}\n")
    print(f"{(time.monotonic() - start) / 60:.1f} minutes. Page: {page}")
    if options.publish is not None:
        publish(outcomes, options.output, options.publish)
        print(f"Published: {options.publish / 'README.md'}")
    if failed:
        print(f"Failed, or missed an expectation: {', '.join(failed)}.", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
