"""Plans of small recipes for machines that are not here."""

import dataclasses
import importlib.util
import io
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from contrastive import config as config_lib
from contrastive.assembly import make_program
from contrastive.building import abstract_towers
from contrastive.commands.plan import candidates, layouts, plan, rank
from contrastive.errors import ConfigError
from contrastive.mesh import MeshConfig, make_mesh
from contrastive.planning import compile as compile_lib
from contrastive.planning import gpu
from contrastive.planning.plan import advice, make_plan
from contrastive.planning.table import format_plan, format_search
from contrastive.planning.topology import find_topology
from contrastive.recipe import Recipe, load_recipe
from contrastive.training.state import init_state

CLIP = str(pathlib.Path(__file__).parents[2] / "configs" / "clip.py:b16")
needs_tpu_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="the TPU compiler is not installed"
)

needs_gpu_compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None or gpu.cuda_folder() is None,
    reason="the GPU compiler is not installed",
)


@pytest.fixture(autouse=True, scope="module")
def usual_promotion():
    """Some of JAX's own lowerings for bfloat16 mix types."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def small(**changes):
    """A recipe that compiles in seconds and has all the parts of the large ones."""
    tower = {"width": 64, "depth": 3, "heads": 2, "remat": "full"}
    config = ConfigDict()
    config.name = "small"
    config.total_steps = 1000
    config.batch_size = 64
    config.data = {"source": "synthetic", "image_size": 16, "text_length": 8}
    config.data.tokenizer = {"vocabulary_size": 300}
    config.model = {"embedding_dim": 32, "dtype": "bfloat16"}
    config.model.image = {"kind": "vit", "patch_size": 8, **tower}
    config.model.text = {"kind": "transformer", **tower}
    config.loss = {"name": "clip", "exchange": "ring"}
    overrides = [f"--config.{key}={value}" for key, value in changes.items()]
    return config_lib.resolve(Recipe, config, overrides)


@pytest.fixture(scope="module")
def cpu_plan():
    return make_plan(small(), find_topology("cpu:8"))


def test_a_plan_for_cpu_devices(cpu_plan):
    found = cpu_plan.to_json()
    assert found["fits"]
    assert found["devices"] == 8
    assert 0 < found["peak_bytes_per_device"] < found["capacity_bytes"]
    # state: float32 parameters and two moments, whole on each device, and two counters
    assert found["state_bytes_per_device"] == 12 * found["parameters"] + 12
    assert found["batch_bytes_per_device"] == 8 * (16 * 16 * 3 + 8 * 4 + 4)
    assert found["estimate"] is None  # of CPUs nothing is known
    # The ring: a panel of the batch forward, a panel and its gradient back, in float32, and the
    # ids and statistics of each row; see docs/scaling.md.
    pairs = 64 * 32 * 12
    assert pairs < found["loss_sent_bytes_per_device"] < pairs + 64 * 128
    kinds = {(row["kind"], row["loss"]) for row in found["collectives"]}
    assert ("collective-permute", True) in kinds
    assert ("all-reduce", False) in kinds
    json.dumps(found)


def test_the_gradient_moves_once_and_twice_over_the_links(cpu_plan):
    """Of float32 gradients; in bfloat16 compute those of the blocks' weights are bfloat16."""
    rows = [r for r in cpu_plan.collectives if r.kind == "all-reduce" and not r.loss]
    payload = sum(row.payload_bytes for row in rows)
    parameters = cpu_plan.compiled.parameters
    assert 2 * parameters < payload < 4.1 * parameters


def test_operations_are_those_of_the_towers_and_the_loss(cpu_plan):
    """Forward by hand; backward costs twice that, and the blocks once more."""
    recipe, width, layers = small(), 64, 3

    def tower(tokens):
        attention = 4 * width * width + 2 * tokens * width
        return tokens * layers * 2 * (attention + 8 * width * width)

    patches = 4 * 2 * (8 * 8 * 3) * width
    ends = 2 * 2 * width * 32
    blocks = tower(4) + tower(8)
    forward = recipe.batch_size * (blocks + patches + ends)
    logits = 2 * recipe.batch_size**2 * 32
    assert cpu_plan.compiled.step.inside == 4 * logits
    assert cpu_plan.compiled.forward.total == forward + logits
    # Pixels need no gradient; what enters a block is kept, so its last product is not done again.
    step = cpu_plan.compiled.step.total - 4 * logits
    again = step - 3 * forward + recipe.batch_size * patches
    down = recipe.batch_size * 2 * layers * (4 + 8) * 4 * width * width
    assert again in (recipe.batch_size * blocks, recipe.batch_size * blocks - down)


