"""How bench/giou.py measures: samples of back-to-back calls, interleaved, and the same calls as a CUDA graph."""

import random
import statistics
import time
from collections.abc import Callable, Mapping

import torch

Call = Callable[[], object]

_CALLS_OF_GRAPH = 20
#: Launches of a graph are cheap, not free: a call of many operators needs no companions to hide that.
_OPERATORS_OF_GRAPH = 2_000
#: A graph that goes through all batches may be longer; each of its launches costs memory and time to record.
_OPERATORS_OF_COLD_GRAPH = 20_000


def synchronize(device: str) -> None:
    """Wait for the device, where there is one to wait for."""
    if device == "cuda":
        torch.cuda.synchronize()


def sample(call: Call, calls: int, device: str) -> float:
    """Mean seconds of `calls` back-to-back calls, the wait for the device included."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / calls


def measure(calls: Mapping[str, Call], device: str, *, repeats: int, sample_ms: float) -> dict[str, list[float] | str]:
    """Seconds per call, `repeats` samples for each name, interleaved; what went wrong where a call cannot be made."""
    length: dict[str, int] = {}
    failed: dict[str, str] = {}
    for name, call in calls.items():
        try:
            sample(call, 2, device)  # compiles, allocates, warms the caches
            length[name] = max(1, min(200, int(sample_ms / 1e3 / sample(call, 1, device))))
        except Exception as error:
            failed[name] = message_of(error)
    order = list(length)
    samples: dict[str, list[float]] = {name: [] for name in order}
    shuffle = random.Random(0)
    for _ in range(repeats):
        shuffle.shuffle(order)
        for name in order:
            if name in failed:
                continue
            try:
                samples[name].append(sample(calls[name], length[name], device))
            except Exception as error:
                failed[name] = message_of(error)
    return samples | failed


def measure_graphs(
    calls: Mapping[str, Call], sizes: Mapping[str, int | str], *, repeats: int, sample_ms: float
) -> dict[str, list[float] | str]:
    """As `measure`, each call captured `sizes[name]` times in a CUDA graph that is replayed.

    A graph's launch costs the host a few microseconds whatever is in it, so what is left is the device's time and the
    gaps between its kernels. A size that is a text says why there is to be no graph.
    """
    graphs: dict[str, tuple[Call, int]] = {}
    result: dict[str, list[float] | str] = {}
    for name, call in calls.items():
        size = sizes[name]
        if isinstance(size, str):
            result[name] = size
            continue
        try:
            graphs[name] = capture(call, size), size
        except Exception as error:  # some operators may not be captured
            result[name] = message_of(error)
            torch.cuda.synchronize()
    replays = {name: replay for name, (replay, _) in graphs.items()}
    for name, times in measure(replays, "cuda", repeats=repeats, sample_ms=sample_ms).items():
        result[name] = times if isinstance(times, str) else [time / graphs[name][1] for time in times]
    return result


def graph_size(operators: int | None, batches: int) -> int | str:
    """How many calls of so many operators belong in a graph; a text where there can be none.

    If there are several batches, a graph goes through all of them: a replay begins with the batch that was used the
    longest time ago, as each call outside of a graph does.
    """
    if batches == 1:
        return max(1, min(_CALLS_OF_GRAPH, _OPERATORS_OF_GRAPH // max(operators or 1, 1)))
    if batches * (operators or 1) > _OPERATORS_OF_COLD_GRAPH:
        return f"not measured: {batches} batches of {operators} operators are too many for one graph"
    return batches


def message_of(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def capture(call: Call, calls: int) -> Call:
    """A function that replays `calls` calls as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is allocated or compiled by a first call may not be captured
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph.replay


def copy_gb_s(device: str) -> float:
    """Bytes read and written per second, in GB/s, by a copy far larger than any cache: the fastest of ten."""
    size = 2**30 if device == "cuda" else 2**26
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = [sample(lambda: target.copy_(source), 3, device) for _ in range(10)]
    return 2 * size / min(times) / 1e9


def cache_bytes(device: str) -> int:
    """The device's last cache; on a CPU a guess, since torch does not say."""
    return torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size if device == "cuda" else 2**25


def microseconds(times: list[float]) -> tuple[float, float, float]:
    """Median and quartiles of times in seconds."""
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return 1e6 * statistics.median(times), 1e6 * low, 1e6 * high
