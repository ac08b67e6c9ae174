"""Negatives that the model finds as it trains (ANCE; :class:`contrastive.data.mined_config`).

At steps s = first, first + every, … the parameters are copied. While training goes on, the copy
encodes all queries and passages of the training pairs and ranks them exactly, in blocks
(:mod:`contrastive.mining`); at s + every the lists come into force, and the next copy is taken. The
copy and the lists are a part of the training state: a checkpoint holds both, so a resumed run has
the batches of one that never stopped. Until the first lists a batch has the negatives that came
with the data, if any.

With one process the ranking runs in a thread beside training, on one device: programs that span
devices must not be started from two threads. Several processes rank together when the lists are
due, all of them the same programs in the same order.
"""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from flax import nnx
from jaxtyping import Int32

from contrastive import mining
from contrastive.data.draws import example_keys
from contrastive.data.examples import Examples
from contrastive.data.pairs import choose_negatives
from contrastive.data.tokenizer import Tokenizer
from contrastive.errors import ConfigError
from contrastive.inference import Model
from contrastive.mesh import Devices, replicated
from contrastive.recipe import Recipe
from contrastive.training.loop import Batches
from contrastive.training.state import TrainState

Lists = Int32[np.ndarray, "pairs candidates"]
"""Places of passages, the hardest first; −1 where a pair has no more."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mined:
    """What is kept from step to step.

    Attributes:
      parameters: The copy whose lists come next.
      lists: Those in force.
      taken: Step of the copy; 0: there is none yet.
      since: Step of the copy that the lists are of; 0: there are none yet.
    """

    parameters: Any
    lists: Any  # int32 [pairs, candidates]
    taken: Any  # int32 scalar
    since: Any  # int32 scalar


@runtime_checkable
class Loader(Batches, Protocol):
    """A loader of pairs that have all been read."""

    examples: Any


class MinedBatches:
    """A loader's batches with the negatives of the lists in force.

    Args:
      loader: Batches with places for negatives.
      recipe: The settings.
      tokenizer: Turns passages to ids.
      part, parts: Which part of the global batch the loader delivers.

    Raises:
      ConfigError: The pairs are checked as they are read, so not all are known.
    """

    def __init__(
        self, loader: Loader, recipe: Recipe, tokenizer: Tokenizer, *, part: int, parts: int
    ) -> None:
        examples = loader.examples
        if not isinstance(examples, Examples):
            raise ConfigError(
                "config.data.mined ranks all passages: config.data.check has to be 'before'."
            )
        self._loader, self._recipe = loader, recipe
        self._index = examples.index
        self.corpus = mining.Corpus.of(examples.queries, examples.captions, examples.ids)
        prefix = recipe.data.passage_prefix
        self._tokens = tokenizer.encode([prefix + text for text in self.corpus.passages])
        _, first = np.unique(self.corpus.own, return_index=True)
        self._ids = examples.ids[first]  # of each passage
        self._rows = recipe.batch_size // parts
        self._begin = part * self._rows
        self.lists: Lists | None = None

    def __next__(self) -> dict[str, np.ndarray]:
        batch = next(self._loader)
        if self.lists is None:
            return batch
        start = (self._loader.state()["step"] - 1) * self._recipe.batch_size + self._begin
        keys = example_keys(self._recipe.seed, np.arange(start, start + self._rows, dtype=np.int64))
        own = self.lists[np.searchsorted(self._index, batch["example"])]
        known = [row[row >= 0].tolist() for row in own]
        count = batch["negatives"].shape[1]
        places = np.full((len(own), count), -1)
        for i, chosen in enumerate(choose_negatives(known, keys, count)):
            places[i, : len(chosen)] = [known[i][j] for j in chosen]
        there = places >= 0
        return batch | {
            "negatives": np.where(there[:, :, None], self._tokens[places], batch["negatives"]),
            "negative_weight": there.astype(np.float32),
            "negative_id": np.where(there, self._ids[places], np.int32(-1)),
        }

    def state(self) -> dict[str, Any]:
        """The position of the loader."""
        return self._loader.state()


class Miner:
    """Copies the model, ranks by the copies, and brings the lists into force.

    Args:
      recipe: The settings.
      batches: What the lists are for.
      graphdef: Of the towers.
      tokenizer: Of the texts.
      devices: Where to compute.
      mesh: Of the training.
      beside: Whether the ranking runs in a thread beside training.
      say: Is told which lists are in force.
      alive: Called while the ranking goes on.
    """

    def __init__(
        self,
        recipe: Recipe,
        batches: MinedBatches,
        graphdef: nnx.GraphDef,
        tokenizer: Tokenizer,
        devices: Devices,
        *,
        mesh: jax.sharding.Mesh,
        beside: bool,
        say: Callable[[str], None],
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._recipe, self._batches, self._graphdef = recipe, batches, graphdef
        self._tokenizer, self._devices, self._say, self._alive = tokenizer, devices, say, alive
        self._config, self._where = recipe.data.mined, replicated(mesh)
        self._thread = concurrent.futures.ThreadPoolExecutor(1) if beside else None
        self._waiting: concurrent.futures.Future[Lists] | None = None
        self._taken = self._since = 0

    def begin(self, state: TrainState) -> TrainState:
        """The state with a memory that holds nothing yet; to be called under the mesh."""
        shape = len(self._batches.corpus.queries), self._config.candidates
        memory = self._memory(_copy(state.parameters), np.full(shape, -1, np.int32))
        return dataclasses.replace(state, memory=memory)

    def resume(self, state: TrainState) -> None:
        """Goes on where the state stands."""
        memory = state.memory
        self._taken, self._since = int(memory.taken), int(memory.since)
        if self._since:
            self._batches.lists = np.asarray(memory.lists)
        if self._taken:
            self._rank_beside(memory.parameters)

    def after(self, step: int, state: TrainState) -> TrainState:
        """To be called after each step, before the next batch is taken: brings lists into force
        and copies the model where it is time."""
        config = self._config
        if step % config.every or step < config.first:
            return state
        lists, memory = self._batches.lists, state.memory
        if self._taken:
            waiting, self._waiting = self._waiting, None
            lists = self._rank(memory.parameters) if waiting is None else waiting.result()
            self._since = self._taken
            some = int((lists >= 0).any(axis=1).sum())
            self._say(
                f"Step {step}: negatives by the model of step {self._since} for {some:,} of "
                f"{len(lists):,} pairs."
            )
        self._batches.lists = lists if self._since else None
        goes_on = step + config.every < self._recipe.total_steps
        self._taken = step if goes_on else 0
        parameters = _copy(state.parameters) if goes_on else memory.parameters
        if goes_on:
            self._rank_beside(parameters)
        lists = np.asarray(memory.lists) if lists is None else lists
        return dataclasses.replace(state, memory=self._memory(parameters, lists))

    def close(self) -> None:
        """Waits for a ranking under way."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def _memory(self, parameters: Any, lists: Lists) -> Mined:
        values = lists, np.int32(self._taken), np.int32(self._since)
        return Mined(parameters, *(jax.device_put(x, self._where) for x in values))

    def _rank_beside(self, parameters: Any) -> None:
        if self._thread is not None:
            # Those of the state are given away at the next step.
            own = jax.device_put(jax.device_get(parameters), self._devices[0])
            self._waiting = self._thread.submit(self._rank, own)

    def _rank(self, parameters: Any) -> Lists:
        config, corpus = self._config, self._batches.corpus
        towers = nnx.merge(self._graphdef, parameters)
        devices = self._devices if self._thread is None else self._devices[:1]
        model = Model(self._recipe, towers, self._tokenizer, devices, progress=self._alive)
        scores = mining.cosine(
            model.encode_text(corpus.queries), model.encode_text(corpus.passages, role="passage")
        )
        found = mining.mine(
            corpus,
            scores,
            mining.MiningConfig(
                count=config.candidates,
                skip=config.skip,
                window=config.window,
                margin=config.margin,
                max_score=config.max_score,
            ),
        )
        return _rectangle(list(found), config.candidates)


@jax.jit
def _copy(parameters: Any) -> Any:
    return jax.tree.map(jax.numpy.copy, parameters)


def _rectangle(found: Sequence[Sequence[int]], width: int) -> Lists:
    lists = np.full((len(found), width), -1, np.int32)
    for row, places in zip(lists, found, strict=True):
        row[: len(places)] = places
    return lists
