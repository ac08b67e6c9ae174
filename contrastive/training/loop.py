"""The train loop: batches in, updates, numbers out. Evaluation, checkpoints and logs are callables
that it calls; what it adds is order: nothing is saved before it is known to be finite."""

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import NamedSharding

from contrastive.errors import UserError
from contrastive.training.state import TrainState
from contrastive.training.step import TrainStep

TIMES = ("examples_per_second", "input_wait_share", "host_share")
"""Numbers of a step that the loop adds to the step's own."""
HOST_FIELDS = ("example",)  # what of a batch does not go to the devices


@runtime_checkable
class Batches(Protocol):
    """The loader: host batches in order, and its position among them."""

    def __next__(self) -> dict[str, np.ndarray]: ...

    def state(self) -> dict[str, Any]: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hooks:
    """What the loop calls. ``every`` = 0 means only at the end."""

    log: Callable[[int, dict[str, float]], None]
    log_every: int
    save: Callable[[int, TrainState, dict[str, Any]], None]
    save_every: int
    evaluate: Callable[[int, TrainState], None]
    evaluate_every: int
    stop_requested: Callable[[], bool]
    finished: Callable[[int], None] = lambda step: None  # the numbers of a step are on the host
    # Around what is not a step, with what it is in words
    pause: Callable[[str], AbstractContextManager[Any]] = nullcontext
    # Called with the number of each step once it is on its way, and with ``start`` before the first
    dispatched: Callable[[int, Any], None] = lambda step, metrics: None
    # The state that goes on after a step, before the next batch is taken
    after: Callable[[int, TrainState], TrainState] = lambda step, state: state


class NonFiniteLoss(UserError):
    """The loss or the gradient became NaN or infinite."""

    status = 3


def run(
    step_fn: TrainStep,
    state: TrainState,
    batches: Batches,
    sharding: NamedSharding,
    hooks: Hooks,
    *,
    start: int,
    stop: int,
    total: int,
) -> tuple[TrainState, int]:
    """Trains from step ``start`` to step ``stop`` or until a stop is requested, and saves.

    At step ``total``, the end of the run, the full evaluation follows, so there is no quick one.

    The step is dispatched asynchronously; while it runs the next batch is fetched, and the numbers
    of the step before come to the host. Nothing else may be asked of the devices in between: it
    would wait behind the step that runs, and the step after it would be late.

    Returns:
      The state and the step that it has reached.

    Raises:
      NonFiniteLoss: Names the step. The last checkpoint is from before it.
    """
    meter = _Meter(hooks, total)
    step = start
    position = batches.state()
    batch = to_device(meter.waiting(batches), sharding) if step < stop else None
    hooks.dispatched(step, None)
    while step < stop:
        assert batch is not None
        position = batches.state()
        size = batch["id"].shape[0]
        with jax.profiler.StepTraceAnnotation("train", step_num=step + 1):
            state, metrics = step_fn(state, batch)
        step += 1
        hooks.dispatched(step, metrics)
        state = hooks.after(step, state)
        last = step == stop or hooks.stop_requested()
        batch = None if last else to_device(meter.waiting(batches), sharding)
        meter.add(step, size, metrics)
        due = {
            "save": last or _due(step, hooks.save_every),
            "evaluate": _due(step, hooks.evaluate_every) and step != total,
        }
        if any(due.values()):
            meter.flush()
        if due["evaluate"]:
            with meter.paused("evaluating"):
                hooks.evaluate(step, state)
        if due["save"]:
            with meter.paused("saving"):
                hooks.save(step, state, position)
        if last:
            break
    return state, step


def to_device(batch: dict[str, np.ndarray], sharding: NamedSharding) -> dict[str, jax.Array]:
    """This process's rows become its part of the global batch, cut over the mesh."""
    return {
        name: jax.make_array_from_process_local_data(sharding, rows)
        for name, rows in batch.items()
        if name not in HOST_FIELDS
    }


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


class _Meter:
    """Brings metrics to the host one step late, checks that they are finite, measures time."""

    def __init__(self, hooks: Hooks, total: int) -> None:
        self._hooks, self._total = hooks, total
        self._pending: collections.deque[tuple[int, int, dict[str, jax.Array]]] = (
            collections.deque()
        )
        self._since = time.perf_counter()
        self._waited, self._blocked = 0.0, 0.0  # seconds for the next batch, and for the devices
        self._examples = 0

    def waiting(self, batches: Iterator | Batches) -> dict[str, np.ndarray]:
        begin = time.perf_counter()
        with jax.profiler.TraceAnnotation("wait for input"):
            batch = next(batches)
        self._waited += time.perf_counter() - begin
        return batch

    def add(self, step: int, size: int, metrics: dict[str, jax.Array]) -> None:
        self._pending.append((step, size, metrics))
        while len(self._pending) > 1:
            self._report(*self._pending.popleft())

    def flush(self) -> None:
        while self._pending:
            self._report(*self._pending.popleft())

    def paused(self, what: str) -> Any:
        return _Pause(self, self._hooks.pause(what))

    def shift(self, seconds: float) -> None:
        self._since += seconds

    def _report(self, step: int, size: int, metrics: dict[str, jax.Array]) -> None:
        begin = time.perf_counter()
        with jax.profiler.TraceAnnotation("wait for devices"):
            host = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self._blocked += time.perf_counter() - begin
        self._examples += size
        for name in ("loss", "gradient_norm"):
            if not math.isfinite(host[name]):
                raise NonFiniteLoss(f"the {name.replace('_', ' ')} is {host[name]} at step {step}")
        self._hooks.finished(step)
        if step % self._hooks.log_every and step != self._total:
            return
        now = time.perf_counter()
        elapsed = max(now - self._since, 1e-9)
        waited, blocked = self._waited / elapsed, self._blocked / elapsed
        times = self._examples / elapsed, waited, 1.0 - (waited + blocked)
        host |= zip(TIMES, times, strict=True)
        self._since, self._waited, self._blocked, self._examples = now, 0.0, 0.0, 0
        self._hooks.log(step, host)


class _Pause:
    """Time inside does not count as training time."""

    def __init__(self, meter: _Meter, around: AbstractContextManager[Any]) -> None:
        self._meter, self._around = meter, around

    def __enter__(self) -> None:
        self._begin = time.perf_counter()
        self._around.__enter__()

    def __exit__(self, *_: object) -> None:
        self._around.__exit__(None, None, None)
        self._meter.shift(time.perf_counter() - self._begin)