def test_the_planned_program_is_the_one_that_is_trained():
    """The same shapes and shardings go in, whether the state is described or made."""
    recipe = small(**{"mesh.fsdp": 2})
    mesh = make_mesh(recipe.mesh, jax.devices()[:4])
    program = make_program(recipe, mesh)

    def build(rngs):
        return abstract_towers(recipe, vocabulary_size=300, rngs=rngs)

    _, state = init_state(build, program.optimizer, mesh, 0, average=False)
    _, described = compile_lib.abstract_state(build, program.optimizer, mesh, average=False)
    assert jax.tree.structure(state) == jax.tree.structure(described)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(described), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


def test_what_does_not_fit_says_what_to_change_and_by_how_much(cpu_plan):
    memory = dataclasses.replace(cpu_plan.compiled.memory, peak=40 << 30, state=4 << 30)
    compiled = dataclasses.replace(cpu_plan.compiled, memory=memory, capacity=16 << 30, module=None)
    full = dataclasses.replace(cpu_plan, compiled=compiled)
    assert not full.fits
    lines = " ".join(advice(full))
    assert "24.00 GiB too much" in lines
    assert "36.00 GiB grow with the batch" in lines
    assert "5 times the devices, or config.train.microbatches=8" in lines
    assert "remat" not in lines  # it is full already
    assert "DOES NOT FIT" in format_plan(full)
    assert rank(cpu_plan) < rank(full)
    table = format_search([("mesh.fsdp=1", cpu_plan), ("mesh.fsdp=8", full)])
    assert "1 of the 2 programs that were compiled fit" in table
    assert "mesh.fsdp=8" not in table
    assert "does not fit" in format_search([("mesh.fsdp=8", full)])


def test_other_advice():
    recipe = small(**{"model.image.remat": "none"})
    found = make_plan_without_compiling(recipe, peak=20 << 30, state=17 << 30)
    lines = " ".join(advice(found))
    assert "config.mesh.fsdp=8 cuts the state" in lines
    assert "config.model.image.remat=full (now none)" in lines
    assert "state alone fills the memory" in lines


def test_advice_is_only_what_the_recipe_can_do():
    """Cuts divide every width and chunks divide the rows of a device."""
    recipe = small(**{"model.image.width": 66, "model.image.heads": 2, "batch_size": 48})
    lines = " ".join(advice(make_plan_without_compiling(recipe, peak=40 << 30, state=5 << 30)))
    assert "config.mesh.fsdp=2 cuts the state" in lines  # 8 devices, but 66 entries
    assert "5 times the devices, or config.train.microbatches=6, would do" in lines  # of 6 rows
    lines = " ".join(advice(make_plan_without_compiling(recipe, peak=90 << 30, state=5 << 30)))
    assert "12 times the devices would do" in lines
    assert "microbatches" not in lines


def make_plan_without_compiling(recipe, peak, state):
    topology = find_topology("cpu:8")
    mesh = make_mesh(recipe.mesh, topology.devices)
    memory = compile_lib.Memory(peak, state, 0, None, None)
    counts = compile_lib.Operations(1, 0, 0)
    compiled = compile_lib.Compiled(mesh, memory, 16 << 30, None, counts, counts, 1, 0.0)
    from contrastive.planning.plan import Plan

    return Plan(recipe, topology, compiled, [], None, [])


def test_the_refusal_of_the_compiler_is_read():
    error = RuntimeError(
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "hbm. Used 37.74G of 15.75G hbm. Exceeded hbm capacity by 21.99G."
    )
    found = compile_lib._out_of_memory(error, 2**30, 1)
    np.testing.assert_allclose(found, [37.74 * 2**30, 15.75 * 2**30])
    error = RuntimeError(
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total "
        "memory required for HLO temporaries (22.12G) exceeds available HBM (15.75G)."
    )
    found = compile_lib._out_of_memory(error, 2**30, 1)
    np.testing.assert_allclose(found, [23.12 * 2**30, 15.75 * 2**30])
    with pytest.raises(RuntimeError, match="else"):
        compile_lib._out_of_memory(RuntimeError("something else"), 1, 1)


