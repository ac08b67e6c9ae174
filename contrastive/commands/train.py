"""``contrastive train``: the main job. The same command again resumes."""

import dataclasses
import json
import pathlib
import signal
import sys
from typing import Any

import jax
from flax import nnx

from contrastive import mesh as mesh_lib
from contrastive.assembly import Program, make_program
from contrastive.commands import workdir as workdir_lib
from contrastive.commands.evaluate import save_evaluation
from contrastive.data.pipeline import open_batches, open_source
from contrastive.data.tokenizer import Tokenizer, load_tokenizer
from contrastive.evaluation.suite import evaluate, format_table
from contrastive.inference import Model, build_towers
from contrastive.objectives import scale_limit
from contrastive.recipe import Recipe, check_resumable, read_recipe, write_recipe
from contrastive.reporting import write_report
from contrastive.temperature import project_log_scale
from contrastive.training import checkpoint, logs, loop
from contrastive.training.state import TrainState, init_state


def train(
    recipe: Recipe,
    workdir: pathlib.Path,
    *,
    new: bool,
    devices: mesh_lib.Devices,
    stream: Any = sys.stdout,
) -> int:
    """Trains, evaluates and writes the report.

    Args:
      recipe: The resolved settings.
      workdir: The run's folder; a run in it is resumed.
      new: Set an earlier run aside and start at step 0.
      devices: What the mesh is made of.
      stream: Where the terminal output goes.

    Returns:
      The exit status: 0 when done or at ``stop_at``; 128 + the signal's number when a signal
      ended the run, after a checkpoint.

    Raises:
      UserError: With one sentence that says what to do.
    """
    mesh = mesh_lib.make_mesh(recipe.mesh, devices)
    mesh_lib.check_batch_divides(recipe.batch_size, mesh)
    if new and (old := workdir_lib.set_aside(workdir)):
        print(f"The earlier run is kept in {old}.", file=stream)
    with workdir_lib.opened(workdir), _Signals() as signals:
        if (workdir / "config.json").exists():
            check_resumable(read_recipe(workdir), recipe, workdir)
        write_recipe(workdir, recipe)
        run = _Run(recipe, workdir, mesh, devices, stream, signals)
        try:
            return run.execute()
        finally:
            run.close()


class _Signals:
    """Remembers SIGINT and SIGTERM, so that the loop can stop between steps; a second one acts at
    once."""

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> "_Signals":
        self._old = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: Any) -> None:
        self.received = number
        signal.signal(number, self._old[signal.Signals(number)])


