"""``contrastive train``: the main job. The same command again resumes."""

import collections
import contextlib
import dataclasses
import json
import pathlib
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from flax import nnx

from contrastive import config as config_lib
from contrastive import mesh as mesh_lib
from contrastive.assembly import Program, make_program
from contrastive.building import build_towers
from contrastive.commands import workdir as workdir_lib
from contrastive.commands.best import check_best, evaluation_numbers
from contrastive.commands.evaluate import LISTS, NUMBERS, is_evaluated, save_evaluation
from contrastive.data.pipeline import BatchLoader, open_batches, open_source
from contrastive.data.tokenizer import Tokenizer, load_tokenizer
from contrastive.errors import ConfigError, DataError, StorageError, UserError
from contrastive.evaluation.sets import check_held_out
from contrastive.evaluation.suite import evaluate
from contrastive.evaluation.table import format_line, format_table
from contrastive.inference import Model
from contrastive.launching import record as record_lib
from contrastive.microbatches import check_microbatches
from contrastive.mined import MinedBatches, Miner
from contrastive.objectives import scale_limit
from contrastive.processes import Processes, SharedFlag, code_digest, part_of_batch
from contrastive.recipe import Recipe, check_resumable, read_recipe, write_recipe
from contrastive.reporting import write_report
from contrastive.temperature import project_log_scale
from contrastive.training import checkpoint, logs, loop
from contrastive.training.hosts import SameShapes
from contrastive.training.profiler import Profiler
from contrastive.training.state import TrainState, init_state
from contrastive.training.stopping import Signals
from contrastive.training.watchdog import Watchdog
from contrastive.warm_start import take_tokenizer, warm_start


def train(
    recipe: Recipe,
    workdir: pathlib.Path,
    *,
    new: bool,
    devices: mesh_lib.Devices,
    processes: Processes | None = None,
    stream: Any = None,
    command: Sequence[str] = (),
) -> int:
    """Trains, evaluates and writes the report.

    Args:
      recipe: The resolved settings.
      workdir: The run's folder; a run in it is resumed.
      new: Set an earlier run aside and start at step 0.
      devices: What the mesh is made of: those of all processes.
      processes: Those that train together; None: this one alone.
      stream: Where the terminal output goes; None: standard output.
      command: The command that was given, for ``launch.json``.

    Returns:
      The exit status: 0 when done or at ``stop_at``; 128 + the signal's number when a signal
      ended the run, after a checkpoint.

    Raises:
      UserError: With one sentence that says what to do.
    """
    processes = processes or Processes()
    stream = sys.stdout if stream is None else stream
    launched = record_lib.given_record()
    processes.together(
        lambda: record_lib.check_as_launched(launched, recipe, devices=len(devices)),
        "comparing with what was launched",
    )
    mesh = mesh_lib.make_mesh(recipe.mesh, devices)
    mesh_lib.check_batch_divides(recipe.batch_size, mesh)
    check_microbatches(recipe.batch_size, recipe.train.microbatches, mesh_lib.batch_parts(mesh))
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals())
        limits = recipe.train.watchdog_seconds, recipe.train.patience_seconds
        watchdog = stack.enter_context(Watchdog(processes, *limits))
        processes.first_alone(
            lambda: _open(recipe, workdir, new, stream, stack), "opening the workdir"
        )
        workdir_lib.check_shared(workdir, processes)
        if processes.first:
            _record(launched, recipe, workdir, command, devices, processes)
        run = _Run(recipe, workdir, mesh, devices, processes, stream, signals, watchdog)
        stack.callback(run.close)
        return run.execute()


def _open(
    recipe: Recipe, workdir: pathlib.Path, new: bool, stream: Any, stack: contextlib.ExitStack
) -> None:
    """Takes the folder for this run, until ``stack`` is left."""
    if new and (old := workdir_lib.set_aside(workdir)):
        print(f"The earlier run is kept in {old}.", file=stream)
    stack.enter_context(workdir_lib.opened(workdir))
    if (workdir / "config.json").exists():
        try:
            check_resumable(read_recipe(workdir), recipe, workdir)
        except ConfigError:
            if workdir_lib.has_begun(workdir):
                raise
            (workdir / "tokenizer.json").unlink(missing_ok=True)  # of the other configuration
    if recipe.log.wandb is not None:
        logs.import_wandb()
    write_recipe(workdir, recipe)


def _record(
    launched: dict[str, Any] | None,
    recipe: Recipe,
    workdir: pathlib.Path,
    command: Sequence[str],
    devices: mesh_lib.Devices,
    processes: Processes,
) -> None:
    """Writes ``launch.json``."""
    record = launched or record_lib.make_record(
        recipe, command, launcher=None, plan={"skipped": "not started by a launcher"}
    )
    here = {
        "host": socket.gethostname(),
        "processes": processes.count,
        "devices": len(devices),
        "local_devices": sum(d.process_index == processes.index for d in devices),
        "device": f"{devices[0].platform} {devices[0].device_kind}",
        "versions": record_lib.versions(),
    }
    record_lib.write_record(workdir, record, here)