@pytest.mark.parametrize(
    "name, words",
    [
        ("v5e", "not of the form v5e:16x16"),
        ("v5x:4x4", "no chip 'v5x'; known are v4, v5e"),
        ("tpu:4x4", "known are v4, v5e"),
        ("cpu:2x2", "give the number"),
        ("h100:64", "nodes x GPUs"),
        ("v5e:0x4", "at least 1"),
        pytest.param(
            "v6e:32x32", r"at most 16 chips a side.*v6e:16x16\*2", marks=needs_tpu_compiler
        ),
        ("cpu:100000", "at most 1,024 devices"),
        ("v5e:4x4*100000", "at most 65,536 devices"),
        ("h100:100000x8", "at most 65,536 devices"),
        ("h100:2x16", "a node of h100 has at most 8 GPUs; more nodes are written h100:4x8"),
        pytest.param("v5e:4x4x4", "2 sides, as in v5e:4x4", marks=needs_tpu_compiler),
        pytest.param("v5p:16x16", "3 sides, as in v5p:4x4x8", marks=needs_tpu_compiler),
        pytest.param("v4:16x16x32", "at most 4,096 chips", marks=needs_tpu_compiler),
        pytest.param("v5e:3x5", "knows no v5e of 3x5", marks=needs_tpu_compiler),
    ],
)
def test_unknown_machines_are_one_sentence(name, words):
    with pytest.raises(ConfigError, match=words) as caught:
        find_topology(name)
    assert "\n" not in str(caught.value)


