"""``contrastive launch PLACE … -- train …``: checks, plans, records, and starts a run elsewhere."""

import argparse
import os
import pathlib
import shlex
import subprocess
import tempfile
from collections.abc import Callable

from contrastive.commands import workdir as workdir_lib
from contrastive.errors import UserError
from contrastive.launching import check, gke, local, sky, slurm, tpu
from contrastive.launching.job import Job, make_job, planned
from contrastive.launching.record import given_record, recipe_digest
from contrastive.launching.settings import check_workdir, machine_settings
from contrastive.launching.tools import find_tool, run_tool
from contrastive.mesh import check_devices
from contrastive.recipe import load_recipe

Say = Callable[[str], None]


def launch(options: argparse.Namespace, inner: argparse.Namespace | None, *, say: Say) -> int:
    """Starts the run that ``inner`` describes where ``options`` say.

    Args:
      options: Of ``launch``.
      inner: Of the command behind ``--``, checked by its own parser.
      say: Receives sentences.

    Returns:
      The exit status.

    Raises:
      UserError: Something is missing or does not fit; one sentence says what to do.
    """
    train = _check_inner(options, inner)
    return _PLACES[options.place](options, train, say)


def _check_inner(
    options: argparse.Namespace, inner: argparse.Namespace | None
) -> argparse.Namespace:
    if inner is None or inner.command != "train":
        given = "nothing" if inner is None else inner.command
        raise UserError(
            f"contrastive launch {options.place} starts a training run, and {given} stands behind "
            f"--: contrastive launch {options.place} -- train --config=… --workdir=…"
        )
    for name in ("coordinator", "processes", "process"):
        if getattr(inner, name) is not None:
            raise UserError(f"--{name} comes from the launcher; leave it out behind --.")
    return inner


