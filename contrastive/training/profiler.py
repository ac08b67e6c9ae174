"""A trace of some steps, to be opened in TensorBoard or Perfetto."""

import pathlib
from typing import Any

import jax

from contrastive.processes import Processes


class Profiler:
    """Starts and stops JAX's profiler around the steps that ``train.profile`` names.

    Called with the number of every step once it is on its way, and with the number of the step
    before the first. The last step is waited for, so that its work on the device is in the trace.
    Python's calls are not traced: that alone would make the host the slowest part. The loop's own
    waiting is marked: ``wait for input``, ``wait for devices``.

    Args:
      workdir: The trace goes to its folder ``profile``.
      steps: The steps to trace; None: none.
      processes: Those that train together; process 0 traces itself.
    """

    def __init__(self, workdir: pathlib.Path, steps: range | None, processes: Processes) -> None:
        self._folder = workdir / "profile"
        self._steps = steps if processes.first else None
        self._running = False

    def __call__(self, step: int, metrics: Any) -> None:
        if self._steps is None:
            return
        if self._running and step >= self._steps[-1]:
            jax.block_until_ready(metrics)
            self.close()
            self._steps = None
        elif not self._running and step + 1 in self._steps:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
            jax.profiler.start_trace(str(self._folder), profiler_options=options)
            self._running = True

    def close(self) -> None:
        """Writes what has been traced, if the run ended before the last step to trace."""
        if self._running:
            jax.profiler.stop_trace()
            self._running = False
