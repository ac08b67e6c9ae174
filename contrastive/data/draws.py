"""Random numbers that belong to an example, not to a moment.

Each example of a run has a 64-bit key, made from the seed and its position in the stream of
examples. A transform draws from (key, name of the stream), so that what happens to an example
depends neither on the batch it sits in, nor on threads, processes or resumption, nor on which other
transforms are switched on. The generator is SplitMix64 used as a hash (Steele, Lea, Flood: Fast
splittable pseudorandom number generators, 2014), a few vectorised integer operations a number: the
numbers stay the same across versions of NumPy.
"""

import functools
import zlib

import numpy as np
from jaxtyping import Float64, Int64, UInt64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def example_keys(seed: int, positions: Int64[np.ndarray, " batch"]) -> UInt64[np.ndarray, " batch"]:
    """The keys of the examples at ``positions`` of the run's stream."""
    start = _mix(np.array([seed], np.uint64) + _GOLDEN)
    return _mix(_mix(positions.astype(np.uint64) * _GOLDEN + start) + _GOLDEN)


def uniform(
    keys: UInt64[np.ndarray, " batch"], stream: str, count: int
) -> Float64[np.ndarray, "batch count"]:
    """``count`` numbers in [0, 1) for each key, from the stream of this name."""
    bits = _mix(_mix(keys[:, None] + _offsets(stream, count)) + _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


@functools.lru_cache(256)
def _offsets(stream: str, count: int) -> UInt64[np.ndarray, "1 count"]:
    start = np.array([zlib.crc32(stream.encode())], np.uint64)
    found = _mix((start << np.uint64(32)) + np.arange(count, dtype=np.uint64))[None, :]
    found.setflags(write=False)  # it is shared
    return found


def derived(keys: UInt64[np.ndarray, " batch"], name: str) -> UInt64[np.ndarray, " batch"]:
    """Another key for each key: of the second view of an example, for example."""
    start = np.array([zlib.crc32(name.encode())], np.uint64)
    return _mix(_mix(keys ^ (_mix(start) + _GOLDEN)) + _GOLDEN)


def shuffle_seed(seed: int) -> int:
    """A 32-bit seed for the order of the examples.

    grain shuffles epoch e with ``seed + e``: with neighbouring seeds run 1's second epoch would be
    run 2's first. Hashed seeds lie far apart.
    """
    return int(_mix(np.array([seed], np.uint64) * _GOLDEN + _GOLDEN)[0] >> np.uint64(32))
