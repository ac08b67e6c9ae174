"""``contrastive COMMAND``: the command line. User errors are one sentence and exit status 2."""

import argparse
import difflib
import errno
import importlib.metadata
import importlib.util
import io
import json
import logging
import os
import pathlib
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from contrastive.errors import ConfigError, UserError
from contrastive.sweeps import options as sweep_options

if TYPE_CHECKING:
    from contrastive.processes import Processes

_PRECISIONS = ("float32", "float16", "int8", "binary")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    inner: list[str] = []
    if arguments[:1] == ["launch"] and "--" in arguments:  # what is launched is a command too
        cut = arguments.index("--")
        arguments, inner = arguments[:cut], arguments[cut + 1 :]
    options, rest = make_parser().parse_known_args(arguments)
    debug = os.environ.get("CONTRASTIVE_DEBUG")
    try:
        options.overrides = _overrides(options, rest)
        options.inner = inner
        prepare()
        return options.run(options)
    except UserError as error:
        if debug:
            raise
        return _fail(options.command, str(error), status=error.status)
    except OSError as error:
        if debug or error.errno not in (
            errno.ENOSPC,
            errno.EACCES,
            errno.EROFS,
            errno.EDQUOT,
            errno.EFBIG,
        ):
            raise
        return _fail(options.command, f"{error.strerror}: {error.filename or 'while writing'}.")
    except KeyboardInterrupt:
        return _fail(options.command, "interrupted.", status=130)


def _fail(command: str, message: str, status: int = 2) -> int:
    print(f"contrastive {command}: {message}", file=sys.stderr)
    return status


def prepare() -> None:
    """What a command does before it loads JAX."""
    # Libraries' progress notes and deprecations are not for the person who trains.
    logging.getLogger("absl").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    _without_absent_accelerators()


def _without_absent_accelerators() -> None:
    """Where the compilers for plans are installed and no accelerator is, JAX would load them, ask
    the cloud where it is, complain, and refuse to be started twice."""
    if "JAX_PLATFORMS" in os.environ or importlib.util.find_spec("libtpu") is None:
        return
    plugins = [plugin.name for plugin in importlib.metadata.entry_points(group="jax_plugins")]
    if all("cuda" in name for name in plugins) and not _accelerator_is_here():
        os.environ["JAX_PLATFORMS"] = "cpu"


def _accelerator_is_here(root: pathlib.Path = pathlib.Path("/")) -> bool:
    """Whether a TPU or an NVIDIA GPU is there, by the device files that their drivers make."""
    files = ("dev/accel*", "dev/vfio/[0-9]*", "dev/nvidia0", "dev/nvidiactl", "dev/dxg")
    return any(any(root.glob(pattern)) for pattern in files)


def _overrides(options: argparse.Namespace, rest: list[str]) -> list[str]:
    """What the command's parser left over, if all of it changes keys of the configuration."""
    known = list(options.parser._option_string_actions)
    for argument in rest:
        takes_keys = "--config" in known or options.command == "import"
        if argument.startswith("--config.") and takes_keys:
            continue
        if argument.startswith("--on.") and "--on" in known:
            continue
        close = difflib.get_close_matches(argument.partition("=")[0], known, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"
        raise ConfigError(f"{argument} is not an option of this command{hint}.")
    return rest


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
    report.set_defaults(run=_report, parser=report)

    search = commands.add_parser("search", help="find pictures by words", allow_abbrev=False)
    _add_workdir(search)
    search.add_argument("query", nargs="+", help="what to look for")
    search.add_argument(
        "--images",
        type=pathlib.Path,
        help="a folder of pictures; without it, the data set's pictures that were not trained on",
    )
    search.add_argument("--top", type=int, default=10, help="how many to show (10)")
    search.set_defaults(run=_search, parser=search)

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
    embed.set_defaults(run=_embed, parser=embed)

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
    add_launchers(launch, run=_launch)


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
    take.set_defaults(run=_import, parser=take)

    give = commands.add_parser(
        "export", help="write a model as a folder of another library", allow_abbrev=False
    )
    give.add_argument("path", type=pathlib.Path, help="the folder of a run, or of weights")
    give.add_argument("--format", required=True, help="huggingface or open_clip")
    give.add_argument("--output", type=pathlib.Path, required=True, help="the folder to make")
    give.set_defaults(run=_export, parser=give)


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
        type=int,
        default=0,
        metavar="N",
        help="start the run again up to N times when it dies (not after errors that you have to "
        "put right)",
    )
    train.add_argument(
        "--restart-wait",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="before the first restart; doubled each time, up to a minute (1)",
    )
    _add_processes(train)
    train.set_defaults(run=_train, parser=train)


