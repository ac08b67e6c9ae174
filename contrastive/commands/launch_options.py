"""The options of ``contrastive launch``; light, because every command builds the whole parser."""

import argparse
import pathlib


def add_launchers(parser: argparse.ArgumentParser) -> None:
    """Adds one parser for each place to start a run."""
    places = parser.add_subparsers(dest="place", required=True, metavar="PLACE")
    _add_local(places)
    _on(_add(places, "slurm", "a SLURM cluster: writes a batch script and submits it"))
    _on(_add(places, "gke", "Kubernetes: writes a JobSet and hands it to kubectl"))
    tpu = _add(places, "tpu", "TPU VMs: creates them, runs, watches, deletes")
    _on(tpu)
    tpu.add_argument("--delete", action="store_true", help="give the machines back, run nothing")
    _on(_add(places, "sky", "other clouds: writes a task file for SkyPilot"))
    _add_check(places)


def _add(places: argparse._SubParsersAction, name: str, summary: str):
    place = places.add_parser(
        name,
        help=summary,
        usage=f"contrastive launch {name} [OPTIONS] -- train --config=… --workdir=…",
        allow_abbrev=False,
    )
    place.add_argument(
        "--topology",
        help="plan for this machine first, and do not start what does not fit it; none: no plan",
    )
    place.add_argument(
        "--force", action="store_true", help="start even if the plan says that it does not fit"
    )
    place.add_argument(
        "--dry-run", action="store_true", help="print what would be done, and do nothing"
    )
    place.set_defaults(parser=place)
    return place


def _add_local(places: argparse._SubParsersAction) -> None:
    local = _add(places, "local", "several processes on this machine")
    local.add_argument(
        "--processes", type=int, default=1, metavar="N", help="how many processes (1)"
    )
    local.add_argument(
        "--devices",
        type=int,
        metavar="M",
        help="devices of each (1 CPU device, or the GPUs divided by the processes)",
    )
    local.add_argument(
        "--platform",
        choices=("cpu", "gpu"),
        help="simulated CPU devices or GPUs (gpu where there are some)",
    )
    local.add_argument(
        "--port", type=int, help="where process 0 listens (one that is free, anew at each start)"
    )
    local.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="start all processes again up to N times when one dies",
    )
    local.add_argument(
        "--restart-wait",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="before the first restart; doubled each time, up to a minute (1)",
    )


def _on(place: argparse.ArgumentParser) -> None:
    place.add_argument(
        "--on",
        metavar="FILE.py",
        help="what to ask for: a file such as launch/slurm.py:h100; --on.KEY=VALUE changes a key",
    )


def _add_check(places: argparse._SubParsersAction) -> None:
    check = places.add_parser(
        "check",
        help="what a SLURM job does before it trains: compare the nodes",
        usage="contrastive launch check --folder=… [--report] -- train --config=… --workdir=…",
        allow_abbrev=False,
    )
    check.add_argument(
        "--folder", type=pathlib.Path, required=True, help="where the nodes' reports lie"
    )
    check.add_argument(
        "--report", action="store_true", help="write this node's report, compare nothing"
    )
    check.add_argument("--nodes", default="", help="the names of all nodes, with commas")
    check.add_argument("--gpus", type=int, default=0, help="that each node has to have")
    check.set_defaults(parser=check)
