"""``contrastive COMMAND``: the command line. User errors are one sentence and exit status 2."""

import argparse
import difflib
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
from typing import TYPE_CHECKING

from contrastive.arguments import make_parser
from contrastive.errors import ConfigError, UserError, of_storage
from contrastive.sweeps import options as sweep_options

if TYPE_CHECKING:
    from contrastive.processes import Processes


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
        return _COMMANDS[options.command](options)
    except UserError as error:
        if debug:
            raise
        return _fail(options.command, str(error), status=error.status)
    except OSError as error:
        known = of_storage(error)
        if debug or known is None:
            raise
        return _fail(options.command, str(known), status=known.status)
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
        hint = f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}."
        raise ConfigError(f"{argument} is not an option of this command{hint}")
    return rest


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
        known = of_storage(error) if isinstance(error, OSError) else None
        known = error if isinstance(error, UserError) else known
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

    names = ("count", "skip", "window", "margin", "relative_margin", "max_score")
    of_judge = {"below": options.below, "candidates": options.candidates}
    given = {name: value for name, value in of_judge.items() if value is not None}
    if given and options.judge is None:
        raise ConfigError(f"--{next(iter(given))} has no effect without --judge.")
    judge = None if options.judge is None else JudgeConfig(run=options.judge, **given)
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
    from contrastive.evaluation.table import format_table

    path = options.path or options.workdir
    if path is None or (options.path and options.workdir):
        raise UserError("name the model once: contrastive evaluate PATH.")
    names = ("data", "name", "split", "classes", "templates", "form", "query_prompt",
             "passage_prompt", "without_self", "most", "shots", "search", "baselines")  # fmt: skip
    given = {name: getattr(options, name) for name in names}
    given["shots"] = options.shots and tuple(options.shots)
    settings = parse_options(given)
    if options.precision or options.dims:
        return _evaluate_compressed(path, options)
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


_COMMANDS = {
    "train": _train,
    "plan": _plan,
    "sweep": _sweep,
    "evaluate": _evaluate,
    "compare": _compare,
    "report": _report,
    "search": _search,
    "embed": _embed,
    "mine": _mine,
    "launch": _launch,
    "import": _import,
    "export": _export,
    "data": _data,
}


if __name__ == "__main__":
    sys.exit(main())
