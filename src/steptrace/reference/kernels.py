"""The loss by itself, as bench/giou.py measured it, and whether the fused operator reaches what is asked of it.

A call's time is a median with quartiles over samples of back-to-back calls; *graph* is the same calls replayed as a
CUDA graph, without Python and the launches. What is asked:

- `fused` at the article's size: ten times as fast as eager padding and 1.5 times as fast as torch.compile; forward
  within 1.5 times an empty launch and the time its bytes take at the measured copy bandwidth.
- `fused` at 65,536 x 256: at least 70 % of the measured copy bandwidth.

Where it falls short, the hardware counters that bench/giou_counters.py read say what bounds it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from steptrace.metrics.kernels import short_name
from steptrace.reference.load import Results
from steptrace.reference.markdown import table, times
from steptrace.report import format as fmt

Row = Mapping[str, Any]
Bench = Mapping[str, Any]

FUSED: Final = "fused"
ARTICLE_SIZE: Final = (1024, 256)
LARGE_SIZE: Final = (65536, 256)
OVER_PADDING, OVER_COMPILED, OVER_FLOOR, OF_COPY_PCT = 10.0, 1.5, 1.5, 70.0
_NS_PER_US: Final = 1e3


def kernel_tables(results: Results) -> str:
    """Every benchmark's table, one size and mode after the other."""
    parts = []
    for bench in _benchmarks(results):
        parts.append(
            f"**Predictions {bench['predictions']}, targets {bench['targets']}"
            f"{', no batch in the cache' if bench.get('cold') else ''}** ({bench['device']}; "
            f"copy {bench.get('copy_gb_s') or fmt.NOT_MEASURED} GB/s)\n"
        )
        for size, mode, rows in _groups(bench["rows"]):
            boxes, moved = f"{size[0]:,} x {size[1]} boxes", fmt.size_bytes(rows[0]["bytes_moved"])
            empty = rows[0].get("empty_graph_us"), rows[0]["empty_us"]
            parts.append(f"{boxes}, {mode}: {moved} to move, empty {_us(empty[1])}, as a graph {_us(empty[0])}\n")
            parts.append(_table(rows))
        parts += [f"Not measured: {_failed(failure)}\n" for failure in bench.get("failures", ())]
        if not bench.get("complete", True):
            parts.append("The benchmark was cut off here; what would have followed is not measured.\n")
    return "\n".join(parts) if parts else table([], [])


def required(results: Results) -> str:
    """What is asked of the fused operator, and what it reached."""
    rows = []
    for bench in _benchmarks(results):
        name = f"{bench['predictions']}, {bench['targets']}"
        for size, mode, group in _groups(bench["rows"]):
            fused = next((row for row in group if row["implementation"] == FUSED), None)
            if fused is not None and size == ARTICLE_SIZE and not bench.get("cold"):
                rows += [[name, mode, *line] for line in _at_the_articles_size(fused, group, bench)]
            if fused is not None and size == LARGE_SIZE:
                reached = 100 * _gb_s(fused) / bench["copy_gb_s"] if bench.get("copy_gb_s") else None
                rows.append(
                    [name, mode, "share of copy bandwidth at 65,536 x 256", *_judged(reached, OF_COPY_PCT, "%")]
                )
    return table(["numbers", "mode", "what", "reached", "asked", "holds"], rows)


def counters(results: Results) -> str:
    """What bounds each kernel, by hardware counters; each ran alone, after the caches were emptied."""
    rows = []
    for name, bench in results.benchmarks.items():
        if not name.startswith("counters"):
            continue
        for row in bench["rows"]:
            took, moved = row.get("duration_ns"), row.get("dram_bytes")
            rows.append(
                [
                    f"{row['implementation']}, {row['mode']}",
                    f"{row['batch']:,} x {row['boxes']} {bench['predictions']}",
                    f"`{short_name(row['kernel'])}`",
                    fmt.duration_ns(took) if took is not None else fmt.NOT_MEASURED,
                    fmt.size_bytes(moved) if moved is not None else fmt.NOT_MEASURED,
                    *(fmt.percent(row.get(f"{key}_pct")) for key in ("l2_hit", "occupancy")),
                    *(fmt.percent(row.get(f"{key}_pct_of_peak")) for key in ("dram", "sm")),
                    fmt.count(row.get("registers")),
                    (row.get("stalled_most_on") or fmt.NOT_MEASURED).replace("_", " "),
                ]
            )
    head = ["call", "boxes", "kernel", "alone", "memory moved", "L2 hits", "occupancy", "memory peak", "SM peak"]
    return table([*head, "registers", "warps wait for"], rows)


