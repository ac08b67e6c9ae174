"""A momentum encoder and its queue: MoCo (He et al. 2020, https://arxiv.org/abs/1911.05722; v2:
Chen et al. 2020, https://arxiv.org/abs/2003.04297; v3: Chen et al. 2021,
https://arxiv.org/abs/2104.02057).

Keys come from towers that follow the model's, ``k ← m·k + (1 − m)·q`` before each step. They are
computed before the step is differentiated and enter it as data, so no gradient can reach them.

The queue is a part of the training state: ``[batch, slots, dim]``, cut over devices like a batch.
Step t writes its keys into slot ``t mod slots``: every device writes its own, nothing moves, and
there is no position to keep. Slots not yet written have weight 0.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, UInt32

from contrastive.errors import ConfigError
from contrastive.mesh import batch_sharding
from contrastive.objectives.views import Batch, encode_view
from contrastive.towers import Pairs, TwoTower
from contrastive.towers.sharding import rows_like


@dataclasses.dataclass(frozen=True, kw_only=True)
class MomentumConfig:
    """Where the keys come from."""

    # How much of itself the momentum encoder keeps at each step, such as .999 (MoCo), .99 (v3) or
    # less for short runs; None: there is none, and both views come from the model
    decay: float | None = None
    schedule: Literal["constant", "cosine"] = "constant"  # cosine: from decay to 1 at total_steps
    queue: int = 0  # keys of earlier batches that are negatives; 0: those of this batch are
    symmetric: bool = False  # v3: each view is the query once and the key once

    def __post_init__(self) -> None:
        if not self.on:
            if any(getattr(self, f.name) != f.default for f in dataclasses.fields(self)):
                raise ConfigError(
                    "config.momentum has settings, but config.momentum.decay is None."
                )
            return
        assert self.decay is not None
        if not 0 <= self.decay < 1:
            raise ConfigError(
                f"config.momentum.decay = {self.decay} has to be at least 0 and below 1, or None."
            )
        if self.queue < 0:
            raise ConfigError(f"config.momentum.queue = {self.queue} cannot be negative.")
        if self.queue and self.symmetric:
            raise ConfigError(
                "config.momentum.symmetric = True takes its negatives from the batch; "
                f"config.momentum.queue = {self.queue} has to be 0."
            )

    @property
    def on(self) -> bool:
        """Whether there is a momentum encoder."""
        return self.decay is not None

    def check(self, *, loss: str, batch_size: int, negatives: int, accumulate: int) -> None:
        """Raises :class:`ConfigError` where the rest of a recipe does not go with this."""
        if not self.on:
            return
        if loss != "info_nce":
            raise ConfigError(
                "config.momentum compares queries with keys: config.loss.name has to be "
                f"'info_nce', not {loss!r}."
            )
        if self.queue % batch_size:
            low = self.queue // batch_size * batch_size
            raise ConfigError(
                f"config.momentum.queue = {self.queue} has to be a multiple of config.batch_size = "
                f"{batch_size}, such as {low or batch_size}."
            )
        if negatives:
            raise ConfigError(
                f"config.data.negatives = {negatives} have no effect with config.momentum, whose "
                "negatives are keys of other pairs."
            )
        if accumulate > 1:
            raise ConfigError(
                f"config.optimizer.accumulate = {accumulate} does not go with config.momentum, "
                "which follows every step; config.train.microbatches saves memory too."
            )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Queue:
    """Keys of earlier batches.

    Attributes:
      rows: ``[batch, slots, dim]`` float32, unit rows.
      ids: ``[batch, slots, 2]`` uint32, their content ids as 64-bit words.
      filled: ``[batch, slots]`` float32, 0 where nothing was written yet, or by a bad sample.
    """

    rows: Any
    ids: Any
    filled: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """What is kept from step to step.

    Attributes:
      parameters: Of the momentum encoder, cut like those that it follows.
      queue: None where negatives come from the batch.
    """

    parameters: Any
    queue: Any  # a Queue


class Seen(NamedTuple):
    """What the momentum encoder made of a batch."""

    second: Float[Array, "batch dim"]  # keys of the second view
    first: Float[Array, "batch dim"] | None  # keys of the first; symmetric only
    ids: UInt32[Array, "batch 2"]  # content ids of the batch as words
    queue: Queue | None  # flat: [m, ...]


_SECOND, _FIRST, _IDS = "momentum/second", "momentum/first", "momentum/ids"
_QUEUE = "momentum/queue/"


def seen(batch: Batch) -> Seen:
    """What :meth:`Momentum.keys` added to a batch."""
    queue = None
    if f"{_QUEUE}rows" in batch:
        queue = Queue(*(batch[_QUEUE + field.name] for field in dataclasses.fields(Queue)))
    return Seen(batch[_SECOND], batch.get(_FIRST), batch[_IDS], queue)


@dataclasses.dataclass(frozen=True)
class Momentum:
    """The parts of a step that have to do with the momentum encoder.

    Attributes:
      config: Its settings, switched on.
      pairs: The kind of pairs.
      dim: Length of the rows that are compared.
      batch_size, total_steps: Of the run.
      microbatches: Chunks that the momentum encoder runs in.
    """

    config: MomentumConfig
    pairs: Pairs
    dim: int
    batch_size: int
    total_steps: int
    microbatches: int = 1

    def start(self, parameters: Any, mesh: Mesh) -> Memory:
        """A copy of the parameters, and an empty queue; to be called under the mesh."""
        copy, slots = jax.tree.map(jnp.copy, parameters), self.config.queue // self.batch_size
        if not slots:
            return Memory(copy, None)
        lead, where = (self.batch_size, slots), batch_sharding(mesh)
        queue = Queue(
            jnp.zeros((*lead, self.dim), jnp.float32, out_sharding=where),
            jnp.full((*lead, 2), jnp.uint32(0xFFFFFFFF), out_sharding=where),
            jnp.zeros(lead, jnp.float32, out_sharding=where),
        )
        return Memory(copy, queue)

    def decay(self, step: Array) -> Float[Array, ""]:
        """How much the momentum encoder keeps of itself at a step; cosine:
        ``1 − (1 − decay) · (1 + cos(π · step / total_steps)) / 2``."""
        assert self.config.decay is not None
        decay = jnp.float32(self.config.decay)
        if self.config.schedule == "constant":
            return decay
        share = jnp.minimum(step.astype(jnp.float32) / self.total_steps, 1.0)
        return 1.0 - (1.0 - decay) * (1.0 + jnp.cos(jnp.pi * share)) / 2.0

    def follow(self, memory: Memory, parameters: Any, step: Array) -> Memory:
        """One step of the momentum encoder towards the model."""
        m = self.decay(step)
        moved = jax.tree.map(lambda k, q: m * k + (1.0 - m) * q, memory.parameters, parameters)
        return dataclasses.replace(memory, parameters=moved)

    def keys(
        self, graphdef: nnx.GraphDef[TwoTower], memory: Memory, batch: Batch, key: jax.Array
    ) -> Batch:
        """The batch with the keys of its second view (symmetric: of both) and the queue."""
        model = nnx.merge(graphdef, memory.parameters)
        places = {_SECOND: 1, _FIRST: 0} if self.config.symmetric else {_SECOND: 1}
        key = jax.random.fold_in(key, 0x4D6F)  # other dropout than the model's
        found = {
            name: encode_view(model, batch, self.pairs, place, key, microbatches=self.microbatches)
            for name, place in places.items()
        }
        found[_IDS] = words(batch["id"])
        if memory.queue is not None:
            for field in dataclasses.fields(Queue):
                found[_QUEUE + field.name] = _flat(getattr(memory.queue, field.name))
        return batch | jax.lax.stop_gradient(found)

    def store(self, memory: Memory, batch: Batch, step: Array) -> Memory:
        """The queue with the keys of this batch in the slot of this step."""
        queue = memory.queue
        if queue is None:
            return memory
        made = seen(batch)
        there = batch.get("weight")
        there = (
            jnp.ones_like(queue.filled[:, 0]) if there is None else (there > 0).astype(jnp.float32)
        )
        # What a row of a bad sample holds may be anything.
        rows = jnp.where(there[:, None] > 0, made.second, 0.0)
        slot = step % (self.config.queue // self.batch_size)
        new = Queue(*(
            _write(old, x, slot)
            for old, x in ((queue.rows, rows), (queue.ids, made.ids), (queue.filled, there))
        ))  # fmt: skip
        return dataclasses.replace(memory, queue=new)


def words(ids: Array) -> UInt32[Array, "batch 2"]:
    """Content ids as 64-bit words, whichever of the two forms they came in; −1 stays unknown."""
    if ids.ndim == 2:
        return ids
    high = jnp.where(ids < 0, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))
    return jnp.stack([high, ids.astype(jnp.uint32)], axis=1)


def _flat(x: Array) -> Array:
    """``[batch, slots, ...]`` as ``[batch · slots, ...]``; no row moves between devices."""
    shape = (x.shape[0] * x.shape[1], *x.shape[2:])
    return jax.lax.reshape(x, shape, out_sharding=rows_like(x, len(shape)))


def _write(old: Array, new: Array, slot: Array) -> Array:
    """``old[:, slot] = new`` without a scatter, whose sharding would have to be spelled out."""
    chosen = jnp.arange(old.shape[1], dtype=slot.dtype) == slot
    chosen = chosen.reshape(1, -1, *(1,) * (old.ndim - 2))
    return jnp.where(chosen, jnp.expand_dims(new, 1).astype(old.dtype), old)
