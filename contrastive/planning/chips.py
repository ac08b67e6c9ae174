"""What accelerators can do, as their makers publish it; and how much memory a program may have.

Peaks are those of dense bfloat16 products; speeds of links are those of sending.
"""

import dataclasses

GIB = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """One accelerator.

    Attributes:
      name: As in a topology.
      capacity_bytes: Memory that a program may use, what the compiler and the runtime reserve
        taken off.
      flops: Operations a second, bfloat16.
      memory_bandwidth: Bytes a second between the chip and its memory.
      link_bandwidth: Bytes a second that it sends to its neighbours (torus, NVLink).
      network_bandwidth: Bytes a second that it sends to other slices or nodes.
      exact_flops: Operations a second of float32 products without loss of precision.
      unit: The number of chips that share fast links; 0: as many as the topology says.
      side: The most chips along a side of a slice.
      sides: How many sides a slice has; 0: it has none.
      most: The most chips that share fast links, in a pod or a node.
    """

    name: str
    capacity_bytes: int
    flops: float
    memory_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float
    exact_flops: float
    most: int
    unit: int = 0
    side: int | None = None
    sides: int = 0


def _tpu(
    name: str,
    gib: float,
    *,
    flops: float,
    memory: float,
    links: float,
    network: float,
    most: int,
    side: int | None = None,
) -> Chip:
    """``links`` and ``network`` in bits a second; float32 products take six passes of bfloat16."""
    return Chip(
        name=name,
        capacity_bytes=int(gib * GIB),
        flops=flops,
        memory_bandwidth=memory,
        link_bandwidth=links / 8,
        network_bandwidth=network / 8,
        exact_flops=flops / 6,
        most=most,
        side=side,
        sides=3 if side is None else 2,
    )


def _hopper(name: str, mib: int, *, memory: float) -> Chip:
    """The SXM form: NVLink 900 GB/s in both directions, one 400 Gbit/s adapter a GPU. JAX gives a
    program 75 % of the memory that the driver reports, unless XLA_PYTHON_CLIENT_MEM_FRACTION says
    otherwise."""
    return Chip(
        name=name,
        capacity_bytes=int(0.75 * mib * (1 << 20)),
        flops=989e12,
        memory_bandwidth=memory,
        link_bandwidth=450e9,
        network_bandwidth=50e9,
        exact_flops=67e12,
        most=8,
        unit=8,
    )


# TPUs: https://cloud.google.com/tpu/docs/v4, /v5e, /v5p and /v6e: bfloat16 peak, HBM bandwidth,
# links between chips; network: of a pod over its chips (v5e, v6e), 200 Gbit/s over the four chips
# of a host (v4, v5p, an assumption). Capacity: what the compiler gives a program.
# GPUs: NVIDIA's data sheets.
_CHIPS = (
    _tpu("v4", 30.75, flops=275e12, memory=1228e9, links=2400e9, network=200e9 / 4, most=4096),
    _tpu(
        "v5e", 15.75, flops=197e12, memory=819e9, links=1600e9, network=6.4e12 / 256, most=256,
        side=16,
    ),
    _tpu("v5p", 95.73, flops=459e12, memory=2765e9, links=4800e9, network=200e9 / 4, most=8960),
    _tpu(
        "v6e", 31.24, flops=918e12, memory=1640e9, links=3584e9, network=25.6e12 / 256, most=256,
        side=16,
    ),
    _hopper("h100", 81_559, memory=3350e9),
    _hopper("h200", 143_771, memory=4800e9),
)  # fmt: skip

CHIPS = {chip.name: chip for chip in _CHIPS}
"""Every accelerator that a plan can be made for."""
