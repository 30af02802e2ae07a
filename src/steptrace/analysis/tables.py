"""Every table of one trace, group by group, so that a group need not stay in memory for those after it."""

from collections.abc import Iterator

import pandas as pd

from steptrace.analysis import program as flame
from steptrace.analysis.common import annotations, launches, steps
from steptrace.analysis.common.call_tree import call_names, call_tree, device_time_by, kernel_origins
from steptrace.analysis.communication.collectives import collective_times, host_collectives
from steptrace.analysis.critical_path.measure import critical_paths
from steptrace.analysis.idle import idle_by_stream, idle_gaps
from steptrace.analysis.input import input_waits
from steptrace.analysis.kernels.formats import kernel_formats
from steptrace.analysis.kernels.measure import kernel_sequences, kernel_table, kernel_types
from steptrace.analysis.launches import copies, copy_rates, queue_lengths, queues
from steptrace.analysis.optimizer import optimizer_calls
from steptrace.analysis.overview.measure import top_operators
from steptrace.analysis.quality import quality_checks
from steptrace.analysis.syncs import sync_costs, sync_prices, sync_sites
from steptrace.analysis.timeline.measure import timeline
from steptrace.trace.model import Trace
from steptrace.trace.source import SourceLines

Tables = dict[str, pd.DataFrame]


def tables_of(trace: Trace, device: int | None, lines: SourceLines) -> Iterator[Tables]:
    """The tables by name, group by group; each is written to `tables/trace<k>/<name>.parquet`.

    What takes the most memory comes first, while little else is held.

    Args:
        trace: what is in the trace file.
        device: the GPU that tables of one GPU are about; None leaves these out.
        lines: where source lines are read from.
    """
    yield from _of_program(trace, device, lines)
    costs = sync_costs(trace, device, lines)
    sites, whatif = sync_prices(trace, device, costs, sync_sites(trace, device, costs))
    yield {"sync_costs": costs, "sync_sites": sites, **whatif}
    yield critical_paths(trace)
    yield {"quality_checks": quality_checks(trace)}
    yield {"step_times": steps.step_times(trace, device), "temporal": steps.temporal_breakdown(trace)}
    sections = annotations.section_times(trace, device)
    yield {"section_times": sections, "sections": annotations.section_medians(sections, len(trace.steps))}
    yield {"input_waits": input_waits(trace, device), "idle_by_stream": idle_by_stream(trace)}
    lengths, rates = queue_lengths(trace), copy_rates(trace)
    yield {"queue_lengths": lengths, "queues": queues(trace, lengths)}
    yield {"copy_rates": rates, "copies": copies(trace, rates)}
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
    yield {"flame_device": flame.device_flame(trace, tree), "flame_host": flame.host_flame(trace, tree)}
    yield {"sequences": kernel_sequences(trace, tree)}
    tree = tree[["kind"]].copy()
    origins = kernel_origins(trace, tree, lines)
    by_operator = None if device is None else device_time_by(trace, origins, ["op"])
    yield {"call_names": names, "kernel_origins": origins, "top_operators": top_operators(names, by_operator)}
