"""The slowdown of products and attention relative to their FLOP alone.

A kernel computes its result in tiles, one for each block of threads. Tiles at the edge do wasted work, each tile waits
for its first operands, and some multiprocessors are idle while the last tiles are computed.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from steptrace.estimate.constants import AttentionLosses
from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.kernel_classes import ATTENTION, TENSOR_CORES
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


_WIDTH: Final = 128
#: Queries per block, the keys that make a turn, see `AttentionLosses`, and the keys that it computes at a time.
_QUERIES: Final = 128
_KEYS: Final = 128
_LEAST_KEYS: Final = 64
#: Widths of heads that kernels of attention are compiled for. Another head is computed as the next wider one.
_HEAD_WIDTHS: Final = np.array([32, 64, 96, 128, 192, 256])
#: Causal attention has half of the FLOP. Between this share and all of them, it is not.
_MOST_CAUSAL: Final = 0.75


def effort(kernel: Kernel, gpu: Gpu, losses: Mapping[str, AttentionLosses]) -> float:
    """The factor by which a kernel's arithmetic takes longer than its FLOP alone at its class's share of the peak.

    Args:
        kernel: the kernel.
        gpu: the GPU.
        losses: what attention loses, see `Constants.attention`.
    """
    if len(kernel.sizes) != 4:
        return kernel.effort
    if kernel.kind.startswith("attention"):
        # Forward passes in 16 bit were measured. Other kernels are of an older generation, the same on any GPU.
        is_measured = kernel.format in TENSOR_CORES and kernel.kind == ATTENTION
        of_family = losses.get(gpu.family if is_measured else "", losses[""])
        lost = attention_effort(kernel.sizes, of_family, driver_facts(gpu).sms, is_causal=is_causal(kernel))
        return kernel.effort * float(lost)
    is_fast = kernel.format in TENSOR_CORES and bool(gpu.family)
    if is_fast and gpu.family in _PERSISTENT:
        return kernel.effort * (1 + _LOADING_BETWEEN / kernel.sizes[3])
    return kernel.effort * _tiled(kernel.sizes, driver_facts(gpu).sms, is_fast=is_fast)


def is_causal(kernel: Kernel) -> bool:
    """Whether attention skips the keys behind each query: its FLOP are then half of those of its sizes."""
    products = 10 if "backward" in kernel.kind else 4
    return kernel.flop < _MOST_CAUSAL * products * math.prod(kernel.sizes)


def attention_effort(sizes: Sequence[Any], losses: AttentionLosses, sms: int, *, is_causal: bool) -> Any:
    """The factor by which attention takes longer than its FLOP alone.

    A block computes 128 queries, with 64 keys at a time. A causal one needs on average half of the keys, and half as
    many as it has queries on the diagonal. It begins and ends in the same time for any width. A head of 40 elements
    takes as long as one of 64.

    Args:
        sizes: heads of all samples, queries, keys, width of a head: numbers, or an array of each.
        losses: of the GPU's family.
        sms: multiprocessors of the GPU.
        is_causal: whether keys behind a query are skipped; the FLOP are then half as many.
    """
    heads, queries, keys, width = sizes
    of_queries, of_keys = np.ceil(queries / _QUERIES), np.ceil(keys / _LEAST_KEYS) * _LEAST_KEYS / _KEYS
    compiled = np.maximum(width, np.append(_HEAD_WIDTHS, 0)[np.searchsorted(_HEAD_WIDTHS, width)])
    narrower = _WIDTH / compiled
    by_width = compiled / width * narrower ** np.where(compiled < _WIDTH, losses.narrow, losses.wide)
    on_average = np.minimum((np.ceil(keys / _KEYS) + 1) / 2, of_keys)
    computed, needed = (on_average, keys / 2) if is_causal else (of_keys, keys)
    turns = (computed + losses.turns * narrower) * _KEYS / needed
    padded = of_queries * _QUERIES / queries
    return turns * padded * by_width * (1 + losses.tail * sms / (heads * of_queries))


@lru_cache(maxsize=65536)
def _tiled(sizes: tuple[int, ...], sms: int, *, is_fast: bool) -> float:
    """The factor with the best tile and split, as a library's heuristics would choose them."""
    batches, m, n, k = sizes
    least = math.inf
    loading = _LOADING if is_fast else _LOADING_SLOW
    for rows, columns, share in _TILES if is_fast else _TILES_SLOW:
        tiles = batches * math.ceil(m / rows) * math.ceil(n / columns)
        area = rows * columns / share
        for parts in _SPLITS:
            turns = math.ceil(tiles * parts / sms)
            least = min(least, turns * area * (k / parts + loading * (1 + (parts > 1))))
            if tiles >= 8 * sms:  # more blocks do not help
                break
    return least * sms / (batches * m * n * k)
