"""The options of ``contrastive sweep``."""

import argparse
import pathlib
from typing import Any

from contrastive.errors import UserError

_OF_FILES = ("output", "launcher", "on", "parallel", "retries")
_OF_TRIALS = ("coordinator", "processes", "process")


def add_sweep(commands: Any) -> argparse.ArgumentParser:
    """Adds the command; who calls says what runs it."""
    parser = commands.add_parser(
        "sweep",
        help="train a family of models from one file; the same command again goes on",
        description="contrastive sweep FILE.py --output=DIR runs what is not done; contrastive "
        "sweep DIR --status shows a table; contrastive sweep DIR --trial=INDEX runs one trial.",
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="FILE_OR_DIR", help="FILE.py[:ARGUMENT], or the folder")
    parser.add_argument("--output", type=pathlib.Path, metavar="DIR", help="the sweep's folder")
    parser.add_argument("--launcher", help="who runs the trials: local, slurm, gke (local)")
    parser.add_argument(
        "--on",
        metavar="FILE.py",
        help="what to ask slurm or gke for, as in contrastive launch; --on.KEY=VALUE changes a key",
    )
    parser.add_argument("--parallel", type=int, metavar="N", help="trials at a time")
    parser.add_argument(
        "--retries", type=int, metavar="N", help="how often a failed trial is started again"
    )
    parser.add_argument("--trial", type=int, metavar="INDEX", help="run this trial, here")
    parser.add_argument("--status", action="store_true", help="show how the trials stand")
    return parser


def check(options: argparse.Namespace) -> None:
    """Which options go together.

    Raises:
      UserError: These do not.
    """
    given = [name for name in _OF_FILES if getattr(options, name) is not None]
    of_folder = options.status or options.trial is not None
    if options.status and options.trial is not None:
        raise UserError("choose one of --status and --trial.")
    if of_folder and given:
        raise UserError(f"--{given[0]} goes with FILE.py; --status and --trial with its folder.")
    if options.trial is None and any(getattr(options, name) is not None for name in _OF_TRIALS):
        raise UserError(
            "--coordinator, --processes and --process go with --trial; how many processes a trial "
            "has is said in the file of the sweep."
        )
    if not of_folder and options.output is None:
        raise UserError(
            f"{options.path}: say where the sweep lives, --output=DIR; or what to do with a "
            "sweep's folder, --status or --trial=INDEX."
        )