def _add_sweep(commands: Any) -> None:
    parser = sweep_options.add_sweep(commands)
    _add_processes(parser)
    parser.set_defaults(run=_sweep, parser=parser)


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
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long to wait for all processes (300)",
    )
    parser.add_argument(
        "--lost-after",
        type=float,
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
    evaluate.set_defaults(run=_evaluate, parser=evaluate)

    compare = commands.add_parser(
        "compare", help="evaluated runs side by side, with differences", allow_abbrev=False
    )
    compare.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN")
    compare.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table"
    )
    compare.set_defaults(run=_compare, parser=compare)


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
    plan.set_defaults(run=_plan, parser=plan)


def _add_mine(commands: Any) -> None:
    mine = commands.add_parser(
        "mine", help="write hard negatives for pairs of texts", allow_abbrev=False
    )
    _add_config(mine)
    mine.add_argument(
        "--output", type=pathlib.Path, required=True, help="the JSON Lines file to write"
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
    mine.add_argument("--max-score", type=float, help="a negative scores at most this")
    mine.add_argument(
        "--judge", metavar="RUN", help="a cross-encoder's run, which throws out false negatives"
    )
    mine.add_argument(
        "--below", type=float, default=0.5, help="it keeps what is less likely an answer (0.5)"
    )
    mine.add_argument(
        "--candidates", type=int, default=10, help="candidates a pair that it reads (10)"
    )
    mine.set_defaults(run=_mine, parser=mine)


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
        action.set_defaults(run=_data, parser=action)


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


def _train(options: argparse.Namespace) -> int:
    if options.restarts > 0:
        return _supervise(options.restarts, options.restart_wait)
    return _in_processes(_train_in, options)


def _sweep(options: argparse.Namespace) -> int:
    sweep_options.check(options)
    if options.trial is not None:
        return _in_processes(_trial_in, options)

    from contrastive.commands import sweep

    if options.status:
        return sweep.status(pathlib.Path(options.path))
    return sweep.sweep(
        options.path,
        options.output,
        launcher=options.launcher or "local",
        parallel=options.parallel,
        retries=options.retries,
        on=options.on,
        overrides=options.overrides,
    )


def _trial_in(processes: "Processes", options: argparse.Namespace) -> int:
    import jax

    from contrastive.commands.sweep import run_trial

    return run_trial(
        pathlib.Path(options.path),
        options.trial,
        devices=jax.devices(),
        processes=processes,
        stream=sys.stdout if processes.first else io.StringIO(),
    )


def _in_processes(
    run: Callable[["Processes", argparse.Namespace], int], options: argparse.Namespace
) -> int:
    """Runs what several processes do together, or this one alone."""
    from contrastive import rendezvous
    from contrastive.processes import Processes
    from contrastive.training.prefix import prefixed_output

    waits = {"limit": options.start_timeout, "lost_after": options.lost_after}
    if options.coordinator == "auto":
        processes = rendezvous.start_detected(**waits)
        if processes.count == 1:
            return run(processes, options)
        with prefixed_output(processes.index, processes.count):
            return _together(run, processes, options)
    launch = rendezvous.find_launch(options.coordinator, options.processes, options.process)
    if launch is None or launch.count == 1:
        return run(Processes(), options)
    with prefixed_output(launch.index, launch.count):
        try:
            processes = rendezvous.start(launch, **waits)
        except UserError as error:
            return _fail(options.command, str(error), status=error.status)
        return _together(run, processes, options)


def _together(
    run: Callable[["Processes", argparse.Namespace], int],
    processes: "Processes",
    options: argparse.Namespace,
) -> int:
    """One of several processes; when one fails, all end."""
    try:
        return run(processes, options)
    except Exception as error:
        known = error if isinstance(error, UserError) else None
        if known is None or not isinstance(error.__cause__, UserError | None):
            known = processes.explain(error) or known  # perhaps another process is behind it
        if known is None or os.environ.get("CONTRASTIVE_DEBUG"):
            traceback.print_exc()
        if known is None:
            processes.leave(f"{type(error).__name__}: {error}", 1)
        processes.leave(str(known), _fail(options.command, str(known), status=known.status))


def _train_in(processes: "Processes", options: argparse.Namespace) -> int:
    import jax

    from contrastive.commands.train import train
    from contrastive.recipe import load_recipe

    recipe = processes.together(
        lambda: load_recipe(options.config, options.overrides), "reading the recipe"
    )
    return train(
        recipe,
        options.workdir,
        new=options.new,
        devices=jax.devices(),
        processes=processes,
        stream=sys.stdout if processes.first else io.StringIO(),
        command=["contrastive", *sys.argv[1:]],
    )


def _supervise(restarts: int, wait: float) -> int:
    """The command that was given, in a child process that is started again when it dies."""
    from contrastive.training.supervisor import Supervisor, without_option

    command = [sys.executable, *without_option(sys.orig_argv[1:], "--restarts")]
    again = [argument for argument in command if argument != "--new"]  # the new run, not a newer

    def say(text: str) -> None:
        print(f"contrastive train: {text}", file=sys.stderr, flush=True)

    return Supervisor(command, restarts, say=say, wait=wait, again=again).run()


def _launch(options: argparse.Namespace) -> int:
    from contrastive.commands.launch import launch

    def say(text: str) -> None:
        print(f"contrastive launch: {text}", file=sys.stderr, flush=True)

    inner = None
    if options.inner:
        inner, rest = make_parser().parse_known_args(options.inner)
        inner.overrides = _overrides(inner, rest)
    return launch(options, inner, say=say)


def _plan(options: argparse.Namespace) -> int:
    os.environ["JAX_PLATFORMS"] = "cpu"  # what is planned for is not here

    from contrastive.commands.plan import plan

    return plan(
        options.config,
        options.overrides,
        options.topology,
        as_json=options.json,
        search=options.search,
    )


def _mine(options: argparse.Namespace) -> int:
    import jax

    from contrastive.commands.mine import JudgeConfig, mine
    from contrastive.mining import MiningConfig
    from contrastive.recipe import load_recipe

    names = ("count", "skip", "window", "margin", "max_score")
    judge = None
    if options.judge is not None:
        judge = JudgeConfig(run=options.judge, below=options.below, candidates=options.candidates)
    return mine(
        load_recipe(options.config, options.overrides),
        options.output,
        MiningConfig(**{name: getattr(options, name) for name in names}),
        by=options.by,
        judge=judge,
        devices=jax.devices(),
    )


def _data(options: argparse.Namespace) -> int:
    from contrastive.commands import data
    from contrastive.recipe import load_recipe

    recipe = load_recipe(options.config, options.overrides)
    if options.action == "index":
        return data.index(recipe, workers=options.workers)
    if options.action == "inspect":
        return data.inspect(recipe, output=options.output, most=options.most, as_json=options.json)
    if options.action == "stats":
        return data.stats(
            recipe,
            most=options.most,
            as_json=options.json,
            plots=options.plots,
            split=options.split,
        )
    return data.convert(
        recipe,
        target=options.to,
        output=options.output,
        shard_size=options.shard_size,
        split=options.split,
    )


def _import(options: argparse.Namespace) -> int:
    from contrastive.commands.weights import import_model

    import_model(
        options.path,
        options.output,
        model_config=options.model_config,
        image_size=options.image_size,
        expected=options.overrides,
    )
    return 0


def _export(options: argparse.Namespace) -> int:
    from contrastive.commands.weights import export_model

    export_model(options.path, options.output, options.format)
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    import jax

    from contrastive.commands.evaluate import evaluate_run, evaluate_tasks, parse_options
    from contrastive.evaluation.suite import format_table

    path = options.path or options.workdir
    if path is None or (options.path and options.workdir):
        raise UserError("name the model once: contrastive evaluate PATH.")
    if options.precision or options.dims:
        return _evaluate_compressed(path, options)
    names = ("data", "name", "split", "classes", "templates", "form", "query_prompt",
             "passage_prompt", "without_self", "most", "shots", "search")  # fmt: skip
    given = {name: getattr(options, name) for name in names}
    given["shots"] = options.shots and tuple(options.shots)
    settings = parse_options(given)
    if (settings is None) != (options.task is None):
        raise UserError("--task and --data go together: what to measure, and on what.")
    if settings is not None:
        results = evaluate_tasks(
            path, options.task, settings, pooler=options.pooler, output=options.output,
            devices=jax.devices(),
        )  # fmt: skip
    elif options.output is not None:
        raise UserError("--output goes with --task; a run is evaluated in its own folder.")
    elif options.pooler is not None:
        raise UserError("--pooler goes with --task and --data.")
    else:
        results = evaluate_run(path, devices=jax.devices())
    print(json.dumps(results) if options.json else format_table(results))
    return 0


def _evaluate_compressed(path: pathlib.Path, options: argparse.Namespace) -> int:
    import jax

    from contrastive.commands.compressed import evaluate_compressed, format_compressed

    if options.task or options.data or options.output:
        raise UserError("--precision and --dims are measured on the run's own data: no --task.")
    results = evaluate_compressed(
        path, options.precision or (), options.dims or (), devices=jax.devices()
    )
    print(json.dumps(results) if options.json else format_compressed(results))
    return 0


def _compare(options: argparse.Namespace) -> int:
    from contrastive.commands.compare import compare_runs

    compare_runs(options.runs, as_object=options.json)
    return 0


def _report(options: argparse.Namespace) -> int:
    from contrastive.reporting import write_report

    print(f"Report: {write_report(options.workdir)}")
    return 0


def _search(options: argparse.Namespace) -> int:
    import jax

    from contrastive.commands.search import search

    query = " ".join(options.query)
    search(options.workdir, query, images=options.images, top=options.top, devices=jax.devices())
    return 0


def _embed(options: argparse.Namespace) -> int:
    import jax

    from contrastive.commands.embed import embed

    embed(
        options.workdir,
        options.input,
        options.output,
        role=options.role,
        precision=options.precision,
        dim=options.dim,
        devices=jax.devices(),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
