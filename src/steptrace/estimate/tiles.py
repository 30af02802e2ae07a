"""The slowdown of products and attention relative to their FLOP alone.

A kernel computes its result in tiles, one for each block of threads. Tiles at the edge do wasted work, each tile waits
for its first operands, and some multiprocessors are idle while the last tiles are computed.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.kernel_classes import TENSOR_CORES
from steptrace.estimate.work import Kernel

#: Rows and columns of the tiles that libraries have for products, and each tile's rate as a share of the largest
#: tile's: a smaller tile reuses its operands less. `_TILES` is for tensor cores. `_TILES_SLOW` is for slower
#: arithmetic, where loading matters less: float32, and GeForce cards, whose tensor cores run at half rate with float32
#: sums.
_TILES: Final = tuple(
    (rows, columns, share)
    for a, b, share in ((256, 128, 1.0), (128, 128, 1.0), (128, 64, 0.8), (64, 64, 0.45))
    for rows, columns in {(a, b), (b, a)}
)
_TILES_SLOW: Final = tuple(
    (rows, columns, share)
    for a, b, share in ((256, 128, 1.0), (128, 128, 1.0), (128, 64, 0.9), (64, 64, 0.75), (64, 32, 0.6), (32, 32, 0.45))
    for rows, columns in {(a, b), (b, a)}
)
#: The numbers of parts that the sums of a tile may be split into, each computed by a separate block.
_SPLITS: Final = (1, 2, 3, 4, 6, 8)
#: Loading costs each tile as much as this many more terms in its sums; twice that if its sums are split.
_LOADING: Final = 96
_LOADING_SLOW: Final = 32
#: The same where loading overlaps with the end of another tile.
_LOADING_BETWEEN: Final = 128
#: Families with persistent kernels, which share the remaining work: no multiprocessor idles during the last tiles.
_PERSISTENT: Final = ("fed by warp groups", "fed by threads")


class AttentionLosses(NamedTuple):
    """How attention kernels lose time: bench/estimate_constants.py fits it to published kernels of a family's GPUs.

    Attributes:
        keys: with this many keys a block takes twice as long as its FLOP alone; with more keys, relatively less.
        narrow: exponent of 128 / width, by which heads narrower than 128 take longer.
        wide: exponent of 128 / width, by which heads wider than 128 take less.
        tail: blocks per multiprocessor that are lost while some multiprocessors have no block left.
    """

    keys: float
    narrow: float
    wide: float
    tail: float


#: By family; the empty name stands for "fed by warps" and for GPUs without a family.
ATTENTION_LOSSES: Final = {
    "fed by warp groups": AttentionLosses(770, 0.43, 0.24, 0.39),
    "fed by threads": AttentionLosses(840, 0.77, 0.27, 1.4),
    "": AttentionLosses(355, 0.31, 0.07, 0.6),
}
_WIDTH: Final = 128
#: Queries per block.
_QUERIES: Final = 128


def effort(kernel: Kernel, gpu: Gpu) -> float:
    """The factor by which a kernel's arithmetic takes longer than its FLOP alone at its class's share of the peak."""
    if len(kernel.sizes) != 4:
        return kernel.effort
    if kernel.kind.startswith("attention"):
        # Forward passes in 16 bit were measured. Other kernels are of an older generation, the same on any GPU.
        is_measured = kernel.format in TENSOR_CORES and "backward" not in kernel.kind
        losses = ATTENTION_LOSSES.get(gpu.family if is_measured else "", ATTENTION_LOSSES[""])
        return kernel.effort * attention_effort(kernel.sizes, losses, driver_facts(gpu).sms)
    is_fast = kernel.format in TENSOR_CORES and bool(gpu.family)
    if is_fast and gpu.family in _PERSISTENT:
        return kernel.effort * (1 + _LOADING_BETWEEN / kernel.sizes[3])
    return kernel.effort * _tiled(kernel.sizes, driver_facts(gpu).sms, is_fast=is_fast)


def attention_effort(sizes: Sequence[float], losses: AttentionLosses, sms: int) -> float:
    """The factor by which attention takes longer than its FLOP alone.

    Args:
        sizes: heads of all samples, queries, keys, width of a head.
        losses: of the GPU's family.
        sms: multiprocessors of the GPU.
    """
    heads, queries, keys, width = sizes
    blocks = heads * math.ceil(queries / _QUERIES)
    by_width: float = (_WIDTH / width) ** (losses.narrow if width < _WIDTH else losses.wide)
    return (1 + losses.keys / keys) * by_width * (1 + losses.tail * sms / blocks)


@lru_cache(maxsize=65536)
def _tiled(sizes: tuple[int, ...], sms: int, *, is_fast: bool) -> float:
    """The factor with the best tile and split, as a library's heuristics would choose them."""
    batches, m, n, k = sizes
    least, loading = math.inf, _LOADING if is_fast else _LOADING_SLOW
    for rows, columns, share in _TILES if is_fast else _TILES_SLOW:
        tiles = batches * math.ceil(m / rows) * math.ceil(n / columns)
        area = rows * columns / share
        for parts in _SPLITS:
            turns = math.ceil(tiles * parts / sms)
            least = min(least, turns * area * (k / parts + loading * (1 + (parts > 1))))
            if tiles >= 8 * sms:  # more blocks do not help
                break
    return least * sms / (batches * m * n * k)