def capture_cost(results: Results) -> str:
    """What a `Capture` costs a small step while nothing is asked for."""
    bench = results.benchmarks.get("capture")
    if bench is None:
        return f"A capture that nobody asked for: {table([], [])}"
    low, high = bench["with"]["quartiles"]
    row = [
        fmt.duration_ns(bench["step_ns"]),
        f"{bench['with']['ratio']:.4f} ({low:.4f} to {high:.4f})",
        fmt.duration_ns(bench["call_ns"]),
        f"{100 * bench['call_over_step']:.3f} %",
    ]
    head = ["small step", "with / without (quartiles)", "call alone", "call / step"]
    return f"A capture that nobody asked for:\n\n{table(head, [row])}"


def _benchmarks(results: Results) -> Iterator[Bench]:
    yield from (bench for name, bench in results.benchmarks.items() if name.startswith("giou"))


def _failed(failure: Mapping[str, Any]) -> str:
    """What failed, as far as it has a name, and the message."""
    what = [failure["implementation"], f"{failure['batch']:,} x {failure['boxes']} boxes", failure["mode"]]
    return f"{', '.join(part for part in what if part)}: {failure['message']}"


def _groups(rows: Sequence[Row]) -> Iterator[tuple[tuple[int, int], str, list[Row]]]:
    for key in dict.fromkeys((row["batch"], row["boxes"], row["mode"]) for row in rows):
        yield (key[0], key[1]), key[2], [row for row in rows if (row["batch"], row["boxes"], row["mode"]) == key]


def _table(rows: Sequence[Row]) -> str:
    by_name = {row["implementation"]: row for row in rows}
    lines = []
    for row in rows:
        graph = row.get("graph_us")
        quartiles = "" if graph is None else f" ({_us(row['graph_us_low'])} to {_us(row['graph_us_high'])})"
        lines.append(
            [
                row["implementation"],
                f"{_us(row['us'])} ({_us(row['us_low'])} to {_us(row['us_high'])})",
                f"{_us(graph)}{quartiles}" if graph is not None else row.get("graph_error") or fmt.NOT_MEASURED,
                *(times(_times(by_name.get(other), row)) for other in ("padding", "compiled")),
                f"{_gb_s(row):.1f}",
            ]
        )
    head = ["implementation", "call (quartiles)", "in a graph (quartiles)", "padding / this", "compiled / this", "GB/s"]
    return table(head, lines)


def _at_the_articles_size(fused: Row, group: Sequence[Row], bench: Bench) -> list[list[str]]:
    by_name = {row["implementation"]: row for row in group}
    lines = [
        ["as fast as eager padding", *_judged(_times(by_name.get("padding"), fused), OVER_PADDING, "×")],
        ["as fast as torch.compile", *_judged(_times(by_name.get("compiled"), fused), OVER_COMPILED, "×")],
    ]
    if fused["mode"] != "forward" or not bench.get("copy_gb_s"):
        return lines
    for what, time, empty in (
        ("call", fused["us"], fused["empty_us"]),
        ("in a graph", fused.get("graph_us"), fused.get("empty_graph_us")),
    ):
        floor = None if empty is None else empty + fused["bytes_moved"] / bench["copy_gb_s"] / _NS_PER_US
        over = None if floor is None or time is None else time / floor
        holds = "not judged" if over is None else "yes" if over <= OVER_FLOOR else "no"
        reached = fmt.NOT_MEASURED if over is None else f"{over:.2f}×"
        lines.append([f"{what}, over an empty launch and its bytes", reached, f"at most {OVER_FLOOR:g}×", holds])
    return lines


def _judged(reached: float | None, least: float, unit: str) -> list[str]:
    if reached is None:
        return [fmt.NOT_MEASURED, f"at least {least:g} {unit}", "not judged"]
    return [f"{reached:.3g} {unit}", f"at least {least:g} {unit}", "yes" if reached >= least else "no"]


def _times(other: Row | None, row: Row) -> float | None:
    return None if other is None else other["us"] / row["us"]


def _gb_s(row: Row) -> float:
    """Bytes that have to move over the time in a graph, or of a call where there is no graph."""
    return float(row["bytes_moved"] / ((row.get("graph_us") or row["us"]) * _NS_PER_US))


def _us(value: float | None) -> str:
    return fmt.NOT_MEASURED if value is None else fmt.duration_ns(value * _NS_PER_US)
