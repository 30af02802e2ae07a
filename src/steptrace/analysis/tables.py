"""Every table of one trace, group by group, so that each group can be freed before the next.

Parquet files are written a slice of rows at a time, so that no long table is ever copied whole.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from steptrace.analysis import program as flame
from steptrace.analysis.common import annotations, gpu_time, launches
from steptrace.analysis.common.call_tree import call_names, call_tree, device_time_by, kernel_origins
from steptrace.analysis.communication.collectives import collective_times, host_collectives
from steptrace.analysis.copies import copies, copy_rates
from steptrace.analysis.critical_path.measure import critical_paths
from steptrace.analysis.gaps_before import gaps_before
from steptrace.analysis.idle import idle_by_stream, idle_gaps
from steptrace.analysis.input import input_waits
from steptrace.analysis.kernels.formats import kernel_formats
from steptrace.analysis.kernels.measure import kernel_sequences, kernel_table, kernel_types
from steptrace.analysis.optimizer import optimizer_calls
from steptrace.analysis.overview import top_operators
from steptrace.analysis.quality import quality_checks
from steptrace.analysis.queues import queue_lengths, queues
from steptrace.analysis.roofline import roofline
from steptrace.analysis.syncs import sync_costs, sync_sites
from steptrace.analysis.timeline.measure import timeline
from steptrace.documents.table import with_version
from steptrace.trace.model import Trace
from steptrace.trace.source import SourceLines

Tables = dict[str, pd.DataFrame]

#: Tables that are a subject of `TraceSummary`, by its name: a function of the trace, and nothing else.
OF_SUBJECTS: Final[Mapping[str, Callable[[Trace], pd.DataFrame]]] = {
    "queues": queues,
    "copies": copies,
    "gaps_before": gaps_before,
    "roofline": roofline,
}


def tables_of(trace: Trace, device: int | None, lines: SourceLines) -> Iterator[Tables]:
    """The tables by name, group by group; each is written to `tables/trace<k>/<name>.parquet`.

    What takes the most memory comes first, while little else is held.

    Args:
        trace: what is in the trace file.
        device: the GPU of the tables about one GPU; None leaves these out.
        lines: the recorded source lines.
    """
    yield from _of_program(trace, device, lines)
    costs = sync_costs(trace, device, lines)
    yield {"sync_costs": costs, "sync_sites": sync_sites(trace, device, costs)}
    yield critical_paths(trace)
    yield {"quality_checks": quality_checks(trace)}
    yield {"step_times": gpu_time.step_times(trace, device), "temporal": gpu_time.temporal_breakdown(trace)}
    sections = annotations.section_times(trace, device)
    yield {"section_times": sections, "sections": annotations.section_medians(sections, len(trace.steps))}
    yield {"input_waits": input_waits(trace, device), "idle_by_stream": idle_by_stream(trace)}
    yield {"queue_lengths": queue_lengths(trace), "copy_rates": copy_rates(trace)}
    yield {name: table(trace) for name, table in OF_SUBJECTS.items()}
    if len(of_host := host_collectives(trace)):
        yield {"host_collectives": of_host}
    gaps = None
    if device is not None:
        gaps = idle_gaps(trace, device)
        yield {"idle_gaps": gaps}
        yield {"kernel_names": kernel_table(trace, device), "kernel_types": kernel_types(trace, device)}
        yield {"kernel_formats": kernel_formats(trace, device)}
        times = launches.launch_times(trace, device)
        yield {"launch_times": times, "launch_calls": launches.launch_calls(times)}
        yield {"collective_times": collective_times(trace, device)}
    yield {"annotation_times": annotations.annotation_times(trace, device)}
    yield {"optimizer_calls": optimizer_calls(trace, device)}
    yield timeline(trace, device, costs, gaps)


def _of_program(trace: Trace, device: int | None, lines: SourceLines) -> Iterator[Tables]:
    tree = call_tree(trace)
    yield {"call_tree": tree}
    names = call_names(tree)
    tree = tree.drop(columns=["depth", "kernels", "device_ns", "device_self_ns"])  # nothing below asks for them
    yield {"flame_device": flame.device_flame(trace, tree)}
    yield {"flame_host": flame.host_flame(trace, tree)}
    yield {"sequences": kernel_sequences(trace, tree)}
    tree = tree[["kind"]].copy()
    origins = kernel_origins(trace, tree, lines)
    by_operator = None if device is None else device_time_by(trace, origins, ["op"])
    yield {"call_names": names, "kernel_origins": origins, "top_operators": top_operators(names, by_operator)}


#: Rows of a row group.
_ROWS: Final = 1 << 16


def write_all(tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Write tables to `folder/<name>.parquet`, whole numbers as int64, however narrow they are in memory.

    Only texts are dictionary-encoded: for times this would double the cost of writing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        texts = [str(column) for column, dtype in table.dtypes.items() if dtype.kind not in "iufb"]
        first = _wide(table if len(table) <= _ROWS else _telling(table, texts))
        whole = pa.Table.from_pandas(first, preserve_index=False)
        schema = whole.schema.with_metadata(with_version(whole.schema.metadata))
        with pq.ParquetWriter(folder / f"{name}.parquet", schema, use_dictionary=texts) as file:
            slices = (table.iloc[begin : begin + _ROWS] for begin in range(0, len(table), _ROWS))
            for part in [whole] if len(table) <= _ROWS else (_arrow(rows, schema) for rows in slices):
                file.write_table(part)


def _telling(table: pd.DataFrame, texts: list[str]) -> pd.DataFrame:
    """A few rows to infer the types from: the first row, and each text column's first row with a value."""
    return table.iloc[sorted({0, *(int(table[name].notna().to_numpy().argmax()) for name in texts)})]


def _arrow(rows: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    """Rows of a table with the types of a schema."""
    columns = zip(rows.items(), schema, strict=True)
    return pa.Table.from_arrays(
        [pa.array(column, type=field.type, from_pandas=True) for (_, column), field in columns], schema=schema
    )


def _wide(rows: pd.DataFrame) -> pd.DataFrame:
    narrow: list[tuple[str, Any]] = [
        (str(name), np.int64 if isinstance(dtype, np.dtype) else "Int64")
        for name, dtype in rows.dtypes.items()
        if dtype.kind == "i" and dtype.itemsize < 8
    ]
    return rows.assign(**{name: rows[name].astype(dtype) for name, dtype in narrow}) if narrow else rows
