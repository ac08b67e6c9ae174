"""The train step of a recipe, compiled ahead of time for a machine that is not here."""

import dataclasses
import functools
import math
import re
import time
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from contrastive.assembly import Program, make_program
from contrastive.building import abstract_towers
from contrastive.data.tokenizer import load_tokenizer
from contrastive.mesh import batch_sharding, check_batch_divides, make_mesh
from contrastive.objectives import LOSS_SCOPE
from contrastive.planning import gpu
from contrastive.planning.hlo import Module, parse
from contrastive.planning.operations import Operations, operations
from contrastive.planning.quiet import silenced
from contrastive.planning.topology import Topology
from contrastive.recipe import Recipe
from contrastive.towers import EncoderConfig, TextTransformerConfig
from contrastive.towers.naflex import PLACE
from contrastive.training.state import TrainState, abstract_state


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device. ``peak`` is what decides; the others say what it consists of, and are
    None where the program did not fit and the compiler gave no account."""

    peak: int
    state: int  # parameters, moments, moving average
    batch: int
    temporaries: int | None
    program: int | None


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What is known of the step on a machine.

    Attributes:
      mesh: The mesh.
      memory: Bytes on one device.
      capacity: Bytes that a device has for it; the compiler's own number where it names one.
      module: The program; None where it did not fit.
      step: Operations of one step, over all devices, with what is computed again.
      forward: Operations of the forward pass alone.
      parameters: Number of parameters.
      seconds: That compiling took.
    """

    mesh: Mesh
    memory: Memory
    capacity: int
    module: Module | None
    step: Operations
    forward: Operations
    parameters: int
    seconds: float


def compile_step(recipe: Recipe, topology: Topology) -> Compiled:
    """Traces and compiles the train step that ``contrastive train`` would run.

    Raises:
      ConfigError: The recipe's mesh or batch does not fit the machine.
    """
    mesh = make_mesh(recipe.mesh, topology.devices)
    check_batch_divides(recipe.batch_size, mesh)
    program = make_program(recipe, mesh)
    build = functools.partial(_build, recipe, vocabulary_size(recipe))
    graphdef, state = abstract_state(
        build, program.optimizer, mesh, average=program.averages, momentum=program.momentum
    )
    batch = abstract_batch(recipe, mesh)
    step: Any = program.step(graphdef)
    start = time.perf_counter()
    with jax.set_mesh(mesh):
        counted = operations(step, state, batch, scope=LOSS_SCOPE)
        forward = operations(functools.partial(_forward, graphdef, program), state, batch)
        lowered = step.lower(state, batch)
    parts = {"state": _device_bytes(state), "batch": _device_bytes(batch)}
    options = gpu.compiler_options() if _is_gpu(topology) else None
    module, capacity = None, topology.capacity_bytes
    try:
        with silenced():
            compiled = lowered.compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        peak, capacity = _out_of_memory(error, sum(parts.values()), capacity)
        memory = Memory(peak=peak, **parts, temporaries=None, program=None)
    else:
        memory = _memory(compiled, parts)
        module = parse(compiled.as_text() or "")
    return Compiled(
        mesh=mesh,
        memory=memory,
        capacity=capacity,
        module=module,
        step=counted,
        forward=forward,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(state.parameters)),
        seconds=time.perf_counter() - start,
    )


def _is_gpu(topology: Topology) -> bool:
    return topology.chip is not None and bool(topology.chip.unit)


def _build(recipe: Recipe, tokens: int, rngs: nnx.Rngs) -> Any:
    return abstract_towers(recipe, vocabulary_size=tokens, rngs=rngs)


def _forward(graphdef: Any, program: Program, state: TrainState, batch: Any) -> Any:
    key = jax.random.key(0)
    if program.momentum is not None:
        batch = program.momentum.keys(graphdef, state.memory, batch, key)
    return program.objective(nnx.merge(graphdef, state.parameters), batch, key)[0]


