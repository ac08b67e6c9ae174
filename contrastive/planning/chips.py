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
    """

    name: str
    capacity_bytes: int
    flops: float
    memory_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float
    exact_flops: float
    unit: int = 0
    side: int | None = None


CHIPS = {
    chip.name: chip
    for chip in (
        # https://cloud.google.com/tpu/docs/v4, /v5e, /v5p and /v6e: bfloat16 peak, HBM bandwidth,
        # links between chips; network: of a pod over its chips (v5e, v6e), 200 Gbit/s over the four
        # chips of a host (v4, v5p, an assumption). Capacity: what the compiler gives a program;
        # float32 products take six passes of bfloat16.
        Chip(
            name="v4",
            capacity_bytes=int(30.75 * GIB),
            flops=275e12,
            memory_bandwidth=1228e9,
            link_bandwidth=2400e9 / 8,
            network_bandwidth=200e9 / 8 / 4,
            exact_flops=275e12 / 6,
        ),
        Chip(
            name="v5e",
            capacity_bytes=int(15.75 * GIB),
            flops=197e12,
            memory_bandwidth=819e9,
            link_bandwidth=1600e9 / 8,
            network_bandwidth=6.4e12 / 8 / 256,
            exact_flops=197e12 / 6,
            side=16,
        ),
        Chip(
            name="v5p",
            capacity_bytes=int(95.73 * GIB),
            flops=459e12,
            memory_bandwidth=2765e9,
            link_bandwidth=4800e9 / 8,
            network_bandwidth=200e9 / 8 / 4,
            exact_flops=459e12 / 6,
        ),
        Chip(
            name="v6e",
            capacity_bytes=int(31.24 * GIB),
            flops=918e12,
            memory_bandwidth=1640e9,
            link_bandwidth=3584e9 / 8,
            network_bandwidth=25.6e12 / 8 / 256,
            exact_flops=918e12 / 6,
            side=16,
        ),
        # NVIDIA's data sheets, SXM form: NVLink 900 GB/s in both directions, one 400 Gbit/s
        # adapter a GPU. JAX gives a program 75 % of the memory that the driver reports, unless
        # XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.
        Chip(
            name="h100",
            capacity_bytes=int(0.75 * 81_559 * (1 << 20)),
            flops=989e12,
            memory_bandwidth=3350e9,
            link_bandwidth=450e9,
            network_bandwidth=50e9,
            exact_flops=67e12,
            unit=8,
        ),
        Chip(
            name="h200",
            capacity_bytes=int(0.75 * 143_771 * (1 << 20)),
            flops=989e12,
            memory_bandwidth=4800e9,
            link_bandwidth=450e9,
            network_bandwidth=50e9,
            exact_flops=67e12,
            unit=8,
        ),
    )
}
"""Every accelerator that a plan can be made for."""
