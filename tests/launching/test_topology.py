"""Machines in the planner's words, and what clouds call them."""

import pytest

from contrastive.errors import ConfigError
from contrastive.launching.topology import parse_machine


@pytest.mark.parametrize(
    "name, kind, hosts, per_host, devices",
    [
        ("v5e:16x16", "v5litepod-256", 64, 4, 256),
        ("v5e:16x16*2", "v5litepod-256", 64, 4, 512),
        ("v5e:2x4", "v5litepod-8", 1, 8, 8),
        ("v5p:8x8x8", "v5p-1024", 128, 4, 512),
        ("v4:2x2x1", "v4-8", 1, 4, 4),
        ("v6e:4x4", "v6e-16", 4, 4, 16),
    ],
)
def test_slices_of_tpus(name, kind, hosts, per_host, devices):
    machine = parse_machine(name)
    assert machine.accelerator_type == kind
    assert (machine.hosts, machine.chips_per_host, machine.devices) == (hosts, per_host, devices)


def test_nodes_of_gpus():
    machine = parse_machine("h100:4x8")
    assert (machine.hosts, machine.chips_per_host, machine.devices) == (4, 8, 32)
    assert not machine.tpu


@pytest.mark.parametrize(
    "name, words",
    [
        ("v5e", "is not of the form v5e:16x16"),
        ("v9:4x4", "there is no 'v9'; known are v4, v5e"),
        ("v5e:3x3", "slices of v5e are 1x1, 2x2"),
        ("v5p:8x8", "three sides that 4 divides"),
        ("h100:8", "nodes x GPUs"),
        ("h100:1x99", "nodes of h100 have 1, 2, 4 or 8 GPUs"),
        ("h100:8x8*2", "nodes x GPUs"),
        ("v5e:16x16*0", "at least 1"),
    ],
)
def test_an_unknown_topology_is_a_sentence(name, words):
    with pytest.raises(ConfigError, match=words):
        parse_machine(name)
