"""Meshes: sizes fill the devices or are refused by name."""

import jax
import pytest
from jax.sharding import AxisType

from contrastive.errors import ConfigError
from contrastive.mesh import MeshConfig, check_batch_divides, make_mesh


@pytest.mark.parametrize(
    "config, shape", [({}, (8, 1)), ({"fsdp": 4}, (2, 4)), ({"data": 2, "fsdp": -1}, (2, 4))]
)
def test_minus_one_takes_what_is_left(config, shape):
    mesh = make_mesh(MeshConfig(**config), jax.devices())
    assert tuple(mesh.shape.values()) == shape
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
