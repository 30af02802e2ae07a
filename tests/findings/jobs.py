"""Traces of several ranks with one collective a step, for tests of findings."""

from pathlib import Path

from builders import TraceBuilder
from steptrace.analysis import summarize
from steptrace.documents.summary import Summary
from steptrace.findings import with_trace_findings

US, MS = 1_000, 1_000_000
KERNELS = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
    "all_to_all": "ncclDevKernel_SendRecv(x)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(x)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL(x)",
}
ELEMENTS = 1_000_000


def job(
    folder: Path, comes: list[list[int]], *, transfer: int = 100 * US, collective: str = "allreduce", **fields: object
) -> Summary:
    """Ranks with a collective a step of 10 ms: rank r begins that of step k at `comes[k][r]` ns, all end together.

    `fields` are added to the collectives' own.
    """
    for rank in range(len(comes[0])):
        builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": len(comes[0]), "backend": "nccl"})
        for step, begins in enumerate(comes):
            ts, end = step * 10 * MS, max(begins) + transfer
            builder.step(step, ts, 10 * MS)
            builder.kernel(ts + 10 * US, ts + 20 * US, begins[rank] - 20 * US)
            args = {"Collective name": collective, "Process Group Name": "0", "Group size": len(begins), "Seq": step}
            args |= {"In msg nelems": ELEMENTS, "Out msg nelems": ELEMENTS, "dtype": "BFloat16"}
            args |= fields
            builder.kernel(ts + 12 * US, ts + begins[rank], end - begins[rank], KERNELS[collective], stream=20, **args)
            builder.kernel(ts + 14 * US, ts + end, 10 * MS - end)
        builder.write(folder / f"rank{rank}.json")
    return with_trace_findings(summarize([folder])[0])
