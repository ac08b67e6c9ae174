"""Where the numbers of a run go: ``metrics.jsonl``, TensorBoard, Weights & Biases, the terminal."""

import dataclasses
import importlib
import json
import math
import os
import pathlib
import sys
import uuid
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tensorboardX import SummaryWriter

from contrastive.errors import ConfigError, StorageError, UserError
from contrastive.whole import whole_file


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogConfig:
    """How often numbers are written, and where to."""

    every: int = 10  # steps between lines of metrics.jsonl
    tensorboard: bool = True  # also write TensorBoard events
    wandb: str | None = None  # project of Weights & Biases to write to as well; None: none

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"config.log.every = {self.every} has to be at least 1.")


@runtime_checkable
class Writer(Protocol):
    """Takes the numbers of a step, beside ``metrics.jsonl``."""

    def write(self, step: int, metrics: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class MetricsFile:
    """``metrics.jsonl``: one JSON object a line, cut back to the checkpoint when a run resumes."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  unbuffered: no line is half lost

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Appends a line; it is in the file when this returns.

        Raises:
          StorageError: The disk is full or the file cannot be written.
        """
        values = {
            k: v if not isinstance(v, float) or math.isfinite(v) else None
            for k, v in metrics.items()
        }
        line = (json.dumps({"step": step, **values}) + "\n").encode()
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise StorageError(
                f"cannot write {self._path} ({error.strerror}); the run stops here."
            ) from error

    def offset(self) -> int:
        """Bytes written so far, to be kept in the checkpoint."""
        return self._file.tell()

    def cut(self, offset: int) -> int:
        """Forgets everything after ``offset``: those steps will be done and written again.

        Returns:
          How many bytes before ``offset`` are not there, because somebody changed the file.
        """
        size = os.path.getsize(self._path)
        if size > offset:
            self._file.truncate(offset)
        self._file.seek(0, os.SEEK_END)
        return max(offset - size, 0)

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """The same numbers as TensorBoard events; steps after a resume replace those before."""

    def __init__(self, folder: pathlib.Path, *, resumed_at: int) -> None:
        self._writer = SummaryWriter(str(folder), purge_step=resumed_at + 1 if resumed_at else None)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def import_wandb() -> Any:
    """The package ``wandb``.

    Raises:
      UserError: It is not installed.
    """
    try:
        wandb = importlib.import_module("wandb")
        wandb.init  # noqa: B018  a folder of that name would be imported too
    except (ImportError, AttributeError) as error:
        raise UserError(
            "config.log.wandb needs the package wandb: pip install -e '.[wandb]'; or set "
            "config.log.wandb=none."
        ) from error
    return wandb


class WandB:
    """The same numbers as a run of Weights & Biases: a row a step, sent once.

    The run's id and the last step that was sent are kept in ``wandb.json`` of the workdir. A run
    that resumes goes on under its id; W&B cannot take rows back, so steps that are done again after
    the checkpoint and are there already are not sent again: they have the same numbers. A row is
    sent when the next step comes, since an evaluation may still add to it.

    What is not said here is W&B's own: ``WANDB_MODE=offline`` writes to ``WORKDIR/wandb``, for
    ``wandb sync``; ``WANDB_ENTITY``, ``WANDB_API_KEY`` and so on.

    Args:
      workdir: The run's folder.
      project: W&B's project.
      name: How W&B calls the run.
      config: The settings, to be shown there.

    Raises:
      UserError: ``wandb`` is not installed, or W&B refuses the run.
    """

    def __init__(
        self, workdir: pathlib.Path, project: str, *, name: str, config: Mapping[str, Any]
    ) -> None:
        wandb = import_wandb()
        self._file = workdir / "wandb.json"
        self._known = {"id": uuid.uuid4().hex[:12], "step": 0}
        if self._file.exists():
            try:
                known = json.loads(self._file.read_text())
                self._known = {"id": str(known["id"]), "step": int(known["step"])}
            except (ValueError, TypeError, KeyError) as error:
                raise UserError(
                    f"{self._file} is damaged; put the id of the W&B run and its last step there, "
                    "or delete it to go on under a new W&B run."
                ) from error
        self._step, self._row = 0, {}
        try:
            self._run = wandb.init(
                project=project,
                name=name,
                id=self._known["id"],
                config=dict(config),
                dir=workdir,
                resume=None if os.environ.get("WANDB_MODE") == "offline" else "allow",
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.errors.Error as error:
            raise UserError(
                f"Weights & Biases does not take the run ({error}). WANDB_MODE=offline writes to "
                "the workdir, config.log.wandb=none does without."
            ) from error
        self._remember()

    def where(self) -> str:
        """The page of the run, or its folder."""
        return self._run.url or str(pathlib.Path(self._run.dir).parent)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Adds to the row of a step."""
        if step != self._step:
            self._send()
        if step > self._known["step"]:
            self._step = step
            self._row |= {k: v for k, v in metrics.items() if isinstance(v, int | float)}

    def _send(self) -> None:
        if self._row:
            self._run.log(self._row, step=self._step, commit=True)
            self._known["step"], self._row = self._step, {}
            self._remember()

    def _remember(self) -> None:
        with whole_file(self._file) as path:
            path.write_text(json.dumps(self._known) + "\n")

    def close(self) -> None:
        self._send()
        self._run.finish()


class Terminal:
    """A live bar on a terminal, a plain line now and then elsewhere."""

    def __init__(self, total_steps: int, *, stream: Any = sys.stdout) -> None:
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._total = total_steps
        self._last_line = 0
        self._bar: Progress | None = None
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("[bold]training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("training", total=total_steps, note="")
            self._bar.start()

    def say(self, text: str) -> None:
        """A sentence that stays on the screen."""
        self._console.print(text, markup=False)

    def resume(self, step: int) -> None:
        """The run goes on after ``step``."""
        self._last_line = step
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Shows where the run is."""
        scale = f"scale {metrics['scale']:.1f}  " if "scale" in metrics else ""
        note = f"loss {metrics['loss']:.3f}  {scale}{metrics['examples_per_second']:.0f} pairs/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, note=note)
        elif step - self._last_line >= max(self._total // 20, 1) or step == self._total:
            self._last_line = step
            self.say(f"step {step}/{self._total}  {note}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
