"""Step time and memory of gradient caching on a recipe, against the unchunked step.

    python -m experiments.benchmarks.microbatches --config=configs/emoji.py:clip
    python -m experiments.benchmarks.microbatches --config=configs/mnrl.py:transformer \\
        --config.batch_size=8192 --microbatches 1 8 32 --rounds=0

The steps of all settings are interleaved and their medians compared, so that a machine that speeds
up or slows down does so for all of them. With ``--rounds=0`` nothing is run: the memory is what the
compiler says, and the batch may be larger than this machine could hold.
"""

import argparse
import dataclasses
import math
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from contrastive import mesh as mesh_lib
from contrastive.assembly import make_program
from contrastive.building import abstract_towers
from contrastive.planning.compile import abstract_batch, vocabulary_size
from contrastive.recipe import Recipe, load_recipe
from contrastive.training.state import abstract_state, init_state


def random_batch(shapes: dict[str, jax.ShapeDtypeStruct], vocabulary: int) -> dict[str, Any]:
    """Random pictures and texts; every pair of a content of its own, every weight 1."""
    rng = np.random.default_rng(0)
    rows: dict[str, Any] = {}
    for name, x in shapes.items():
        if name.endswith("weight"):
            rows[name] = np.ones(x.shape, np.float32)
        elif name.endswith("id"):
            rows[name] = np.arange(math.prod(x.shape)).astype(x.dtype).reshape(x.shape)
        elif x.dtype == jnp.uint8:
            rows[name] = rng.integers(0, 256, x.shape, dtype=np.uint8)
        else:
            rows[name] = rng.integers(1, vocabulary, x.shape, dtype=np.int32)
    return rows


def compiled(recipe: Recipe, k: int, mesh: jax.sharding.Mesh, batch: Any, *, run: bool) -> Any:
    """The step in k chunks, and its state (of shapes alone, if nothing is run)."""
    train = dataclasses.replace(recipe.train, microbatches=k)
    program = make_program(dataclasses.replace(recipe, train=train), mesh)
    tokens = vocabulary_size(recipe)

    def build(rngs: Any) -> Any:
        return abstract_towers(recipe, vocabulary_size=tokens, rngs=rngs)

    options: dict[str, Any] = {"average": program.averages, "momentum": program.momentum}
    if run:
        graphdef, state = init_state(build, program.optimizer, mesh, recipe.seed, **options)
    else:
        graphdef, state = abstract_state(build, program.optimizer, mesh, **options)
    step: Any = program.step(graphdef)
    return step.lower(state, batch).compile(), state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/emoji.py:clip")
    parser.add_argument("--microbatches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=15, help="0: memory only")
    options, overrides = parser.parse_known_args()
    recipe = load_recipe(options.config, overrides)
    mesh = mesh_lib.make_mesh(recipe.mesh, jax.devices())
    batch: Any = abstract_batch(recipe, mesh)
    programs, states = {}, {}
    times: dict[int, list[float]] = {k: [] for k in options.microbatches}
    with jax.set_mesh(mesh):
        if options.rounds:
            rows = random_batch(batch, vocabulary_size(recipe))
            batch = jax.device_put(rows, mesh_lib.batch_sharding(mesh))
        for k in options.microbatches:
            programs[k], states[k] = compiled(recipe, k, mesh, batch, run=options.rounds > 0)
        for _ in range(options.rounds):
            for k, program in programs.items():
                begin = time.perf_counter()
                states[k], metrics = program(states[k], batch)
                jax.block_until_ready(metrics)
                times[k].append(time.perf_counter() - begin)
    print("microbatches   step ms   ratio   temporary MiB")
    for k, program in programs.items():
        memory = program.memory_analysis().temp_size_in_bytes / 2**20
        step = ratio = "–"
        if options.rounds:
            median = statistics.median(times[k])
            first = statistics.median(times[options.microbatches[0]])
            step, ratio = f"{1e3 * median:.1f}", f"{median / first:.2f}"
        print(f"{k:12} {step:>9} {ratio:>7} {memory:15.1f}")


if __name__ == "__main__":
    main()
