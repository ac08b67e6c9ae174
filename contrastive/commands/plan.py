"""``contrastive plan``: what a recipe would need and cost on a machine that is not here."""

import itertools
import json
import math
import sys
from collections.abc import Iterator
from typing import Any

from contrastive.errors import ConfigError
from contrastive.pairs import TOWERS
from contrastive.planning.plan import Plan, make_plan
from contrastive.planning.table import format_plan, format_search
from contrastive.planning.topology import Topology, find_topology
from contrastive.recipe import Recipe, load_recipe

REMATS = ("none", "dots", "full")


def plan(
    config: str,
    overrides: list[str],
    topology: str,
    *,
    as_json: bool = False,
    search: int | None = None,
    stream: Any = sys.stdout,
) -> int:
    """Prints the plan of a recipe, or the best of several.

    Args:
      config: The recipe, ``FILE.py:ARGUMENT``.
      overrides: ``--config.KEY=VALUE``.
      topology: The machine, as :func:`contrastive.planning.topology.find_topology` takes it.
      as_json: Print one JSON object.
      search: Try at most so many other meshes, rematerialisation policies and microbatches.
      stream: Where the plan is printed; notes go to stderr.

    Returns:
      0, whether it fits or not.

    Raises:
      ConfigError: The recipe, the machine, or the two together make no sense.
    """
    recipe = load_recipe(config, overrides)
    machine = find_topology(topology)
    if search is not None:
        return _search(config, overrides, machine, search, as_json, stream)
    _note(f"Compiling {recipe.name} for {topology} ...")
    found = make_plan(recipe, machine)
    print(json.dumps(found.to_json()) if as_json else format_plan(found), file=stream)
    return 0


def _search(
    config: str, overrides: list[str], machine: Topology, most: int, as_json: bool, stream: Any
) -> int:
    """First what is kept of the activations, on the recipe's own mesh; then other meshes with what
    was best there."""
    if most < 1:
        raise ConfigError(f"--search={most}: at least one program has to be tried.")
    recipe = load_recipe(config, overrides)
    tried: list[tuple[dict[str, Any], Plan]] = []

    def attempt(settings: dict[str, Any]) -> None:
        changes = [f"--config.{name}={value}" for name, value in settings.items()]
        _note(f"Compiling with {_words(settings)} ...")
        try:
            tried.append(
                (settings, make_plan(load_recipe(config, [*overrides, *changes]), machine))
            )
        except ConfigError as error:
            _note(f"  left out: {error}")

    first = list(candidates(recipe, machine))[:most]
    for settings in first:
        attempt(settings)
    best = min(tried, key=lambda entry: rank(entry[1]))[0] if tried else first[-1]
    for layout in list(layouts(recipe, machine))[: most - len(first)]:
        attempt(best | layout)
    if not tried:
        raise ConfigError("none of the settings that were tried suits this recipe and machine.")
    tried.sort(key=lambda entry: rank(entry[1]))
    if as_json:
        found = [{"settings": _words(settings), **plan.to_json()} for settings, plan in tried]
        print(json.dumps({**found[0], "search": found}), file=stream)
    else:
        named = [(_words(settings), plan) for settings, plan in tried]
        print(f"{format_search(named)}\n{format_plan(tried[0][1])}", file=stream)
    return 0


def _words(settings: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def rank(plan: Plan) -> tuple[bool, float, int]:
    """Plans that fit come first, the fastest by the estimate before the others."""
    step = plan.estimate.step if plan.estimate is not None else 0.0
    return not plan.fits, step, plan.compiled.memory.peak


def candidates(recipe: Recipe, machine: Topology) -> Iterator[dict[str, Any]]:
    """What may be kept of the activations, on the recipe's own mesh: its own chunks before others,
    less computed again before more."""
    own, mesh = recipe.train.microbatches, recipe.mesh
    fixed = mesh.slice * mesh.tensor * max(mesh.data, 1)
    fsdp = mesh.fsdp if mesh.fsdp > 0 else len(machine.devices) // fixed
    towers = [
        name for name in TOWERS[recipe.data.pairs] if hasattr(getattr(recipe.model, name), "remat")
    ]
    layout = {"mesh.data": -1, "mesh.fsdp": fsdp, "mesh.tensor": mesh.tensor}
    for count, remat in itertools.product((own, 1 if own == 4 else 4), REMATS if towers else ("",)):
        remats: dict[str, Any] = {f"model.{tower}.remat": remat for tower in towers}
        yield remats | {"train.microbatches": count} | layout


def layouts(recipe: Recipe, machine: Topology) -> Iterator[dict[str, Any]]:
    """Other cuts of the parameters than the recipe's own: over fsdp, and over tensor where that
    divides heads and hidden units, the smallest before larger ones."""
    own = recipe.mesh.fsdp, recipe.mesh.tensor
    shared = math.gcd(*_divided(recipe), machine.unit)
    cuts = [(fsdp, own[1]) for fsdp in (1, 4, 16, 64, 256)]
    splits = [(own[0], tensor) for tensor in (1, 2, 4, 8) if shared % tensor == 0]
    devices = len(machine.devices)
    for pair in itertools.chain.from_iterable(itertools.zip_longest(cuts, splits)):
        if pair is None or pair == own or min(pair) < 1 or recipe.mesh.slice < 1:
            continue
        if devices % (recipe.mesh.slice * pair[0] * pair[1]) == 0:
            yield {"mesh.data": -1, "mesh.fsdp": pair[0], "mesh.tensor": pair[1]}


def _divided(recipe: Recipe) -> list[int]:
    """The sizes that tensor has to divide; 1 where there are no heads to give away."""
    towers = [getattr(recipe.model, name) for name in TOWERS[recipe.data.pairs]]
    towers = [tower for tower in towers if hasattr(tower, "heads")]
    hidden = [round(tower.width * getattr(tower, "mlp_ratio", 1)) for tower in towers]
    return [*(tower.heads for tower in towers), *hidden] or [1]


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
