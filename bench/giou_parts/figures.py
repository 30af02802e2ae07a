"""The figures of bench/giou.py: rows and failures, their table, their file."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from giou_parts.losses import Batch, Loss, bytes_moved
from giou_parts.timing import microseconds


@dataclass(frozen=True)
class Row:
    """One line of the table. Times in microseconds; null where nothing was measured."""

    batch: int
    boxes: int
    mode: str
    implementation: str
    us: float
    us_low: float
    us_high: float
    us_fastest: float
    samples: int
    graph_us: float | None
    graph_us_low: float | None
    graph_us_high: float | None
    graph_error: str | None
    batches: int
    cold: bool | None
    bytes_moved: int
    copy_us: float
    empty_us: float
    copy_graph_us: float | None
    empty_graph_us: float | None
    over_floor: float
    padding_over_this: float | None
    operators: int | None
    loss: float
    loss_minus_fused: float | None


@dataclass(frozen=True)
class Failure:
    """What could not be measured; without a name it is the whole size that failed, without a mode both modes."""

    batch: int
    boxes: int
    mode: str | None
    implementation: str | None
    message: str


@dataclass
class Results:
    """What there is so far."""

    rows: list[Row] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class Sized:
    """The batches of one size, and the implementations that gave the right loss there."""

    batches: list[Batch]
    runs: dict[str, Loss]
    losses: dict[str, float]
    operators: dict[str, int | None]


Samples = dict[str, list[float] | str]


def rows_of(
    mode: str, sized: Sized, samples: Mapping[str, list[float]], graphs: Samples, cache: int | None
) -> list[Row]:
    """The figures of one size and mode; `cache` bytes must be passed by for a batch to be cold."""
    times = {name: microseconds(values) for name, values in samples.items()}
    graph = {name: microseconds(values) for name, values in graphs.items() if not isinstance(values, str)}
    batches = sized.batches
    losses = sized.losses
    moved = bytes_moved(batches[0], mode)
    empties = 1 if mode == "forward" else 2
    copy = times.pop("(copy)")[0]
    empty = times.pop("(empty)")[0] * empties
    unknown = (None, None, None)
    empty_graph = graph.get("(empty)", unknown)[0]
    rows = []
    for name, (us, low, high) in times.items():
        error = graphs.get(name)
        graph_us, graph_low, graph_high = graph.get(name, unknown)
        rows.append(
            Row(
                batch=len(batches[0].rows),
                boxes=batches[0].predictions.shape[1],
                mode=mode,
                implementation=name,
                us=us,
                us_low=low,
                us_high=high,
                us_fastest=1e6 * min(samples[name]),
                samples=len(samples[name]),
                graph_us=graph_us,
                graph_us_low=graph_low,
                graph_us_high=graph_high,
                graph_error=error if isinstance(error, str) else None,
                batches=len(batches),
                cold=None if cache is None else (len(batches) - 1) * moved >= 2 * cache,
                bytes_moved=moved,
                copy_us=copy,
                empty_us=empty,
                copy_graph_us=graph.get("(copy)", unknown)[0],
                empty_graph_us=None if empty_graph is None else empty_graph * empties,
                over_floor=us / max(copy, empty),
                padding_over_this=times["padding"][0] / us if "padding" in times else None,
                operators=sized.operators[name] if mode == "forward" else None,
                loss=losses[name],
                loss_minus_fused=losses[name] - losses["fused"] if "fused" in losses else None,
            )
        )
    return rows


def show(rows: list[Row]) -> None:
    """Print the rows of one size and mode as a table."""
    first = rows[0]
    print(
        f"\n{first.batch} x {first.boxes} boxes, {first.mode}: {first.bytes_moved / 1e6:.2f} MB to move, "
        f"copy {first.copy_us:.1f} us ({first.bytes_moved / first.copy_us / 1e3:.1f} GB/s), "
        f"empty {first.empty_us:.1f} us{', the batches fit the cache' if first.cold is False else ''}"
    )
    print(
        f"{'':20}{'us':>12}{'quartiles':>22}{'fastest':>11}{'graph':>11}{'padding/this':>14}{'over floor':>12}"
        f"{'operators':>11}"
    )
    for row in rows:
        quartiles = f"{row.us_low:.1f} .. {row.us_high:.1f}"
        ratio = "" if row.padding_over_this is None else f"{row.padding_over_this:.2f}"
        count = "" if row.operators is None else str(row.operators)
        graph = "" if row.graph_us is None else f"{row.graph_us:.1f}"
        print(
            f"{row.implementation:20}{row.us:12.1f}{quartiles:>22}{row.us_fastest:11.1f}{graph:>11}{ratio:>14}"
            f"{row.over_floor:12.1f}{count:>11}"
        )


def write(file: Path | None, setting: Mapping[str, object], results: Results, *, complete: bool) -> None:
    """Write what there is, in one piece, so that a run that is cut off leaves a whole file."""
    if file is None:
        return
    figures = {"schema_version": 1, **setting, "complete": complete, **asdict(results)}
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".part")
    beside.write_text(json.dumps(figures, indent=1) + "\n")
    beside.replace(file)
