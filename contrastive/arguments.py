"""The commands of ``contrastive`` and their options. Light: every command builds them all."""

import argparse
import math
import pathlib
from typing import Any

from contrastive.sweeps import options as sweep_options

_PRECISIONS = ("float32", "float16", "int8", "binary")


def make_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(
        prog="contrastive", description="Pretrain embedding models on pairs."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    _add_train(commands)
    _add_plan(commands)
    _add_sweep(commands)

    _add_evaluate(commands)

    report = commands.add_parser(
        "report", help="write the report page of a run again", allow_abbrev=False
    )
    _add_workdir(report)
    report.set_defaults(parser=report)

    search = commands.add_parser("search", help="find pictures by words", allow_abbrev=False)
    _add_workdir(search)
    search.add_argument("query", nargs="+", help="what to look for")
    search.add_argument(
        "--images",
        type=pathlib.Path,
        help="a folder of pictures; without it, the data set's pictures that were not trained on",
    )
    search.add_argument("--top", type=int, default=10, help="how many to show (10)")
    search.set_defaults(parser=search)

    embed = commands.add_parser(
        "embed", help="write the embeddings of pictures or texts", allow_abbrev=False
    )
    _add_workdir(embed)
    embed.add_argument(
        "input", type=pathlib.Path, help="a folder of pictures, or a text file with a text a line"
    )
    embed.add_argument("--output", type=pathlib.Path, required=True, help="the .npz file to write")
    embed.add_argument(
        "--role",
        choices=("query", "passage"),
        default="query",
        help="of a model of pairs of texts: which half the lines are (query)",
    )
    embed.add_argument(
        "--precision",
        choices=_PRECISIONS,
        default="float32",
        help="of the rows in the file (float32)",
    )
    embed.add_argument("--dim", type=int, help="keep the first entries only, at unit length (all)")
    embed.set_defaults(parser=embed)

    _add_mine(commands)
    _add_launch(commands)
    _add_weights(commands)
    _add_data_commands(commands)
    return parser


def _add_launch(commands: Any) -> None:
    from contrastive.commands.launch_options import add_launchers

    launch = commands.add_parser(
        "launch", help="start a run: several processes here, SLURM, Kubernetes, TPU VMs, SkyPilot"
    )
    add_launchers(launch)


def _add_weights(commands: Any) -> None:
    take = commands.add_parser(
        "import",
        help="make someone's weights to a folder like that of a run",
        description="--config.KEY=VALUE states what you expect of the weights, and is an error "
        "where they say something else.",
        allow_abbrev=False,
    )
    take.add_argument("path", type=pathlib.Path, help="a folder or a file of weights")
    take.add_argument("--output", type=pathlib.Path, required=True, help="the folder to make")
    take.add_argument(
        "--model-config",
        type=pathlib.Path,
        metavar="FILE.json",
        help="the configuration, where it does not lie beside the weights",
    )
    take.add_argument(
        "--image-size", type=int, metavar="PIXELS", help="another size of pictures than trained on"
    )
    take.set_defaults(parser=take)

    give = commands.add_parser(
        "export", help="write a model as a folder of another library", allow_abbrev=False
    )
    give.add_argument("path", type=pathlib.Path, help="the folder of a run, or of weights")
    give.add_argument("--format", required=True, help="huggingface or open_clip")
    give.add_argument("--output", type=pathlib.Path, required=True, help="the folder to make")
    give.set_defaults(parser=give)


def _add_train(commands: Any) -> None:
    train = commands.add_parser(
        "train", help="train a model, evaluate it, write its report", allow_abbrev=False
    )
    _add_config(train)
    train.add_argument(
        "--workdir",
        required=True,
        type=pathlib.Path,
        help="the run's folder; a run in it is resumed",
    )
    train.add_argument(
        "--new",
        action="store_true",
        help="start anew; an earlier run in --workdir is kept beside it",
    )
    train.add_argument(
        "--restarts",
        type=_count,
        default=0,
        metavar="N",
        help="start the run again up to N times when it dies (not after errors that you have to "
        "put right)",
    )
    train.add_argument(
        "--restart-wait",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="before the first restart; doubled each time, up to a minute (1)",
    )
    _add_processes(train)
    train.set_defaults(parser=train)


def _add_sweep(commands: Any) -> None:
    parser = sweep_options.add_sweep(commands)
    _add_processes(parser)
    parser.set_defaults(parser=parser)


def _add_processes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="where process 0 of several listens; SLURM steps find each other without it; 'auto' "
        "leaves it to JAX, as on Cloud TPU",
    )
    parser.add_argument("--processes", type=int, metavar="N", help="how many processes there are")
    parser.add_argument("--process", type=int, metavar="I", help="which one this is, from 0")
    parser.add_argument(
        "--start-timeout",
        type=_positive_seconds,
        default=300.0,
        metavar="SECONDS",
        help="how long to wait for all processes (300)",
    )
    parser.add_argument(
        "--lost-after",
        type=_positive_seconds,
        default=60.0,
        metavar="SECONDS",
        help="after how long a silence a process counts as lost (60)",
    )


