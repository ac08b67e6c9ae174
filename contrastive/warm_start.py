"""Parameters of an earlier run, or of someone's weights, as the start of a new run, with an account
of what was taken."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from contrastive.building import NO_TEXTS, build_towers
from contrastive.data.tokenizer import Tokenizer, load_tokenizer
from contrastive.errors import ConfigError, UserError
from contrastive.folders import is_run
from contrastive.pretrained.importing import import_weights, tokenizer_of
from contrastive.recipe import Recipe, read_recipe
from contrastive.towers import TwoTowerConfig, VisionTransformerConfig
from contrastive.towers.positions import Method, resize_positions
from contrastive.training.checkpoint import read_parameters
from contrastive.training.optimizer import multiplier
from contrastive.training.state import TrainState
from contrastive.whole import whole_file

# Settings of a tower that no shape tells, and without which its parameters mean something else.
_MEANING = (
    *("activation", "epsilon", "heads", "causal", "padding", "pre_norm", "patch_size"),
    *("norm", "positions", "position_offset", "pooling", "qk_norm", "last_epsilon"),
    *("first_stride", "early_stride"),
    *("window", "global_every", "rotary_base", "local_rotary_base"),
)
_POSITIONS = ("image", "positions")
_SCALARS = ("log_scale", "bias")


def take_tokenizer(source: pathlib.Path, workdir: pathlib.Path) -> None:
    """Copies the tokenizer of the earlier run, unless the new one has its own already: token ids
    then mean what the token table was trained for."""
    saved = workdir / "tokenizer.json"
    content = None if saved.exists() else _tokenizer(source)
    if content is not None:
        with whole_file(saved) as file:
            file.write_text(content, encoding="utf-8")


def _tokenizer(source: pathlib.Path) -> str | None:
    """The tokenizer of a run or of weights, as its file says it."""
    if not is_run(source):
        tokenizer = tokenizer_of(source)
        return None if tokenizer is None else tokenizer.to_json()
    file = source / "tokenizer.json"
    return file.read_text(encoding="utf-8") if file.is_file() else None


@dataclasses.dataclass(frozen=True)
class _Earlier:
    """What there is to start from.

    Attributes:
      model: Its settings.
      image_size: Of its pictures.
      shapes: Of its parameters, by path.
      read: The parameters of a target (``jax.ShapeDtypeStruct`` with shardings).
      markers: Its tokenizer; None: it has none.
      open: Settings of the text tower that its parameters do not decide.
      resampling: How its position table is resized, as the library it comes from does it.
    """

    model: TwoTowerConfig
    image_size: int
    shapes: dict[tuple, tuple[int, ...]]
    read: Callable[[Any], Any]
    markers: Tokenizer | None
    open: tuple[str, ...] = ()
    resampling: Method = "bicubic"


def warm_start(
    state: TrainState,
    recipe: Recipe,
    workdir: pathlib.Path,
    say: Callable[[str], None],
) -> TrainState:
    """The state with every parameter that the earlier run has too, by name and shape; but a
    temperature or bias that was held fixed there is a setting, and each run has its own.

    Where the earlier run kept a moving average, that is taken. Optimizer and step stay new. Token
    tables are taken only if the tokenizers are equal; the position table of a vision transformer is
    resized where the pictures have another size.

    Args:
      state: The new run's state at step 0; says where parameters lie.
      recipe: Of the new run; ``init_from`` is the folder of an earlier run, or weights of another
        library.
      workdir: The new run's folder.
      say: Receives the account: what was taken, and what was not and why.

    Raises:
      UserError: ``init_from`` is neither a run nor weights that are known, or nothing in it fits.
      ConfigError: A tower has other settings than its parameters were trained with, or texts other
        markers around them or broader terms behind them.
      CheckpointError: None of the run's checkpoints can be read.
    """
    source = pathlib.Path(str(recipe.init_from))
    earlier = _run(source, say) if is_run(source) else _weights(source)
    ours = dict(nnx.to_flat_state(state.parameters))
    grids = _grids(earlier, recipe)
    same_tokens = _tokenizer(source) == _tokenizer(workdir)
    if same_tokens and earlier.markers is not None:
        _check_texts(source, earlier.markers, load_tokenizer(recipe.data, None, workdir))
    reasons = _reasons(ours, earlier, grids, same_tokens=same_tokens)
    taken = [path for path in ours if path not in reasons]
    if not taken:
        raise UserError(f"config.init_from = {source}: no parameter of that run fits this model.")
    _check_meaning(earlier, recipe.model, {path[0] for path in taken})
    wanted = [
        (path, ours[path].replace(_abstract(ours[path][...], earlier.shapes[path])))
        for path in taken
    ]
    values = dict(nnx.to_flat_state(earlier.read(nnx.from_flat_state(wanted))))
    account = _account(source, len(ours), reasons, [p for p in earlier.shapes if p not in ours])
    if grids is not None and _POSITIONS in values:
        like, table = ours[_POSITIONS], values[_POSITIONS]
        values[_POSITIONS] = like.replace(
            _resized(table[...], like[...], grids, earlier.resampling)
        )
        account += f" The position table was resized from {grids[0]} to {grids[1]} patches a side."
    parameters = nnx.from_flat_state(
        [(path, values.get(path, leaf)) for path, leaf in ours.items()]
    )
    say(account)
    average = None if state.average is None else jax.tree.map(jnp.copy, parameters)
    memory = state.memory
    if memory is not None:  # the momentum encoder follows the towers from where they start
        memory = dataclasses.replace(memory, parameters=jax.tree.map(jnp.copy, parameters))
    return dataclasses.replace(state, parameters=parameters, average=average, memory=memory)


def _check_texts(source: pathlib.Path, theirs: Tokenizer, ours: Tokenizer) -> None:
    if theirs.broader != ours.broader:
        raise ConfigError(
            f"config.init_from = {source} was trained with at most {theirs.broader} broader terms, "
            f"this run has {ours.broader}: set config.data.tokenizer.broader = {theirs.broader}."
        )
    for name in ("begin", "end", "pad"):
        there, here = (getattr(t, f"{name}_id") for t in (theirs, ours))
        if there != here:
            token = None if there is None else theirs.backend.id_to_token(there)
            raise ConfigError(
                f"config.init_from = {source} was trained with the {name} token {token!r}, which "
                f"is not this run's: set config.data.tokenizer.{name}_token = {token!r}."
            )


def _run(source: pathlib.Path, say: Callable[[str], None]) -> _Earlier:
    recipe = read_recipe(source)
    texts = recipe.model.text is not None
    tokenizer = load_tokenizer(recipe.data, None, source) if texts else NO_TEXTS
    towers = nnx.eval_shape(lambda: build_towers(recipe, tokenizer, rngs=nnx.Rngs(0)))
    shapes = {
        path: leaf.shape
        for path, leaf in nnx.to_flat_state(nnx.state(towers, nnx.Param))
        if _name(path) not in _SCALARS or multiplier(recipe.optimizer, _name(path))
    }
    average = recipe.average_decay is not None

    def read(target: Any) -> Any:
        return read_parameters(source, target, average=average, notify=say)

    markers = tokenizer if isinstance(tokenizer, Tokenizer) else None
    return _Earlier(recipe.model, recipe.data.image_size, shapes, read, markers)


def _weights(source: pathlib.Path) -> _Earlier:
    found = import_weights(source)
    values = {
        path: leaf
        for path, leaf in nnx.to_flat_state(nnx.state(found.towers, nnx.Param))
        if _name(path) not in found.family.fresh  # such as a temperature that was never learned
    }
    shapes = {path: leaf.shape for path, leaf in values.items()}

    def read(target: Any) -> Any:
        placed = []
        for path, leaf in nnx.to_flat_state(target):
            value = np.asarray(values[path][...])
            place = jax.tree.leaves(leaf)[0].sharding
            array = jax.make_array_from_callback(value.shape, place, lambda i, v=value: v[i])
            placed.append((path, leaf.replace(array)))
        return nnx.from_flat_state(placed)

    settings = found.settings
    size, markers = settings.data.image_size, found.tokenizer
    how = found.family.resampling
    return _Earlier(settings.model, size, shapes, read, markers, settings.open, how)


def _reasons(
    ours: dict[tuple, Any],
    earlier: _Earlier,
    grids: tuple[int, int] | None,
    *,
    same_tokens: bool,
) -> dict[tuple, str]:
    """Why parameters are not taken."""
    reasons: dict[tuple, str] = {}
    for path, leaf in ours.items():
        theirs = earlier.shapes.get(path)
        if theirs is None:
            reasons[path] = "not there"
        elif theirs != leaf.shape and not (grids is not None and path == _POSITIONS):
            reasons[path] = f"{list(theirs)} there, {list(leaf.shape)} here"
        elif str(path[-1]).startswith(("token", "bigram")) and not same_tokens:
            reasons[path] = "another tokenizer"
    return reasons


def _grids(earlier: _Earlier, recipe: Recipe) -> tuple[int, int] | None:
    """Patches a side there and here, where only their number differs; None otherwise."""
    old, new = earlier.model.image, recipe.model.image
    if not isinstance(old, VisionTransformerConfig) or not isinstance(new, VisionTransformerConfig):
        return None
    same = all(getattr(old, n) == getattr(new, n) for n in ("width", "patch_size", "pooling"))
    sides = tuple(size // new.patch_size for size in (earlier.image_size, recipe.data.image_size))
    return (sides[0], sides[1]) if same and sides[0] != sides[1] else None


def _resized(
    table: jax.Array, like: jax.Array, grids: tuple[int, int], method: Method
) -> jax.Array:
    """The table for another grid, each device its own columns."""
    parts = {shard.index[1]: shard.data for shard in table.addressable_shards}
    old, new = ((side, side) for side in grids)

    def part(index: Any) -> np.ndarray:
        return resize_positions(np.asarray(parts[index[1]]), old, new, method=method)[index[0]]

    return jax.make_array_from_callback(like.shape, like.sharding, part)


def _check_meaning(earlier: _Earlier, ours: TwoTowerConfig, towers: set[Any]) -> None:
    """Raises :class:`ConfigError` where parameters would be used otherwise than trained."""
    theirs = earlier.model
    for tower in sorted(towers & {"image", "text"}):
        before, after = getattr(theirs, tower), getattr(ours, tower)
        for name in _MEANING:
            old, new = getattr(before, name, None), getattr(after, name, None)
            free = tower == "text" and name in earlier.open
            if old is not None and new is not None and old != new and not free:
                raise ConfigError(
                    f"config.model.{tower}.{name} = {new!r}, but the parameters of "
                    f"config.init_from were trained with {old!r}."
                )
    _check_heads(theirs.text, ours.text)
    for name in ("pixel_mean", "pixel_std"):
        old, new = getattr(theirs, name), getattr(ours, name)
        if "image" in towers and old != new:
            raise ConfigError(
                f"config.model.{name} = {new}, but the parameters of config.init_from were trained "
                f"with {old}."
            )


def _check_heads(theirs: Any, ours: Any) -> None:
    """The same for the modules behind an encoder's pooling. Others than before may follow, or
    fewer; those of equal sizes have to be the same ones."""
    pairs = (getattr(tower, "after_pooling", ()) for tower in (theirs, ours))
    for i, (old, new) in enumerate(zip(*pairs, strict=False)):
        same_shape = old.kind == new.kind and getattr(old, "size", 0) == getattr(new, "size", 0)
        if same_shape and old != new:
            raise ConfigError(
                f"config.model.text.after_pooling[{i}] = {new}, but the parameters of "
                f"config.init_from were trained with {old}."
            )


def _abstract(x: jax.Array, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=x.sharding)


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
