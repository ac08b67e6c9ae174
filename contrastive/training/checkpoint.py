"""Checkpoints with Orbax: state and data position together, written in the background.

A step folder is believed only after it has been read: the newest one that restores is taken, the
ones that do not are named with the reason. Nothing is ever restarted from zero in silence.
"""

import dataclasses
import json
import logging
import pathlib
import re
import shutil
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from contrastive.errors import CheckpointError, ConfigError, UnwrittenCheckpoint, first_line
from contrastive.processes import Processes

Notify = Callable[[str], None]
EVALUATED = "evaluation/"
"""Numbers that begin so are those of an evaluation; the others are those of a step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are written and how many stay."""

    every: int = 200  # steps between checkpoints; 0 = only at the end and when told to stop
    keep: int = 2  # the newest so many are kept
    keep_every: int = 0  # those of every so many steps are kept for good; 0: none
    # Also keep the best by this number: of a training step ("loss") or of a quick evaluation
    # ("evaluation/SET/TASK/METRIC")
    best: str | None = None
    best_mode: Literal["max", "min"] = "max"  # which values of it are better
    keep_best: int = 1  # how many of the best are kept

    def __post_init__(self) -> None:
        if self.every < 0 or self.keep < 1 or self.keep_every < 0 or self.keep_best < 1:
            raise ConfigError(
                "config.checkpoint: every and keep_every have to be >= 0, keep and keep_best >= 1."
            )
        if self.keep_every and (not self.every or self.keep_every % self.every):
            raise ConfigError(
                f"config.checkpoint.keep_every = {self.keep_every} has to be a multiple of "
                f"config.checkpoint.every = {self.every}: no others are written."
            )
        if self.best is None and (self.best_mode != "max" or self.keep_best != 1):
            raise ConfigError(
                "config.checkpoint.best_mode and keep_best say which checkpoints are the best by "
                "config.checkpoint.best, which is not set."
            )

    def preservation(self) -> Any:
        """Which checkpoints stay, as Orbax wants it."""
        kept: list[Any] = [policies.LatestN(self.keep)]
        if self.keep_every:
            kept.append(policies.EveryNSteps(self.keep_every))
        if self.best is not None:
            name = self.best
            kept.append(
                policies.BestN(
                    get_metric_fn=lambda metrics: metrics[name],
                    reverse=self.best_mode == "min",
                    n=self.keep_best,
                    keep_checkpoints_without_metrics=False,
                )
            )
        return policies.AnyPreservationPolicy(kept)


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a checkpoint holds."""

    step: int
    state: Any  # the training state, on the mesh of the target
    position: dict[str, Any]  # of the data loader and of metrics.jsonl; JSON


def _quiet() -> None:
    logging.getLogger("absl").setLevel(logging.ERROR)


class Checkpointer:
    """Writes and reads ``workdir/checkpoints``.

    Args:
      workdir: The run's folder.
      config: Cadence and retention.
      notify: Receives a sentence about every checkpoint that had to be skipped.
      processes: Those that train together; all call every method.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        config: CheckpointConfig,
        notify: Notify,
        processes: Processes | None = None,
    ) -> None:
        _quiet()
        self._processes = processes or Processes()
        self._folder = workdir.resolve() / "checkpoints"
        self._config = config
        self._notify = notify
        self._manager: ocp.CheckpointManager | None = None

    def _open(self) -> ocp.CheckpointManager:
        if self._manager is None:
            options = ocp.CheckpointManagerOptions(
                preservation_policy=self._config.preservation(),
                create=True,
                cleanup_tmp_directories=True,
            )
            self._manager = ocp.CheckpointManager(self._folder, options=options)
        return self._manager

    def restore(self, target: Any) -> Restored | None:
        """The newest checkpoint that can be read, or None where there is none at all.

        Args:
          target: The state as ``jax.ShapeDtypeStruct`` leaves with shardings.

        Raises:
          CheckpointError: There are checkpoints and none can be read.
        """
        steps = self._listed()
        skipped = []
        for step in reversed(steps):
            restored, reason = None, ""
            try:
                restored = _read(self._folder / str(step), target)
            except Exception as error:  # any damage: the reason is reported and the next is tried
                reason = first_line(error) or "unknown"
            reasons = self._processes.gather(reason, f"reading checkpoint {step}")
            reason = next((r for r in reasons if r), "")
            if restored is None or reason:
                self._notify(f"Skipping checkpoint {step}: it is damaged ({reason}).")
                skipped.append(step)
                continue
            self._processes.first_alone(
                lambda: self._set_aside(skipped), "setting damaged checkpoints aside"
            )
            return Restored(step, restored["state"], restored["position"])
        if steps:
            raise CheckpointError(
                f"none of the checkpoints {steps} in {self._folder} can be read; nothing was "
                "changed. Move the folder away to start from step 0."
            )
        return None

    def _listed(self) -> list[int]:
        """The steps that process 0 sees."""
        mine = json.dumps(list_steps(self._folder) if self._processes.first else [])
        return json.loads(self._processes.gather(mine, "listing the checkpoints")[0])

    def _set_aside(self, steps: list[int]) -> None:
        """Out of the way, so that a step can be written again."""
        for step in steps:
            _set_aside(self._folder / str(step))

    def save(
        self,
        step: int,
        state: Any,
        position: dict[str, Any],
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Starts writing in the background; an error of the write before surfaces here.

        Args:
          step: Names the checkpoint.
          state: What is saved, cut over the devices as it is.
          position: Of the data and of the logs; JSON.
          metrics: What was measured at this step; without ``config.best`` among it, the checkpoint
            is not one of the best.

        Raises:
          UnwrittenCheckpoint: This or the write before failed.
        """
        manager = self._open()
        judged = {
            name: value for name, value in (metrics or {}).items() if name == self._config.best
        }
        try:
            manager.check_for_errors()
            manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state), position=ocp.args.JsonSave(position)
                ),
                metrics=judged or None,
                force=True,
            )
        except Exception as error:
            raise UnwrittenCheckpoint(
                f"writing checkpoint {step} to {self._folder} failed ({first_line(error)})."
            ) from error

    def wait(self) -> None:
        """Blocks until everything is on disk.

        Raises:
          UnwrittenCheckpoint: A background write failed.
        """
        if self._manager is None:
            return
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:
            raise UnwrittenCheckpoint(
                f"writing a checkpoint to {self._folder} failed ({first_line(error)}); the last "
                f"good one is {self.last_good()}."
            ) from error

    def last_good(self) -> int | None:
        """The newest step that was written completely."""
        steps = list_steps(self._folder)
        return steps[-1] if steps else None

    def close(self) -> None:
        """Ends the background threads. A write that fails now does so beside an error that is being
        reported already: it is only mentioned."""
        if self._manager is not None:
            manager, self._manager = self._manager, None
            try:
                manager.close()
            except Exception as error:
                self._notify(f"The last checkpoint was not written ({first_line(error)}).")


def list_steps(folder: pathlib.Path) -> list[int]:
    """Step folders in ascending order; unfinished temporary folders are not among them."""
    if not folder.is_dir():
        return []
    return sorted(int(entry.name) for entry in folder.iterdir() if re.fullmatch(r"\d+", entry.name))


def read_parameters(
    workdir: pathlib.Path, target: Any, *, average: bool = False, notify: Notify = print
) -> Any:
    """Only the parameters of the newest readable checkpoint, for evaluation and use.

    Args:
      workdir: A run's folder.
      target: Parameters as ``jax.ShapeDtypeStruct`` leaves with shardings.
      average: Read their moving average, which the run has to have kept.
      notify: Receives a sentence about every checkpoint that had to be skipped.

    Raises:
      CheckpointError: No checkpoint can be read.
    """
    _quiet()
    folder = pathlib.Path(workdir).resolve() / "checkpoints"
    name = "average" if average else "parameters"
    for step in reversed(list_steps(folder)):
        try:
            return _read_partial(folder / str(step), {name: target})[name]
        except Exception as error:
            notify(f"Skipping checkpoint {step}: it is damaged ({first_line(error)}).")
    raise CheckpointError(f"there is no readable checkpoint in {folder}.")


def _read(path: pathlib.Path, target: Any) -> dict[str, Any]:
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
        restored = reader.restore(
            path,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(target), position=ocp.args.JsonRestore()
            ),
        )
    return {"state": restored["state"], "position": restored["position"]}


def _read_partial(path: pathlib.Path, target: Any) -> Any:
    restore_args = ocp.checkpoint_utils.construct_restore_args(target)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        return reader.restore(
            path / "state",
            args=ocp.args.PyTreeRestore(target, restore_args=restore_args, partial_restore=True),
        )


def _set_aside(path: pathlib.Path) -> None:
    target = path.with_name(f"damaged-{path.name}")
    if target.exists():
        shutil.rmtree(target)
    path.rename(target)


def abstract(tree: Any) -> Any:
    """Shapes, dtypes and shardings of the arrays of a tree, as a target for restoring."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)
