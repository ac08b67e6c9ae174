"""Where the numbers of a run go: ``metrics.jsonl``, TensorBoard and the terminal."""

import dataclasses
import json
import math
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tensorboardX import SummaryWriter

from contrastive.errors import ConfigError, UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogConfig:
    """How often numbers are written, and where to."""

    every: int = 10  # steps between lines of metrics.jsonl
    tensorboard: bool = True  # also write TensorBoard events

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"config.log.every = {self.every} has to be at least 1.")


class MetricsFile:
    """``metrics.jsonl``: one JSON object a line, cut back to the checkpoint when a run resumes."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  unbuffered: no line is half lost

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Appends a line; it is in the file when this returns.

        Raises:
          UserError: The disk is full or the file cannot be written.
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
            raise UserError(
                f"cannot write {self._path} ({error.strerror}); the run stops here."
            ) from error

    def offset(self) -> int:
        """Bytes written so far, to be kept in the checkpoint."""
        return self._file.tell()

    def cut(self, offset: int) -> None:
        """Forgets everything after ``offset``: those steps will be done and written again."""
        if os.path.getsize(self._path) > offset:
            self._file.truncate(offset)
        self._file.seek(0, os.SEEK_END)

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
        note = (
            f"loss {metrics['loss']:.3f}  scale {metrics['scale']:.1f}  "
            f"{metrics['examples_per_second']:.0f} pairs/s"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=step, note=note)
        elif step - self._last_line >= max(self._total // 20, 1) or step == self._total:
            self._last_line = step
            self.say(f"step {step}/{self._total}  {note}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