def _add_evaluate(commands: Any) -> None:
    evaluate = commands.add_parser(
        "evaluate", help="evaluate a trained or imported model", allow_abbrev=False
    )
    evaluate.add_argument("path", nargs="?", type=pathlib.Path, help="a run, or imported weights")
    evaluate.add_argument("--workdir", type=pathlib.Path, help="the same, for a run")
    evaluate.add_argument(
        "--task",
        action="append",
        metavar="NAME",
        help="what to measure on --data; may be given several times. Pictures: retrieval, "
        "zero_shot, knn, linear_probe, few_shot, geometry. Texts: information_retrieval, "
        "similarity, pair_classification, bitext. Without it: what training measures at its end",
    )
    evaluate.add_argument(
        "--data", help="pictures: a source as in config.data.source; texts: a folder or a file"
    )
    evaluate.add_argument("--name", help="how results call the set (the name of the data)")
    evaluate.add_argument("--split", help="which split (test, else validation)")
    evaluate.add_argument("--classes", help="class names: imagenet, cifar10, …, or a file")
    evaluate.add_argument("--templates", help="prompts: a set or a file (those of the classes)")
    evaluate.add_argument(
        "--form", choices=("clip", "siglip", "siglip2"), help="how prompts are cleaned"
    )
    evaluate.add_argument("--query-prompt", metavar="TEXT", help='before every query ("query: ")')
    evaluate.add_argument("--passage-prompt", metavar="TEXT", help="before every passage")
    evaluate.add_argument(
        "--without-self",
        action="store_true",
        default=None,
        help="leave the passage of the query's own name out",
    )
    evaluate.add_argument(
        "--pooler",
        metavar="NAME",
        help="measure with another pooling of texts beside the model's own: mean, max, cls, last, "
        "weighted_mean; or with its training head: head",
    )
    evaluate.add_argument("--most", type=int, metavar="N", help="at most so many pictures")
    evaluate.add_argument(
        "--shots", type=int, nargs="+", metavar="K", help="examples a class (1 5 10)"
    )
    evaluate.add_argument(
        "--search", choices=("exact", "approx", "faiss"), help="how knn finds neighbours (exact)"
    )
    evaluate.add_argument(
        "--baselines",
        action="store_true",
        default=None,
        help="beside probes, similarity and information_retrieval the same with an untrained twin, "
        "and beside probes with raw pixels",
    )
    evaluate.add_argument(
        "--precision",
        nargs="+",
        choices=_PRECISIONS,
        help="what compressed rows cost: recall by them on the run's own sets, beside whole rows",
    )
    evaluate.add_argument(
        "--dims", type=int, nargs="+", metavar="N", help="the same for the first entries of rows"
    )
    evaluate.add_argument(
        "--output", type=pathlib.Path, help="the folder for evaluation.json (the model's)"
    )
    evaluate.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table"
    )
    evaluate.set_defaults(parser=evaluate)

    compare = commands.add_parser(
        "compare", help="evaluated runs side by side, with differences", allow_abbrev=False
    )
    compare.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN")
    compare.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table"
    )
    compare.set_defaults(parser=compare)


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser(
        "plan",
        help="compile the train step for a TPU pod or GPU cluster: memory, traffic, time",
        allow_abbrev=False,
    )
    _add_config(plan)
    plan.add_argument(
        "--topology",
        required=True,
        help="the machine: v5e:16x16, v5p:8x8x8, v5e:16x16*2 (two slices), h100:8x8, cpu:8",
    )
    plan.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table"
    )
    plan.add_argument(
        "--search",
        nargs="?",
        type=int,
        const=9,
        metavar="N",
        help="try up to N (9) meshes, rematerialisation policies and microbatches",
    )
    plan.set_defaults(parser=plan)