def _local(options: argparse.Namespace, train: argparse.Namespace, say: Say) -> int:
    if train.restarts:
        raise UserError("give --restarts to contrastive launch local, before --.")
    if options.restarts < 0 or options.restart_wait < 0:
        raise UserError(
            f"--restarts={options.restarts} --restart-wait={options.restart_wait:g}: neither can "
            "be negative."
        )
    gpus = local.find_gpus()
    platform = options.platform or ("gpu" if gpus else "cpu")
    default = max(len(gpus) // max(options.processes, 1), 1) if platform == "gpu" else 1
    machine = local.LocalMachine(
        processes=options.processes,
        devices=default if options.devices is None else options.devices,
        platform=platform,
        gpus=gpus,
        port=options.port,
        xla_flags=os.environ.get("XLA_FLAGS", ""),
    )
    local.check_port(machine.port)
    devices = machine.processes * machine.devices
    job = prepare(options, train, say, devices=devices, topology=None, here=True)
    if options.dry_run:
        print(local.describe(job, machine))
        return 0
    return local.run_local(
        job, machine, restarts=options.restarts, wait=options.restart_wait, say=say
    )


def _slurm(options: argparse.Namespace, train: argparse.Namespace, say: Say) -> int:
    machine = machine_settings(slurm.SlurmMachine, options.on, options.overrides)
    if not options.dry_run:
        find_tool("sbatch")
    job = prepare(
        options, train, say, devices=machine.devices, topology=machine.topology, here=True
    )
    folder = pathlib.Path.cwd()
    if options.dry_run:
        print(slurm.script(job, machine, folder), end="")
        return 0
    number = slurm.submit(job, machine, folder)
    say(f"job {number}; its log: {job.workdir / 'logs' / f'slurm-{number}.log'}")
    say(f"squeue --job={number} shows it, scancel {number} ends it.")
    return 0


def _gke(options: argparse.Namespace, train: argparse.Namespace, say: Say) -> int:
    settings = machine_settings(gke.GkeMachine, options.on, options.overrides)
    job = _elsewhere(options, train, say, settings, tool="kubectl")
    text = gke.manifest(gke.jobset(job, settings))
    if options.dry_run:
        print(text, end="")
        return 0
    say(gke.apply(text, settings.namespace))
    name = gke.dns_name(settings.name or job.name)
    select = f"--namespace={settings.namespace} --selector=jobset.sigs.k8s.io/jobset-name={name}"
    say(f"kubectl logs {select} --follow --prefix shows what it says.")
    say(f"kubectl delete jobset {name} --namespace={settings.namespace} ends it.")
    return 0


def _tpu(options: argparse.Namespace, train: argparse.Namespace, say: Say) -> int:
    settings = machine_settings(tpu.TpuMachine, options.on, options.overrides)
    if options.delete:
        commands = tpu.Tpu(settings, load_recipe(train.config, train.overrides).name)
        if options.dry_run:
            print(shlex.join(commands.delete()))
        else:
            run_tool(commands.delete())
        return 0
    job = _elsewhere(options, train, say, settings, tool="gcloud")
    commit = tpu.check_launch(job, force=options.force or options.dry_run)
    commands = tpu.Tpu(settings, job.name)
    if options.dry_run:
        print("\n".join(shlex.join(c) for c in tpu.describe_all(commands, job, commit)))
        return 0
    return tpu.run_tpu(commands, job, commit, say=say)


def _sky(options: argparse.Namespace, train: argparse.Namespace, say: Say) -> int:
    settings = machine_settings(sky.SkyMachine, options.on, options.overrides)
    job = _elsewhere(options, train, say, settings, tool="sky")
    text = sky.task_file(job, settings)
    if options.dry_run:
        print(text, end="")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "task.yaml"
        file.write_text(text)
        return subprocess.run(["sky", "jobs", "launch", "--yes", str(file)]).returncode


def _check(options: argparse.Namespace, train: argparse.Namespace, say: Say) -> int:
    recipe = load_recipe(train.config, train.overrides)
    if options.report:
        check.write_report(options.folder, check.node_report(recipe))
        return 0
    names = [name for name in options.nodes.split(",") if name]
    if not names:
        raise UserError("--nodes: give the names of the nodes to compare, with commas.")
    reports = check.read_reports(options.folder)
    check.check_nodes(given_record(), reports, names, gpus=options.gpus)
    say(f"{len(reports)} node(s) are alike, and as launched.")
    return 0


def _elsewhere(
    options: argparse.Namespace,
    train: argparse.Namespace,
    say: Say,
    settings: gke.GkeMachine | tpu.TpuMachine | sky.SkyMachine,
    *,
    tool: str,
) -> Job:
    """The job for machines that share nothing with this one but a bucket."""
    check_workdir(train.workdir, mount=settings.mount, bucket=settings.bucket)
    if not options.dry_run:
        find_tool(tool)
    machine = settings.machine
    return prepare(options, train, say, devices=machine.devices, topology=machine.name, here=False)


def prepare(
    options: argparse.Namespace,
    train: argparse.Namespace,
    say: Say,
    *,
    devices: int | None,
    topology: str | None,
    here: bool,
) -> Job:
    """The job: its recipe read, its plan made, an earlier run set aside.

    Args:
      options: Of ``launch``.
      train: Of the command that trains.
      say: Receives sentences.
      devices: How many there will be; None: not known.
      topology: What to plan for where --topology does not say it; None: no plan.
      here: Whether the workdir is seen from here under its name.

    Raises:
      UserError: The recipe is wrong, or the run does not fit.
    """
    recipe = load_recipe(train.config, train.overrides)
    if devices is not None:
        check_devices(recipe.mesh, recipe.batch_size, devices)
    workdir = train.workdir.absolute() if here else train.workdir
    if train.new and not here:
        raise UserError(
            f"--new: the folder {workdir} is not seen from here; choose another --workdir."
        )
    if options.dry_run:
        topology = None  # quick; --topology plans all the same
    plan = planned(
        train.config,
        train.overrides,
        options.topology or topology,
        digest=recipe_digest(recipe),
        workdir=workdir if here else pathlib.Path(os.devnull),
        force=options.force,
        say=say,
    )
    if train.new and not options.dry_run and (old := workdir_lib.set_aside(workdir)):
        say(f"The earlier run is kept in {old}.")
    arguments = [a for a in options.inner if a != "--new"]  # a restart goes on with the new run
    return make_job(recipe, arguments, workdir, launcher=options.place, devices=devices, plan=plan)


_PLACES: dict[str, Callable[[argparse.Namespace, argparse.Namespace, Say], int]] = {
    "local": _local,
    "slurm": _slurm,
    "gke": _gke,
    "tpu": _tpu,
    "sky": _sky,
    "check": _check,
}