def vocabulary_size(recipe: Recipe) -> int:
    """Rows of the token table that the recipe fixes, or tokens of the tokenizer that it names; else
    as many as may be learned."""
    settings, text = recipe.data.tokenizer, recipe.model.text
    if isinstance(text, TextTransformerConfig | EncoderConfig) and text.vocabulary_size:
        return text.vocabulary_size
    if settings.path is None and settings.preset is None:
        return settings.vocabulary_size
    return load_tokenizer(recipe.data).vocabulary_size


def abstract_batch(recipe: Recipe, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and shardings of a batch. Files are taken to be so many that their samples are
    checked as they come, unless the recipe says otherwise."""
    data, rows = recipe.data, recipe.batch_size

    def pictures(*lead: int, size: int = data.image_size) -> tuple[Any, Any]:
        if data.preprocessing == "naflex":
            return (rows, data.patches, 3 * data.resize.patch**2 + PLACE), jnp.uint8
        return (rows, *lead, size, size, 3), jnp.uint8

    def texts(*lead: int, length: int = data.text_length) -> tuple[Any, Any]:
        return (rows, *lead, length), jnp.int32

    content: tuple[Any, Any] = (), jnp.int32  # of an id: a number, or two words
    files = data.kind not in ("emoji", "synthetic", "csv", "tsv")
    files &= data.views.second == "picture"
    shapes: dict[str, tuple[Any, Any]] = {}
    if data.check == "during" or (data.check == "auto" and files):
        content = (2,), jnp.uint32
        shapes["weight"] = (rows,), jnp.float32
    shapes["id"] = (rows, *content[0]), content[1]
    if data.pairs == "captions":
        shapes |= {"image": pictures(), "text": texts()}
    elif data.pairs == "views":
        shapes |= {"view_a": pictures(), "view_b": pictures()}
        if data.views.small:
            shapes["crops"] = pictures(data.views.small, size=data.views.small_size)
    elif data.joined:
        shapes["joined"] = texts()
    else:
        query = texts(length=data.query_length or data.text_length)
        shapes |= {"query": query, "positive": texts()}
    if data.fields.labels:
        shapes["label"] = (rows,), jnp.int32
    if data.negatives:
        shapes["joined_negatives" if data.joined else "negatives"] = texts(data.negatives)
        shapes["negative_weight"] = (rows, data.negatives), jnp.float32
        shapes["negative_id"] = (rows, data.negatives, *content[0]), content[1]
    sharding = batch_sharding(mesh)
    return {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        for name, (shape, dtype) in shapes.items()
    }


def _device_bytes(tree: Any) -> int:
    """Bytes of the arrays of a tree on one device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _memory(compiled: Any, parts: dict[str, int]) -> Memory:
    """The larger of the compiler's own peak and the sum of what it allots, and the program: on TPU
    the sum leaves something out, on CPU the peak does."""
    stats = compiled.memory_analysis()
    temporaries, program = stats.temp_size_in_bytes, stats.generated_code_size_in_bytes
    arguments = stats.argument_size_in_bytes
    fresh = max(stats.output_size_in_bytes - stats.alias_size_in_bytes, 0)
    peak = max(stats.peak_memory_in_bytes, arguments + temporaries + fresh) + program
    return Memory(peak=peak, **parts, temporaries=temporaries, program=program)


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _out_of_memory(error: Exception, arguments: int, capacity: int) -> tuple[int, int]:
    """Peak and capacity as the compiler's refusal names them; any other error is passed on."""
    text = str(error)
    temporaries = re.search(
        r"temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)", text
    )
    if temporaries:
        return arguments + _bytes(temporaries, 1), _bytes(temporaries, 3)
    used = re.search(r"[Uu]sed ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", text)
    if used:
        return _bytes(used, 1), _bytes(used, 3)
    bytes_needed = re.search(r"allocat\w+ (\d+) bytes", text)
    if "RESOURCE_EXHAUSTED" in text and bytes_needed:
        return int(bytes_needed.group(1)), capacity
    raise error


def _bytes(found: re.Match[str], group: int) -> int:
    """``15.75`` ``G`` as bytes."""
    return round(float(found.group(group)) * _UNITS[found.group(group + 1)])
