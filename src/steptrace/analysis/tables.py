"""Every table of one trace, as a function of the trace, and writing them as Parquet files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pandas as pd

from steptrace.analysis.common.call_tree import call_tree, kernel_origins
from steptrace.analysis.common.gpu_time import step_times
from steptrace.analysis.common.labels import label_times
from steptrace.analysis.common.launches import launch_times
from steptrace.analysis.communication.collectives import collective_times
from steptrace.analysis.copies import copies, copy_rates
from steptrace.analysis.critical_path.measure import critical_paths
from steptrace.analysis.idle import idle_by_stream, idle_gaps
from steptrace.analysis.input import input_waits
from steptrace.analysis.kernels.formats import kernel_formats
from steptrace.analysis.kernels.measure import kernel_sequences, kernel_table, kernel_types
from steptrace.analysis.memory.measure import memory_blocks
from steptrace.analysis.overview import top_operators
from steptrace.analysis.program import function_times
from steptrace.analysis.quality import quality_checks
from steptrace.analysis.queues import queue_lengths, queues
from steptrace.analysis.roofline import roofline
from steptrace.analysis.streams import streams, streams_at_once
from steptrace.analysis.syncs import sync_costs, sync_sites
from steptrace.documents.table import write_table
from steptrace.trace.model import Trace, forget
from steptrace.trace.rows import TABLES

#: Tables that are a subject of `TraceSummary`, by its name.
OF_SUBJECTS: Final[Mapping[str, Callable[[Trace], pd.DataFrame]]] = {
    "queues": queues,
    "streams_at_once": streams_at_once,
    "streams": streams,
    "copies": copies,
    "roofline": roofline,
}
#: Tables made of the call tree, which is the largest of all.
OF_CALL_TREE: Final[Mapping[str, Callable[[Trace], pd.DataFrame]]] = {
    "call_tree": call_tree,
    "function_times": function_times,
    "sequences": kernel_sequences,
    "kernel_origins": kernel_origins,
    "top_operators": top_operators,
}
#: Every table by name, but the trace's own and the allocators' memory. A trace remembers what it has computed, so they
#: may be asked for in any order. Without GPU work those of the GPU have no rows.
OF_TRACE: Final[Mapping[str, Callable[[Trace], pd.DataFrame]]] = {
    **OF_CALL_TREE,
    "critical_path": critical_paths,
    "quality_checks": quality_checks,
    "idle_by_stream": idle_by_stream,
    "idle_gaps": idle_gaps,
    "queue_lengths": queue_lengths,
    "copy_rates": copy_rates,
    "collective_times": collective_times,
    "sync_costs": sync_costs,
    "sync_sites": sync_sites,
    "step_times": step_times,
    "input_waits": input_waits,
    "label_times": label_times,
    "kernel_names": kernel_table,
    "kernel_types": kernel_types,
    "kernel_formats": kernel_formats,
    "launch_times": launch_times,
    **OF_SUBJECTS,
}


def write_tables(trace: Trace, folder: Path) -> None:
    """Write every table to `folder/<name>.parquet`."""
    if len(trace.memory):
        write_all({"memory_blocks": memory_blocks(trace)}, folder)
    write_all({name: getattr(trace, name) for name in TABLES}, folder)
    for name, table in OF_TRACE.items():
        if name not in OF_CALL_TREE:
            forget(trace, call_tree)  # what is left needs its memory
        write_all({name: table(trace)}, folder)


def write_all(tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Write tables to `folder/<name>.parquet`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write_table(table, folder / f"{name}.parquet")
