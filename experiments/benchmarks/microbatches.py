"""Step time and memory of gradient caching on a recipe, against the unchunked step.

    python experiments/benchmarks/microbatches.py --config=configs/emoji.py:clip

The steps of all settings are interleaved and their medians compared, so that a machine that speeds
up or slows down does so for all of them.
"""

import argparse
import statistics
import time

import jax
import numpy as np

from contrastive import mesh as mesh_lib
from contrastive.inference import build_towers
from contrastive.objectives import make_objective, make_partition, scale_limit
from contrastive.recipe import load_recipe
from contrastive.training.optimizer import make_optimizer, make_schedule
from contrastive.training.state import init_state
from contrastive.training.step import make_train_step


class _Sizes:
    """Stands in for a tokenizer: what the towers need to know of it."""

    vocabulary_size, pad_id, end_id = 2000, 0, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/emoji.py:clip")
    parser.add_argument("--microbatches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=15)
    options, overrides = parser.parse_known_args()
    recipe = load_recipe(options.config, overrides)
    mesh = mesh_lib.make_mesh(recipe.mesh, jax.devices())
    rng = np.random.default_rng(0)
    size = recipe.data.image_size
    rows = {
        "image": rng.integers(0, 256, (recipe.batch_size, size, size, 3), dtype=np.uint8),
        "text": rng.integers(1, 2000, (recipe.batch_size, recipe.data.text_length), dtype=np.int32),
        "id": np.arange(recipe.batch_size, dtype=np.int32),
    }
    schedule = make_schedule(recipe.optimizer, recipe.total_steps)
    optimizer = make_optimizer(recipe.optimizer, schedule, max_scale=scale_limit(recipe.loss))
    programs, states, memory = {}, {}, {}
    with jax.set_mesh(mesh):
        batch = jax.device_put(rows, mesh_lib.batch_sharding(mesh))
        for k in options.microbatches:
            graphdef, states[k] = init_state(
                lambda rngs: build_towers(recipe, _Sizes(), rngs=rngs),  # pyright: ignore
                optimizer,
                mesh,
                recipe.seed,
                average=recipe.average_decay is not None,
            )
            objective = make_objective(
                recipe.loss, make_partition(recipe.loss, mesh), microbatches=k
            )
            step = make_train_step(
                graphdef, objective, optimizer, seed=0, average_decay=recipe.average_decay
            )
            programs[k] = step.lower(states[k], batch).compile()  # pyright: ignore
            memory[k] = programs[k].memory_analysis().temp_size_in_bytes
        times: dict[int, list[float]] = {k: [] for k in programs}
        for _ in range(options.rounds):
            for k, program in programs.items():
                begin = time.perf_counter()
                states[k], metrics = program(states[k], batch)
                jax.block_until_ready(metrics)
                times[k].append(time.perf_counter() - begin)
    base = statistics.median(times[options.microbatches[0]])
    print("microbatches   step ms   ratio   temporary MiB")
    for k, seconds in times.items():
        median = statistics.median(seconds)
        print(f"{k:12} {1e3 * median:9.1f} {median / base:7.2f} {memory[k] / 2**20:15.1f}")


if __name__ == "__main__":
    main()