class _Run:
    """The parts of one run and the callables that the loop needs from them."""

    def __init__(
        self,
        recipe: Recipe,
        workdir: pathlib.Path,
        mesh: jax.sharding.Mesh,
        devices: mesh_lib.Devices,
        stream: Any,
        signals: _Signals,
    ) -> None:
        self.recipe, self.workdir, self.mesh, self.devices = recipe, workdir, mesh, devices
        self.signals = signals
        self._evaluation = workdir / "evaluation.json"
        self.terminal = logs.Terminal(recipe.total_steps, stream=stream)
        self.metrics = logs.MetricsFile(workdir / "metrics.jsonl")
        self.checkpoints = checkpoint.Checkpointer(workdir, recipe.checkpoint, self.terminal.say)
        self.tensorboard: logs.TensorBoard | None = None
        self.loader: Any = None  # the batches: BatchLoader or SyntheticLoader

    def close(self) -> None:
        self.terminal.close()
        if self.loader is not None:
            self.loader.close()
        if self.tensorboard is not None:
            self.tensorboard.close()
        self.metrics.close()
        self.checkpoints.close()

    def execute(self) -> int:
        recipe = self.recipe
        self.tokenizer = self._tokenizer()
        self.loader = open_batches(
            self.source,
            recipe.data,
            self.tokenizer,
            batch_size=recipe.batch_size,
            seed=recipe.seed,
            error_log=self.workdir / "data_errors.jsonl",
        )
        program = make_program(recipe, self.mesh)
        self.graphdef, state = init_state(
            lambda rngs: build_towers(recipe, self.tokenizer, rngs=rngs),
            program.optimizer,
            self.mesh,
            recipe.seed,
            average=program.averages,
        )
        state, start = self._restore(state)
        stop = recipe.stop_at or recipe.total_steps
        if start < stop:
            state, step = self._train(state, program, start, stop)
        else:
            step = start
        self.checkpoints.wait()
        if step < recipe.total_steps:
            return self._stopped(step)
        self._finish(state)
        return 0

    def _tokenizer(self) -> Tokenizer:
        self.source = open_source(self.recipe.data, "train")
        return load_tokenizer(self.recipe.data, self.source, self.workdir)

    def _restore(self, state: TrainState) -> tuple[TrainState, int]:
        restored = self.checkpoints.restore(checkpoint.abstract(state))
        if restored is None:
            self.metrics.cut(0)
        else:
            assert self.loader is not None
            self.loader.restore(restored.position["data"])
            self.metrics.cut(restored.position["metrics"])
            state = self._project(restored.state)
            self.terminal.resume(restored.step)
            self.terminal.say(f"Resuming {self.workdir} at step {restored.step}.")
        start = 0 if restored is None else restored.step
        if self.recipe.log.tensorboard:
            self.tensorboard = logs.TensorBoard(self.workdir / "tensorboard", resumed_at=start)
        return state, start

    def _project(self, state: TrainState) -> TrainState:
        limit = scale_limit(self.recipe.loss)
        if limit is None:
            return state
        parameters, changed = project_log_scale(state.parameters, limit)
        if changed:
            self.terminal.say(f"The restored scale was above {limit:g} and has been set to it.")
        return dataclasses.replace(state, parameters=parameters)

    def _train(
        self, state: TrainState, program: Program, start: int, stop: int
    ) -> tuple[TrainState, int]:
        recipe = self.recipe
        self._evaluation.unlink(missing_ok=True)  # what an earlier `evaluate` said of this run
        step_fn = program.step(self.graphdef)
        hooks = loop.Hooks(
            log=self._log,
            log_every=recipe.log.every,
            save=self._save,
            save_every=recipe.checkpoint.every,
            evaluate=self._evaluate_quickly,
            evaluate_every=recipe.eval.every,
            stop_requested=lambda: self.signals.received is not None,
        )
        count = sum(x.size for x in jax.tree.leaves(state.parameters))
        self.terminal.say(
            f"{recipe.name}: {count:,} parameters, {len(self.source):,} training pairs, batch "
            f"{recipe.batch_size}, {recipe.total_steps:,} steps on {self.mesh.size} "
            f"{self.devices[0].platform} device(s)."
        )
        assert self.loader is not None
        with jax.set_mesh(self.mesh):
            try:
                return loop.run(
                    step_fn,
                    state,
                    self.loader,
                    mesh_lib.batch_sharding(self.mesh),
                    program.schedule,
                    hooks,
                    start=start,
                    stop=stop,
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

    def _log(self, step: int, metrics: dict[str, float]) -> None:
        self.metrics.write(step, metrics)
        if self.tensorboard is not None:
            self.tensorboard.write(step, metrics)
        self.terminal.step(step, metrics)

    def _save(self, step: int, state: TrainState, data: dict[str, Any]) -> None:
        self.checkpoints.save(step, state, {"data": data, "metrics": self.metrics.offset()})

    def _evaluate_quickly(self, step: int, state: TrainState) -> None:
        results = evaluate(self._model(state), self.recipe, quick=True)
        metrics = {f"evaluation/{name}": value for name, value in results.items()}
        self.metrics.write(step, metrics)
        if self.tensorboard is not None:
            self.tensorboard.write(step, metrics)

    def _model(self, state: TrainState) -> Model:
        parameters = state.parameters if state.average is None else state.average
        return Model(
            self.recipe, nnx.merge(self.graphdef, parameters), self.tokenizer, self.devices
        )

    def _stopped(self, step: int) -> int:
        number = self.signals.received
        why = f"by {signal.Signals(number).name}" if number else "at config.stop_at"
        self.terminal.say(
            f"Stopped {why} after step {step} of {self.recipe.total_steps}; checkpoint saved. "
            "The same command goes on from here."
        )
        return 128 + number if number else 0

    def _finish(self, state: TrainState) -> None:
        self.terminal.close()
        model = self._model(state)
        if self._evaluation.exists():
            results = json.loads(self._evaluation.read_text())
        else:
            self.terminal.say("Evaluating ...")
            results = save_evaluation(self.workdir, model, self.recipe)
        self.terminal.say(format_table(results))
        page = write_report(self.workdir, model=model)
        self.terminal.say(f"Report: {page}")
