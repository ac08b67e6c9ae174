"""Meshes: sizes fill the devices or are refused by name."""

import jax
import pytest
from jax.sharding import AxisType

from contrastive.errors import ConfigError
from contrastive.mesh import MeshConfig, batch_sharding, check_batch_divides, make_mesh


@pytest.mark.parametrize(
    "config, shape",
    [
        ({}, (1, 8, 1, 1)),
        ({"fsdp": 4}, (1, 2, 4, 1)),
        ({"data": 2, "fsdp": -1}, (1, 2, 4, 1)),
        ({"slice": 2, "fsdp": 2, "tensor": 2}, (2, 1, 2, 2)),
    ],
)
def test_minus_one_takes_what_is_left(config, shape):
    mesh = make_mesh(MeshConfig(**config), jax.devices())
    assert tuple(mesh.shape.values()) == shape
    assert mesh.axis_names == ("slice", "data", "fsdp", "tensor")
    assert set(mesh.axis_types) == {AxisType.Explicit}


@pytest.mark.parametrize("config", [{"data": 3}, {"fsdp": 3}, {"data": 4, "fsdp": 4}])
def test_sizes_that_do_not_fit_are_refused(config):
    with pytest.raises(ConfigError, match="8 devices"):
        make_mesh(MeshConfig(**config), jax.devices())


@pytest.mark.parametrize("config", [{"data": -1, "fsdp": -1}, {"data": 0}, {"fsdp": -2}])
def test_impossible_sizes_are_refused(config):
    with pytest.raises(ConfigError, match=r"config\.mesh"):
        MeshConfig(**config)


def test_a_batch_that_does_not_divide_names_the_nearest_that_do():
    mesh = make_mesh(MeshConfig(), jax.devices())
    check_batch_divides(16, mesh)
    with pytest.raises(ConfigError, match=r"config\.batch_size = 20 .* 8 devices .* 16 or 24"):
        check_batch_divides(20, mesh)


def test_the_tensor_axis_does_not_cut_the_batch():
    mesh = make_mesh(MeshConfig(tensor=4), jax.devices())
    check_batch_divides(2, mesh)
    assert batch_sharding(mesh).shard_shape((6, 5)) == (3, 5)


class Chip:
    """A TPU device as the mesh sees it."""

    platform, device_kind, process_index, core_on_chip = "tpu", "TPU v5 lite", 0, 0

    def __init__(self, slice_index, x, y):
        self.slice_index, self.coords, self.id = slice_index, (x, y, 0), 4 * slice_index + 2 * y + x


def test_slices_of_a_pod_are_the_outermost_axis():
    chips = [Chip(s, x, y) for y in range(2) for x in range(2) for s in (1, 0)]
    mesh = make_mesh(MeshConfig(slice=2, fsdp=2), chips)
    assert tuple(mesh.shape.values()) == (2, 2, 2, 1)
    for index in (0, 1):
        assert {chip.slice_index for chip in mesh.devices[index].flat} == {index}
    with pytest.raises(ConfigError, match=r"2 TPU slice\(s\); set config\.mesh\.slice=2"):
        make_mesh(MeshConfig(), chips)