def test_the_gpu_compiler_needs_a_part_of_cuda(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_ROOT", str(tmp_path))
    for part in ("bin/ptxas", "nvvm/libdevice/libdevice.10.bc"):
        assert gpu.cuda_folder() != tmp_path
        (tmp_path / part).parent.mkdir(parents=True)
        (tmp_path / part).touch()
    assert gpu.cuda_folder() == tmp_path
    assert gpu.compiler_options()["xla_gpu_cuda_data_dir"] == str(tmp_path)
    monkeypatch.setattr(gpu, "cuda_folder", lambda: None)
    with pytest.raises(ConfigError, match=r"ptxas.* is not installed; make env-plan"):
        find_topology("h100:8x8")


@needs_tpu_compiler
@pytest.mark.parametrize(
    "name, slices, devices", [("v4:2x2x4", 1, 16), ("v5p:2x2x4", 1, 16), ("v5e:4x4*2", 2, 32)]
)
def test_machines_have_one_device_a_chip_and_their_slices(name, slices, devices):
    machine = find_topology(name)
    assert len(machine.devices) == devices
    mesh = make_mesh(small(**{"mesh.slice": slices, "mesh.fsdp": 4}).mesh, machine.devices)
    assert mesh.shape["slice"] == slices
    assert machine.unit == devices // slices
    with pytest.raises(ConfigError, match=r"config\.mesh\.slice"):
        make_mesh(small(**{"mesh.slice": 4}).mesh, machine.devices)


def test_a_mesh_that_does_not_fit_the_machine_is_one_sentence():
    with pytest.raises(ConfigError, match=r"config\.mesh .* 8 devices"):
        make_plan(small(**{"mesh.fsdp": 3}), find_topology("cpu:8"))
    with pytest.raises(ConfigError, match=r"config\.batch_size = 60"):
        make_plan(small(batch_size=60), find_topology("cpu:8"))


def test_a_search_begins_with_the_recipes_own_mesh_and_chunks():
    recipe = small(**{"mesh.fsdp": 2, "train.microbatches": 8})
    found = list(candidates(recipe, find_topology("cpu:8")))
    assert [one["model.image.remat"] for one in found] == 2 * ["none", "dots", "full"]
    assert [one["train.microbatches"] for one in found[::3]] == [8, 4]
    assert {(one["mesh.fsdp"], one["mesh.tensor"]) for one in found} == {(2, 1)}
    (left,) = {one["mesh.fsdp"] for one in candidates(small(**{"mesh.fsdp": -1, "mesh.data": 2}),
                                                      find_topology("cpu:8"))}  # fmt: skip
    assert left == 4


@pytest.mark.parametrize(
    "heads, own, expected",
    [
        (2, {}, [(1, 2), (4, 1)]),
        (3, {}, [(4, 1)]),  # three heads go to no two devices
        (4, {"mesh.fsdp": 4}, [(1, 1), (4, 2)]),
        (4, {"mesh.tensor": 2}, [(1, 1), (4, 2)]),  # the texts' two heads go to no four devices
    ],
)
def test_a_search_goes_on_with_other_meshes_with_tensor_where_it_divides(heads, own, expected):
    recipe = small(**{"model.image.heads": heads, "model.image.width": 48, **own})
    found = [
        (one["mesh.fsdp"], one["mesh.tensor"]) for one in layouts(recipe, find_topology("cpu:8"))
    ]
    assert sorted(found) == sorted(expected)


@pytest.mark.slow
def test_a_search_takes_the_best_to_other_meshes(command):
    """Whole programs on eight CPU devices: six on the recipe's mesh, then two others."""
    found = command("cpu:8", search=8)["search"]
    assert len(found) == 8
    meshes = [(one["mesh"]["fsdp"], one["mesh"]["tensor"]) for one in found]
    assert sorted(meshes) == [*[(1, 1)] * 6, (1, 2), (4, 1)]
    words = {one["settings"].partition(" mesh")[0] for one in found if one["mesh"]["data"] != 8}
    assert len(words) == 1  # both with the same rest, the best of the six
    own = [one for one in found if one["mesh"]["data"] == 8]
    assert words == {
        min(own, key=lambda o: o["peak_bytes_per_device"])["settings"].partition(" mesh")[0]
    }


@pytest.fixture
def command(tmp_path):
    """``contrastive plan --json`` of the small recipe on a machine that is not here."""
    file = tmp_path / "recipe.py"
    file.write_text(
        "from ml_collections import ConfigDict\n"
        f"def get_config():\n    return ConfigDict({config_lib.to_dict(small())!r})\n"
    )

    def run(topology, search=None, **changes):
        stream = io.StringIO()
        overrides = [f"--config.{key}={value}" for key, value in changes.items()]
        options = {"as_json": True, "search": search, "stream": stream}
        assert plan(str(file), overrides, topology, **options) == 0
        return json.loads(stream.getvalue())

    return run


@needs_tpu_compiler
def test_a_small_depth_pod_program(command):
    found = command("v5e:4x4", **{"mesh.fsdp": 4, "batch_size": 256})
    assert found["fits"]
    assert found["devices"] == 16
    assert found["mesh"] == {"slice": 1, "data": 4, "fsdp": 4, "tensor": 1}
    assert found["capacity_bytes"] == int(15.75 * 2**30)
    assert found["state_bytes_per_device"] < 12 * found["parameters"] / 3.9
    estimate = found["estimate"]
    assert estimate["step_seconds"] <= estimate["step_seconds_without_overlap"]
    pairs = 256 * 32 * 12 * (1 + 1 / 4)  # round fsdp, and a step along data after each round
    assert pairs < found["loss_sent_bytes_per_device"] < pairs + 256 * 128
    assert found["sent_bytes_between_slices_per_device"] == 0
    check_fsdp(found["collectives"], found["parameters"], fsdp=4)


@needs_tpu_compiler
@pytest.mark.slow
def test_a_pod_program_of_two_slices(command):
    """Between slices go a step of the ring after each round inside, and the sums of the parts of
    the gradients that each chip holds after scattering over fsdp and data."""
    sizes = {"mesh.slice": 2, "mesh.fsdp": 4, "batch_size": 256}
    found = command("v5e:4x4*2", **sizes)
    assert found["mesh"] == {"slice": 2, "data": 4, "fsdp": 4, "tensor": 1}
    between = [row for row in found["collectives"] if row["between_bytes"]]
    assert {tuple(row["axes"]) for row in between} == {("slice",)}
    ring = sum(row["sent_bytes"] for row in between if row["loss"])
    assert 256 * 32 * 12 / 16 < ring < (256 * 32 * 12 + 256 * 128) / 16
    sums = sum(row["payload_bytes"] for row in between if not row["loss"])
    assert 0.9 * 4 * found["parameters"] / 16 < sums < 4 * found["parameters"] / 4
    assert found["sent_bytes_between_slices_per_device"] == sum(r["sent_bytes"] for r in between)


@needs_tpu_compiler
@pytest.mark.slow
@pytest.mark.parametrize("chips, name", [(8, "v5e:2x4"), (64, "v5e:8x8"), (256, "v5e:16x16")])
def test_a_step_sends_what_the_formulas_say_at_a_fixed_batch_a_chip(command, chips, name):
    """The loss in proportion to the chips, on two axes; parameters and gradients the same."""
    batch = 16 * chips
    found = command(name, **{"mesh.fsdp": 4, "batch_size": batch})
    assert found["mesh"] == {"slice": 1, "data": chips // 4, "fsdp": 4, "tensor": 1}
    pairs = batch * 32 * 12 * (1 + 1 / 4)
    assert pairs < found["loss_sent_bytes_per_device"] < pairs + batch * 128 * (1 + 1 / 4)
    check_fsdp(found["collectives"], found["parameters"], fsdp=4)


@needs_tpu_compiler
@pytest.mark.slow
def test_at_a_real_width_gradients_are_scattered_and_gathers_run_beside_products(command):
    """At 512 entries the compiler chooses other forms than at 64."""
    width = {f"model.{tower}.width": 512 for tower in ("image", "text")}
    found = command("v5e:2x4", **{"mesh.fsdp": 4, "batch_size": 1024, **width})
    rows, parameters = found["collectives"], found["parameters"]

    def total(what, kind, *axes, loss=False):
        place = kind, [*axes], loss
        return sum(r[what] for r in rows if (r["kind"], r["axes"], r["loss"]) == place)

    assert total("payload_bytes", "reduce-scatter", "fsdp") > 0.95 * 2 * parameters
    assert total("payload_bytes", "all-reduce", "fsdp") < 0.02 * 2 * parameters
    # What the chip waits for are the scatters and the sums over data; gathers are begun early.
    for kind, loss, share in (("all-gather", False, 0.6), ("collective-permute", True, 0.5)):
        sent = total("sent_bytes", kind, "fsdp", loss=loss)
        assert total("beside_bytes", kind, "fsdp", loss=loss) > share * sent
    assert total("beside_bytes", "reduce-scatter", "fsdp") == 0
    assert found["sent_bytes_beside_products_per_device"] > 0.3 * found["sent_bytes_per_device"]


@needs_tpu_compiler
@pytest.mark.slow
def test_what_a_refusal_advises_fits_when_it_is_compiled(command):
    """By how much: chunks that divide what grows with the batch; a cut that shrinks the state."""
    remat = {"model.image.remat": "none", "model.text.remat": "none"}
    large = {"batch_size": 1 << 21, **remat}
    refused = command("v5e:2x4", **large)
    assert not refused["fits"]
    over = refused["peak_bytes_per_device"] - refused["capacity_bytes"]
    advice = " ".join(refused["advice"])
    assert advice.startswith(f"{over / 2**30:.2f} GiB too much")
    chunks = int(re.search(r"config\.train\.microbatches=(\d+)", advice).group(1))
    assert command("v5e:2x4", **large, **{"train.microbatches": chunks})["fits"]
    assert "config.model.image.remat=full (now none)" in advice
    full = command("v5e:2x4", **large | dict.fromkeys(remat, "full"))
    assert full["peak_bytes_per_device"] < 0.7 * refused["peak_bytes_per_device"]


@needs_tpu_compiler
@pytest.mark.slow
def test_a_state_that_is_too_large_fits_when_it_is_cut_as_advised(command):
    wide = {f"model.{tower}.{key}": value for tower in ("image", "text")
            for key, value in {"width": 2048, "depth": 24, "heads": 16}.items()}  # fmt: skip
    refused = command("v5e:2x4", **wide)
    assert not refused["fits"]
    advice = " ".join(refused["advice"])
    fsdp, saved = re.search(r"mesh\.fsdp=(\d+) cuts .* saves ([\d.]+) GiB", advice).groups()
    cut = command("v5e:2x4", **wide, **{"mesh.fsdp": int(fsdp)})
    assert cut["fits"]
    less = refused["state_bytes_per_device"] - cut["state_bytes_per_device"]
    np.testing.assert_allclose(less / 2**30, float(saved), rtol=0.01)


@needs_gpu_compiler
@pytest.mark.slow
def test_a_program_for_two_nodes_of_gpus(command):
    found = command("h100:2x8", **{"mesh.fsdp": 8, "batch_size": 256})
    assert found["mesh"] == {"slice": 1, "data": 2, "fsdp": 8, "tensor": 1}
    assert found["fits"]
    assert found["capacity_bytes"] == int(0.75 * 81_559 * 2**20)
    assert 0 < found["state_bytes_per_device"] < found["peak_bytes_per_device"] < 2**30
    pairs = 256 * 32 * 12 * (1 + 1 / 8)
    assert pairs < found["loss_sent_bytes_per_device"] < pairs + 256 * 128
    check_fsdp(found["collectives"], found["parameters"], fsdp=8)
    for row in found["collectives"]:
        expected = {("fsdp",): 0, ("data",): row["sent_bytes"]}.get(tuple(row["axes"]))
        assert expected in (row["between_bytes"], None)
    assert found["estimate"]["network_seconds"] > 0


@needs_tpu_compiler
@pytest.mark.slow
def test_a_full_size_pod_program():
    found = make_plan(load_recipe(CLIP, []), find_topology("v5e:16x16")).to_json()
    assert found["fits"]
    assert found["parameters"] == pytest.approx(149.62e6, rel=1e-3)
    assert found["state_bytes_per_device"] == 12 * found["parameters"] + 12
    pairs = 12 * 32_768 * 512
    assert pairs < found["loss_sent_bytes_per_device"] < pairs + 32_768 * 128
    assert found["loss_share_of_flops"] < 0.002


@needs_tpu_compiler
@pytest.mark.slow
def test_a_search_compiles_and_ranks(command):
    found = command("v5e:4x4", search=3)
    tried = found["search"]
    assert [one["fits"] for one in tried] == [True] * 3
    steps = [one["estimate"]["step_seconds"] for one in tried]
    assert steps == sorted(steps)
    assert found["settings"] == tried[0]["settings"]
    by_remat = {one["settings"].split("remat=")[1].split()[0]: one for one in tried}
    assert set(by_remat) == {"none", "dots", "full"}
    assert by_remat["none"]["flops_per_example"] < by_remat["full"]["flops_per_example"]


def check_fsdp(rows, parameters, *, fsdp):
    """Gradients are scattered over fsdp, their parts summed over the replicas, and nothing of the
    size of the parameters is summed over all devices."""
    rows = [row for row in rows if not row["loss"]]

    def payload(kind, *axes):
        return sum(r["payload_bytes"] for r in rows if (r["kind"], r["axes"]) == (kind, [*axes]))

    assert 0.9 * 2 * parameters < payload("reduce-scatter", "fsdp") < 1.2 * 2 * parameters
    assert 0.9 * 4 * parameters / fsdp < payload("all-reduce", "data") < 1.3 * 4 * parameters / fsdp
    assert payload("all-reduce", "data", "fsdp") < 0.05 * parameters
    over_parts = [r for r in rows if r["kind"] == "all-reduce" and "fsdp" in r["axes"]]
    vectors = 0.07 * 4 * parameters  # norms and biases, which are not cut, of a narrow model
    assert sum(row["payload_bytes"] for row in over_parts) < vectors
    # Gathered in bfloat16 forward and, those of the blocks, by rematerialisation once more.
    assert 3.5 * parameters < payload("all-gather", "fsdp") < 4 * parameters


def test_the_batch_and_vocabulary_are_those_of_training():
    mesh = make_mesh(MeshConfig(), jax.devices()[:2])
    plain = load_recipe(CLIP, [])
    assert compile_lib.abstract_batch(plain, mesh)["id"].shape == (32_768,)
    assert compile_lib.vocabulary_size(plain) == 49_408
    overrides = ["source=laion/{00000..00099}.tar", "tokenizer.preset=clip"]
    overrides += ["tokenizer.vocabulary_size=4096"]  # a learned one would have so many at most
    large = load_recipe(CLIP, [f"--config.data.{x}" for x in overrides])
    batch = compile_lib.abstract_batch(large, mesh)
    assert (batch["id"].shape, batch["id"].dtype) == ((32_768, 2), jnp.uint32)
    assert batch["weight"].shape == (32_768,)
    assert compile_lib.vocabulary_size(large) == 49_408