class _Run:
    """The parts of one run and the callables that the loop needs from them."""

    def __init__(
        self,
        recipe: Recipe,
        workdir: pathlib.Path,
        mesh: jax.sharding.Mesh,
        devices: mesh_lib.Devices,
        processes: Processes,
        stream: Any,
        signals: Signals,
        watchdog: Watchdog,
    ) -> None:
        self.recipe, self.workdir, self.mesh, self.devices = recipe, workdir, mesh, devices
        self.processes, self.signals, self.watchdog = processes, signals, watchdog
        self.stop_flag = SharedFlag(processes, mesh)
        self.profiler = Profiler(workdir, recipe.train.profiled(), processes)
        self.newest_step, self.newest = 0, {}  # what was measured at the last step that was logged
        self.stopped_by = 0  # the signal that ended the run, in whichever process it arrived
        self.begun = workdir_lib.has_begun(workdir)
        self._evaluation = workdir / NUMBERS
        self.terminal = logs.Terminal(recipe.total_steps, stream=stream)
        self.metrics = logs.MetricsFile(workdir / "metrics.jsonl") if processes.first else None
        self.checkpoints = checkpoint.Checkpointer(
            workdir, recipe.checkpoint, self.terminal.say, processes
        )
        self.writers: list[logs.Writer] = []
        self.loader: Any = None  # the batches: BatchLoader or SyntheticLoader
        self.miner: Miner | None = None  # of negatives that the model finds as it trains

    def close(self) -> None:
        self.terminal.close()
        self.profiler.close()
        if self.miner is not None:
            self.miner.close()
        if self.loader is not None:
            self.loader.close()
        for writer in self.writers:
            writer.close()
        if self.metrics is not None:
            self.metrics.close()
        self.checkpoints.close()

    def execute(self) -> int:
        recipe, begins = self.recipe, self.watchdog.begins
        begins("reading the tokenizer")
        self.tokenizer = self.processes.first_then_others(self._tokenizer, "reading the tokenizer")
        begins("reading the data")
        self.loader = self.processes.together(self._loader, "reading the data")
        self._compare_hosts()
        begins("creating the parameters")
        program = make_program(recipe, self.mesh)
        self.graphdef, state = init_state(
            lambda rngs: build_towers(recipe, self.tokenizer, rngs=rngs),
            program.optimizer,
            self.mesh,
            recipe.seed,
            average=program.averages,
            momentum=program.momentum,
        )
        self.batches: Any = self.loader
        if recipe.data.mined.every:
            state = self._mine(state)
        begins("restoring a checkpoint")
        state, start = self._restore(state)
        if self.miner is not None:
            self.miner.resume(state)
        stop = recipe.stop_at or recipe.total_steps
        if start < stop:
            begins("compiling and doing the first step")
            state, step = self._train(state, program, start, stop)
        else:
            step = start
        begins("writing the last checkpoint")
        self.checkpoints.wait()
        if step < recipe.total_steps:
            return self._stopped(step)
        begins("evaluating")
        self._finish(state, trained=start < stop)
        return 0

    @contextlib.contextmanager
    def _read_before(self, *others: type[UserError]) -> Iterator[None]:
        """Data that a run has trained on and that is not there now is a fault of the machine: it
        may come back. Before the first step it is a wrong path, which only a person can put right.
        """
        try:
            yield
        except (DataError, *others) as error:
            if not self.begun:
                raise
            raise StorageError(f"{error} The run was trained on this data before.") from error

    def _loader(self) -> Any:
        part, parts = part_of_batch(mesh_lib.batch_sharding(self.mesh), self.recipe.batch_size)
        if not self.begun:
            check_held_out(self.recipe.data)
        with self._read_before():
            return open_batches(
                self.source,
                self.recipe.data,
                self.tokenizer,
                batch_size=self.recipe.batch_size,
                seed=self.recipe.seed,
                process_index=part,
                process_count=parts,
                error_log=self.workdir / "data_errors.jsonl",
            )

    def _mine(self, state: TrainState) -> TrainState:
        """The state with what mined negatives keep in it; the batches get them."""
        recipe, mesh = self.recipe, self.mesh
        part, parts = part_of_batch(mesh_lib.batch_sharding(mesh), recipe.batch_size)
        self.batches = MinedBatches(self.loader, recipe, self.tokenizer, part=part, parts=parts)
        beside = self.processes.count == 1
        self.miner = Miner(
            recipe,
            self.batches,
            self.graphdef,
            self.tokenizer,
            self.devices,
            mesh=mesh,
            beside=beside,
            say=self.terminal.say,
            # Beside training, the steps have to show by themselves that they go on.
            alive=(lambda: None) if beside else self.watchdog.alive,
        )
        with jax.set_mesh(mesh):
            return self.miner.begin(state)

    def _after(self, step: int, state: TrainState) -> TrainState:
        if self.miner is None:
            return state
        with self.watchdog.paused("mining negatives"):
            return self.miner.after(step, state)

    def _compare_hosts(self) -> None:
        if self.processes.count == 1:
            return
        assert self.loader is not None
        self.processes.compare(
            {
                "version of JAX": jax.__version__,
                "code of the package": code_digest(),
                "configuration": record_lib.recipe_digest(self.recipe),
                "data": str(self.loader.state()["fingerprint"]),
                "tokenizer": str(self.tokenizer.vocabulary_size),
            }
        )

    def _tokenizer(self) -> Tokenizer:
        if self.recipe.init_from is not None and self.processes.first:
            take_tokenizer(pathlib.Path(self.recipe.init_from), self.workdir)
        with self._read_before(ConfigError):  # a folder that is not there has no format
            self.source = open_source(self.recipe.data, "train")
        return load_tokenizer(self.recipe.data, self.source, self.workdir)

    def _restore(self, state: TrainState) -> tuple[TrainState, int]:
        restored = self.checkpoints.restore(checkpoint.abstract(state))
        if self.metrics is not None:
            lost = self.metrics.cut(0 if restored is None else restored.position["metrics"])
            if lost:
                self.terminal.say(
                    f"{self.workdir / 'metrics.jsonl'} is {lost:,} bytes shorter than when the "
                    "checkpoint was saved: numbers of earlier steps are missing there."
                )
        if restored is not None:
            assert self.loader is not None
            self.loader.restore(restored.position["data"])
            state = self._project(restored.state)
            self.terminal.resume(restored.step)
            self.terminal.say(f"Resuming {self.workdir} at step {restored.step}.")
        elif self.recipe.init_from is not None:
            state = warm_start(state, self.recipe, self.workdir, self.terminal.say)
            state = self._project(state)
        start = 0 if restored is None else restored.step
        self.processes.compare({"step to start from": str(start)})
        self.processes.first_alone(lambda: self._open_writers(start), "opening the logs")
        return state, start

    def _open_writers(self, start: int) -> None:
        log = self.recipe.log
        if log.tensorboard:
            self.writers.append(logs.TensorBoard(self.workdir / "tensorboard", resumed_at=start))
        if log.wandb is not None:
            settings = config_lib.to_dict(self.recipe)
            online = logs.WandB(self.workdir, log.wandb, name=self.recipe.name, config=settings)
            self.writers.append(online)
            self.terminal.say(f"Weights & Biases: {online.where()}")

    def _project(self, state: TrainState) -> TrainState:
        limit = scale_limit(self.recipe.loss)
        if limit is None:
            return state
        parameters, changed = project_log_scale(state.parameters, limit)
        if changed:
            self.terminal.say(f"The restored scale was above {limit:g} and has been set to it.")
        average = state.average
        if average is not None:
            average, _ = project_log_scale(average, limit)
        return dataclasses.replace(state, parameters=parameters, average=average)

    def _train(
        self, state: TrainState, program: Program, start: int, stop: int
    ) -> tuple[TrainState, int]:
        recipe = self.recipe
        if self.processes.first:
            for name in (NUMBERS, LISTS):  # what an earlier `evaluate` said of this run
                (self.workdir / name).unlink(missing_ok=True)
        step_fn = program.step(self.graphdef)
        if recipe.checkpoint.best is not None:
            scale = getattr(self._model(state), "scale", None)
            step_fn = check_best(step_fn, recipe, scale, self.devices)
        hooks = loop.Hooks(
            log=self._log,
            log_every=recipe.log.every,
            save=self._save,
            save_every=recipe.checkpoint.every,
            evaluate=self._evaluate_quickly,
            evaluate_every=recipe.eval.every,
            stop_requested=self._stop_requested,
            finished=self.watchdog.finished,
            pause=self.watchdog.paused,
            dispatched=self.profiler,
            after=self._after,
        )
        count = sum(x.size for x in jax.tree.leaves(state.parameters))
        self.terminal.say(
            f"{recipe.name}: {count:,} parameters, {len(self.source):,} training pairs, batch "
            f"{recipe.batch_size}, {recipe.total_steps:,} steps on {self.mesh.size} "
            f"{self.devices[0].platform} device(s)"
            + (
                f" in {self.processes.count} processes, {len(jax.local_devices())} in this one."
                if self.processes.count > 1
                else "."
            )
        )
        warmup = recipe.optimizer.warmup_steps
        if warmup >= recipe.total_steps:
            self.terminal.say(
                f"The warm-up of {warmup} steps is not shorter than the run: the learning rate "
                "does not reach its peak."
            )
        assert self.loader is not None
        with jax.set_mesh(self.mesh):
            try:
                return loop.run(
                    step_fn,
                    state,
                    SameShapes(self.batches, self.processes),
                    mesh_lib.batch_sharding(self.mesh),
                    hooks,
                    start=start,
                    stop=stop,
                    total=recipe.total_steps,
                )
            except loop.NonFiniteLoss as error:
                self.checkpoints.wait()
                good = self.checkpoints.last_good()
                where = (
                    "there is no checkpoint yet" if good is None else f"checkpoint {good} is good"
                )
                raise loop.NonFiniteLoss(
                    f"{error}; {where}. Try a lower config.optimizer.learning_rate or a longer "
                    "config.optimizer.warmup_steps."
                ) from error

    def _stop_requested(self) -> bool:
        self.stopped_by = self.stop_flag.read(self.signals.received or 0)
        return self.stopped_by > 0

    def _log(self, step: int, metrics: dict[str, float]) -> None:
        self._measured(step, metrics)
        self._write(step, metrics | self._data_counts(step))
        self.terminal.step(step, metrics)

    def _data_counts(self, step: int) -> dict[str, float]:
        """Epochs of a mixture's parts; samples that were skipped, if any (by this process)."""
        if not isinstance(self.loader, BatchLoader):
            return {}
        counts = {
            f"data/{name}/{what}": float(number)
            for name, numbers in self.loader.parts(step).items()
            for what, number in numbers.items()
        }
        if skipped := self.loader.skipped(step):
            counts["data/skipped"] = float(skipped)
        return counts

    def _save(self, step: int, state: TrainState, data: dict[str, Any]) -> None:
        offset = 0 if self.metrics is None else self.metrics.offset()  # process 0 writes both
        if "bad" in data:  # each process knows its own part
            found = self.processes.gather(json.dumps(data["bad"]), "counting bad samples")
            data = data | {"bad": dict(collections.ChainMap(*map(json.loads, found)))}
        position = {"data": data, "metrics": offset}
        measured = self.newest if self.newest_step == step else {}
        self.checkpoints.save(step, state, position, measured)

    def _measured(self, step: int, metrics: dict[str, float]) -> None:
        if step != self.newest_step:
            self.newest_step, self.newest = step, {}
        self.newest |= metrics

    def _evaluate_quickly(self, step: int, state: TrainState) -> None:
        results = evaluate(self._model(state), self.recipe, quick=True, devices=self.devices)
        self.terminal.say(f"step {step}  evaluation: {format_line(results)}")
        metrics = evaluation_numbers(results)
        self._measured(step, metrics)
        self._write(step, metrics)

    def _write(self, step: int, metrics: dict[str, float]) -> None:
        if self.metrics is not None:
            self.metrics.write(step, metrics)
        for writer in self.writers:
            writer.write(step, metrics)

    def _model(self, state: TrainState) -> Model:
        parameters = state.parameters if state.average is None else state.average
        return Model(
            self.recipe,
            nnx.merge(self.graphdef, parameters),
            self.tokenizer,
            self.devices,
            progress=self.watchdog.alive,
        )

    def _stopped(self, step: int) -> int:
        number = self.stopped_by
        why, on = "at config.stop_at", "A later config.stop_at, or none, goes on from here."
        if number:
            why, on = f"by {signal.Signals(number).name}", "The same command goes on from here."
        self.terminal.say(
            f"Stopped {why} after step {step} of {self.recipe.total_steps}; checkpoint saved. {on}"
        )
        return 128 + number if number else 0

    def _finish(self, state: TrainState, *, trained: bool) -> None:
        """The final evaluation and the report; a run that was finished before shows its own."""
        self.terminal.close()
        model = self._model(state)
        with contextlib.ExitStack() as stack:
            # The model lies on the devices of all processes: all compute, and one writes.
            target = self.workdir
            if not self.processes.first:
                target = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
                write_recipe(target, self.recipe)
            here = "yes" if not trained and is_evaluated(self.workdir) else ""
            done = self.processes.gather(here, "looking for the evaluation")[0]
            if done:
                results = json.loads(self._evaluation.read_text())
            else:
                self.terminal.say("Evaluating ...")
                results = save_evaluation(target, model, self.recipe, devices=self.devices)
            self.terminal.say(format_table(results))
            self.watchdog.begins("writing the report")
            page = write_report(target, model=model)
            self.terminal.say(f"Report: {page}")
            self.processes.gather("", "writing the report")
