"""Parameters of an earlier run as the start of a new one, with an account of what was taken."""

import dataclasses
import pathlib
import shutil
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from contrastive.data.tokenizer import Tokenizer, load_tokenizer
from contrastive.errors import ConfigError, UserError
from contrastive.inference import build_towers
from contrastive.recipe import read_recipe
from contrastive.training.checkpoint import read_parameters
from contrastive.training.state import TrainState


def take_tokenizer(source: pathlib.Path, workdir: pathlib.Path) -> None:
    """Copies the tokenizer of the earlier run, unless the new one has its own already: token ids
    then mean what the token table was trained for."""
    if not (workdir / "tokenizer.json").exists() and (source / "tokenizer.json").is_file():
        shutil.copyfile(source / "tokenizer.json", workdir / "tokenizer.json")


def warm_start(
    state: TrainState,
    source: pathlib.Path,
    workdir: pathlib.Path,
    own: Tokenizer,
    say: Callable[[str], None],
) -> TrainState:
    """The state with every parameter that the earlier run has too, by name and shape.

    Where the earlier run kept a moving average, that is taken. Optimizer and step stay new. Token
    tables are taken only if the tokenizers are equal.

    Args:
      state: The new run's state at step 0; says where parameters lie.
      source: The earlier run's folder.
      workdir: The new run's folder.
      own: The new run's tokenizer.
      say: Receives the account: what was taken, and what was not and why.

    Raises:
      UserError: ``source`` is not the folder of a run, or nothing in it fits.
      ConfigError: Both have one vocabulary, but other markers around a text.
      CheckpointError: None of its checkpoints can be read.
    """
    recipe = read_recipe(source)
    tokenizer = load_tokenizer(recipe.data, None, source)
    towers = nnx.eval_shape(lambda: build_towers(recipe, tokenizer, rngs=nnx.Rngs(0)))
    theirs = {path: leaf.shape for path, leaf in nnx.to_flat_state(nnx.state(towers, nnx.Param))}
    ours = dict(nnx.to_flat_state(state.parameters))
    same_tokens = _same_file(source / "tokenizer.json", workdir / "tokenizer.json")
    if same_tokens:
        _check_markers(source, tokenizer, own)
    reasons: dict[tuple, str] = {}
    for path, leaf in ours.items():
        if path not in theirs:
            reasons[path] = "not there"
        elif theirs[path] != leaf.shape:
            reasons[path] = f"{list(theirs[path])} there, {list(leaf.shape)} here"
        elif path[-1] == "tokens" and not same_tokens:
            reasons[path] = "another tokenizer"
    taken = [path for path in ours if path not in reasons]
    if not taken:
        raise UserError(f"config.init_from = {source}: no parameter of that run fits this model.")
    wanted = nnx.from_flat_state(
        [(path, ours[path].replace(_abstract(ours[path][...]))) for path in taken]
    )
    read = read_parameters(source, wanted, average=recipe.average_decay is not None, notify=say)
    values = dict(nnx.to_flat_state(read))
    parameters = nnx.from_flat_state(
        [(path, values.get(path, leaf)) for path, leaf in ours.items()]
    )
    say(_account(source, len(ours), reasons, [p for p in theirs if p not in ours]))
    average = None if state.average is None else jax.tree.map(jnp.copy, parameters)
    return dataclasses.replace(state, parameters=parameters, average=average)


def _check_markers(source: pathlib.Path, theirs: Tokenizer, ours: Tokenizer) -> None:
    for name in ("begin", "end", "pad"):
        there, here = (getattr(t, f"{name}_id") for t in (theirs, ours))
        if there != here:
            token = None if there is None else theirs.backend.id_to_token(there)
            raise ConfigError(
                f"config.init_from = {source} was trained with the {name} token {token!r}, which "
                f"is not this run's: set config.data.tokenizer.{name}_token = {token!r}."
            )


def _abstract(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


def _account(
    source: pathlib.Path, count: int, reasons: dict[tuple, str], unused: list[tuple]
) -> str:
    words = [f"Warm start from {source}: {count - len(reasons)} of {count} parameters loaded"]
    if reasons:
        listed = ", ".join(f"{_name(path)} ({why})" for path, why in reasons.items())
        words.append(f"as initialised: {listed}")
    if unused:
        words.append(f"not used of that run: {', '.join(map(_name, unused))}")
    return "; ".join(words) + "."


def _name(path: tuple) -> str:
    return "/".join(map(str, path))


def _same_file(a: pathlib.Path, b: pathlib.Path) -> bool:
    return a.is_file() and b.is_file() and a.read_bytes() == b.read_bytes()