def _add_mine(commands: Any) -> None:
    mine = commands.add_parser(
        "mine", help="write hard negatives for pairs of texts", allow_abbrev=False
    )
    _add_config(mine)
    mine.add_argument(
        "--output",
        type=pathlib.Path,
        required=True,
        help="the file to write: .jsonl (texts by key) or .npz (numbers of pairs)",
    )
    mine.add_argument(
        "--by", default="bm25", help="what ranks: bm25, or the folder of a trained run (bm25)"
    )
    mine.add_argument("--count", type=int, default=1, help="negatives a pair, at most (1)")
    mine.add_argument(
        "--skip", type=int, default=0, help="leave out so many of the best candidates (0)"
    )
    mine.add_argument(
        "--window", type=int, default=100, help="look at no candidate beyond this rank (100)"
    )
    mine.add_argument(
        "--margin", type=float, help="a negative scores at least so much less than the positive"
    )
    mine.add_argument(
        "--relative-margin", type=float, help="the same, as a share of the positive's score"
    )
    mine.add_argument("--max-score", type=float, help="a negative scores at most this")
    mine.add_argument(
        "--judge", metavar="RUN", help="a cross-encoder's run, which throws out false negatives"
    )
    mine.add_argument("--below", type=float, help="it keeps what is less likely an answer (0.5)")
    mine.add_argument("--candidates", type=int, help="candidates a pair that it reads (10)")
    mine.set_defaults(parser=mine)


def _add_data_commands(commands: Any) -> None:
    data = commands.add_parser("data", help="look at the data of a recipe, index or convert it")
    inner = data.add_subparsers(dest="action", required=True, metavar="ACTION")
    summaries = {
        "index": "make the index of webdataset tars",
        "inspect": "fields, faults, tokens, speed and a contact sheet of the training data",
        "stats": "lengths, duplicates and resolutions",
        "convert": "write the data as ArrayRecord or webdataset tars",
    }
    for name, summary in summaries.items():
        action = inner.add_parser(name, help=summary, allow_abbrev=False)
        _add_config(action)
        if name == "index":
            action.add_argument(
                "--workers", type=int, default=0, help="processes that read tars (0: this one)"
            )
        if name in ("inspect", "stats"):
            most = 1000 if name == "inspect" else 10_000
            action.add_argument(
                "--most", type=int, default=most, help=f"samples to look at ({most}; 0: all)"
            )
            action.add_argument(
                "--json", action="store_true", help="print one JSON object instead of a table"
            )
        if name == "inspect":
            action.add_argument("--output", type=pathlib.Path, help="the sheet (data.html)")
        if name in ("stats", "convert"):
            action.add_argument("--split", default="train", help="which split (train)")
        if name == "stats":
            action.add_argument("--plots", type=pathlib.Path, help="a folder for a plot")
        if name == "convert":
            action.add_argument("--to", required=True, choices=("array_record", "webdataset"))
            action.add_argument(
                "--output", type=pathlib.Path, required=True, help="the folder to write into"
            )
            action.add_argument(
                "--shard-size", type=int, default=10_000, help="samples a file (10,000)"
            )
        action.set_defaults(parser=action)


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        required=True,
        help="a recipe, FILE.py or FILE.py:ARGUMENT; --config.KEY=VALUE changes a key",
    )


def _add_workdir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workdir", required=True, type=pathlib.Path, help="the folder of a trained run"
    )


def _count(text: str) -> int:
    value = int(text) if text.strip().isdecimal() else -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _positive_seconds(text: str) -> float:
    if not (value := _seconds(text)):
        raise argparse.ArgumentTypeError(f"{text!r} has to be more than 0 seconds")
    return value
