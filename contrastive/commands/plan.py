"""``contrastive plan``: what a recipe would need and cost on a machine that is not here."""

import itertools
import json
import sys
from collections.abc import Sequence
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
    if most < 1:
        raise ConfigError(f"--search={most}: at least one program has to be tried.")
    tried: list[tuple[str, Plan]] = []
    for settings in itertools.islice(candidates(load_recipe(config, overrides), machine), most):
        words = " ".join(f"{name}={value}" for name, value in settings.items())
        changes = [f"--config.{name}={value}" for name, value in settings.items()]
        _note(f"Compiling with {words} ...")
        try:
            recipe = load_recipe(config, [*overrides, *changes])
            tried.append((words, make_plan(recipe, machine)))
        except ConfigError as error:
            _note(f"  left out: {error}")
    if not tried:
        raise ConfigError("none of the settings that were tried suits this recipe and machine.")
    tried.sort(key=lambda entry: rank(entry[1]))
    if as_json:
        found = [{"settings": words, **plan.to_json()} for words, plan in tried]
        print(json.dumps({**found[0], "search": found}), file=stream)
    else:
        print(f"{format_search(tried)}\n{format_plan(tried[0][1])}", file=stream)
    return 0


def rank(plan: Plan) -> tuple[bool, float, int]:
    """Plans that fit come first, the fastest by the estimate before the others."""
    step = plan.estimate.step if plan.estimate is not None else 0.0
    return not plan.fits, step, plan.compiled.memory.peak


def candidates(recipe: Recipe, machine: Topology) -> Any:
    """Settings to try, the most promising first: the recipe's own cut of the parameters and its
    chunks before others, then all parameters everywhere before cutting them, less computed again
    before more, larger microbatches before smaller ones."""
    devices = len(machine.devices)
    fixed = recipe.mesh.slice * recipe.mesh.tensor
    own = recipe.mesh.fsdp, recipe.train.microbatches
    cuts = [n for n in _first(own[0], (1, 4, 16, 64, 256)) if n > 0 < fixed]
    cuts = [n for n in cuts if devices % (fixed * n) == 0]
    towers = [
        name for name in TOWERS[recipe.data.pairs] if hasattr(getattr(recipe.model, name), "remat")
    ]
    for fsdp, count, remat in itertools.product(cuts, _first(own[1], (1, 4)), REMATS):
        settings: dict[str, Any] = {f"model.{tower}.remat": remat for tower in towers}
        yield settings | {"train.microbatches": count, "mesh.data": -1, "mesh.fsdp": fsdp}


def _first(value: int, others: Sequence[int]) -> list[int]:
    """``value`` before the others."""
    return [value, *(n for n in others if n != value)]


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
