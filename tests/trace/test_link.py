"""A trace's tables: kernel <- launch <- operator <- label, step, frame; backward -> forward; collectives.

And what is computed of a trace once.
"""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from builders import AUTOGRAD, LOADER, MAIN, PINNED_D2H, TraceBuilder, training_step
from steptrace.trace import names as naming
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace, once


def _named(trace: Trace, table: str, row: Any) -> Any:
    return None if pd.isna(row) else getattr(trace, table)["name"].iloc[int(row)]


def _op(trace: Trace, name: str) -> pd.Series:
    rows = trace.ops[trace.ops["name"] == name]
    assert len(rows) == 1
    return rows.iloc[0]


def test_kernel_to_launch_to_op_to_step_and_frame() -> None:
    builder = TraceBuilder()
    training_step(builder, index=4)
    trace = builder.trace()
    kernel = trace.kernels[trace.kernels["name"] == "gemm"].iloc[0]
    launch = trace.launches.iloc[int(kernel["launch"])]
    op = trace.ops.iloc[int(launch["op"])]
    assert (launch["name"], op["name"]) == ("cudaLaunchKernel", "aten::mm")
    assert [row["step"] for row in (kernel, launch, op)] == [0, 0, 0]
    assert _named(trace, "labels", op["label"]) == "forward"
    assert _named(trace, "frames", op["frame"]) == "torch/_tensor.py(5): wrapped"
    assert _named(trace, "frames", trace.frames["parent"].iloc[int(op["frame"])]) == "model.py(10): forward"
    assert trace.steps["index"].tolist() == [4]


def test_one_graph_launch_owns_many_kernels_and_arrows_link_none_of_the_unlinked() -> None:
    builder = TraceBuilder()
    graph = builder.call("cudaGraphLaunch", 100, 50)
    for k in range(3):
        builder.gpu("gemm", 200 + 20 * k, 10, graph)
    builder.gpu("lost", 300, 10, 999_999)
    builder.gpu("none", 320, 10, None)
    builder.gpu("zero", 340, 10, 0)
    builder.call("cudaEventQuery", 10, 1)
    builder.events[-1]["args"]["correlation"] = 0
    for phase, ts in (("s", 0.01), ("f", 0.3)):
        builder.events.append({"ph": phase, "cat": "ac2g", "name": "ac2g", "id": 2, "pid": 1, "tid": MAIN, "ts": ts})
    trace = builder.trace()
    names = [_named(trace, "launches", row) for row in trace.kernels["launch"]]
    assert names == ["cudaGraphLaunch"] * 3 + [None] * 3


def test_launch_goes_by_id_or_by_containment() -> None:
    builder = TraceBuilder()
    outer = builder.op("aten::outer", 0, 100)
    inner = builder.op("aten::inner", 10, 50)
    elsewhere = builder.op("aten::elsewhere", 200, 50)
    for ts, external in ((20, outer), (25, inner), (30, elsewhere), (35, 0), (90, 12345), (150, inner)):
        builder.call("cudaLaunchKernel", ts, 1)
        builder.events[-1]["args"]["External id"] = external
    trace = builder.trace()
    # The id counts if its operator is running then; a stale one gives way to the innermost around the call.
    expected = ["aten::outer", "aten::inner", "aten::inner", "aten::inner", "aten::outer", None]
    assert [_named(trace, "ops", row) for row in trace.launches["op"]] == expected


def test_backward_belongs_to_the_last_forward_with_its_number() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1000)
    builder.op("aten::first", 10, 5, **{"Sequence number": 7, "Fwd thread id": 0})
    builder.op("aten::index", 20, 20, **{"Sequence number": 7, "Fwd thread id": 0})
    builder.op("aten::other", 50, 5, **{"Sequence number": 8, "Fwd thread id": 0})
    numbered = {"Sequence number": 7, "Fwd thread id": 1}
    builder.op("autograd::engine::evaluate_function: IndexBackward0", 100, 80, AUTOGRAD, **numbered)
    builder.op("IndexBackward0", 110, 60, AUTOGRAD, **numbered)
    builder.op("aten::index_put_", 120, 40, AUTOGRAD)
    builder.op("aten::late", 300, 5, **{"Sequence number": 7, "Fwd thread id": 0})
    trace = builder.trace()
    for name in ("autograd::engine::evaluate_function: IndexBackward0", "IndexBackward0", "aten::index_put_"):
        op = _op(trace, name)
        assert _named(trace, "ops", op["forward"]) == "aten::index"
        assert op["backward"]
    assert not _op(trace, "aten::index")["backward"]
    assert pd.isna(_op(trace, "aten::other")["forward"])


def test_steps_reach_to_the_end_of_their_last_kernel() -> None:
    builder = TraceBuilder()
    for index, ts in ((5, 0), (6, 1000)):
        builder.step(index, ts, 900)
    builder.kernel(100, 400, 900)  # launched in step 5, ends in step 6
    builder.kernel(950, 1200, 5000)  # launched between the steps
    builder.kernel(1500, 1600, 10)
    trace = builder.trace()
    steps = trace.steps[["index", "ts", "dur", "host_dur"]].to_numpy().tolist()
    assert steps == [[5, 0, 1300, 900], [6, 1000, 900, 900]]
    assert trace.kernels["step"].tolist() == [0, pd.NA, 1]


def test_steps_are_marks_of_the_host_only_and_once() -> None:
    builder = TraceBuilder()
    builder.step(3, 0, 100)
    builder.step(3, 1, 98, tid=AUTOGRAD)
    builder.add("gpu_user_annotation", "ProfilerStep#3", 50, 100, pid=0, tid=7)
    builder.label("ProfilerStep", 10, 10)
    builder.step(3, 120, 100)  # a second window that numbers alike
    trace = builder.trace()
    assert trace.steps["ts"].tolist() == [0, 120]


def test_training_threads_carry_steps_or_backward() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1000)
    builder.op("aten::mm", 10, 10)
    builder.op("aten::pin_memory", 10, 10, LOADER)
    builder.op("X", 20, 10, AUTOGRAD, **{"Sequence number": 1, "Fwd thread id": 1})
    training = builder.trace().threads.set_index("tid")["training"].to_dict()
    assert training == {str(MAIN): True, str(AUTOGRAD): True, str(LOADER): False}


def test_without_steps_every_working_thread_trains_but_the_pinning_one() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 10, 10)
    builder.op("aten::pin_memory", 10, 10, LOADER)
    name = {"ph": "M", "name": "thread_name", "args": {"name": "thread 7 (pt_data_pin)"}}
    builder.events.append({**name, "pid": 1, "tid": LOADER, "ts": 0})
    training = builder.trace().threads.set_index("tid")["training"].to_dict()
    assert training == {str(MAIN): True, str(LOADER): False}


def test_old_and_amd_spellings() -> None:
    builder = TraceBuilder()
    builder.add("Operator", "aten::mm", 0, 100)
    correlation = builder.call("hipModuleLaunchKernel", 10, 5)
    builder.add("Kernel", "Cijk_Alik", 50, 10, pid=2, tid=0, args={"correlation": correlation})
    builder.call("cuLaunchKernelEx_v12000", 20, 5, category="cuda_driver")
    trace = builder.trace()
    assert trace.kernels[["device", "stream", "launch"]].to_numpy().tolist() == [[2, 0, 0]]
    assert trace.launches["name"].tolist() == ["hipModuleLaunchKernel", "cuLaunchKernelEx"]
    assert trace.launches["op"].tolist() == [0, 0]


def test_blocks_per_multiprocessor_fall_back_to_the_grid() -> None:
    builder = TraceBuilder(deviceProperties=[{"id": 0, "name": "X", "numSms": 10}])
    builder.kernel(0, 10, 5, **{"blocks per SM": 0.25, "grid": [99, 1, 1]})
    builder.kernel(20, 30, 5, grid=[5, 2, 4])
    builder.kernel(40, 50, 5, grid=[5, 2, 4], device=1)
    blocks = builder.trace().kernels["blocks_per_sm"]
    assert blocks[:2].tolist() == [0.25, 4.0]
    assert blocks.isna().tolist() == [False, False, True]


def test_rank_and_metadata() -> None:
    builder = TraceBuilder(
        distributedInfo={"rank": 2, "world_size": 4, "backend": "nccl"},
        deviceProperties=[{"id": 1, "name": "H200", "numSms": 132}],
        baseTimeNanoseconds=10**18,
    )
    builder.kernel(5, 10, 5, device=1)
    trace = builder.trace()
    assert (trace.rank, trace.meta.world_size) == (2, 4)
    assert trace.meta.base_ns == 10**18 + 5
    assert (trace.meta.device_name(1), trace.meta.device_name(0), trace.meta.multiprocessors(1)) == ("H200", None, 132)
    assert trace.devices == [1]
    assert trace.window == (0, 1000)  # the launch lasts longer than the kernel


def test_rank_from_the_file_name_or_none(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.kernel(5, 10, 5)
    assert read_trace(builder.write(tmp_path / "trace.rank12.json.gz")).rank == 12
    assert read_trace(builder.write(tmp_path / "trace.json")).rank is None


def test_memory_events() -> None:
    builder = TraceBuilder()
    builder.op("aten::empty", 0, 10)
    event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": MAIN}
    device = {"Device Type": 1, "Device Id": 0, "Addr": 4096, "Total Reserved": 2048}
    for ts, size, total in ((2, 512, 512), (8, -512, 0)):
        args = device | {"Bytes": size, "Total Allocated": total}
        builder.events.append({**event, "ts": ts / 1000, "args": args})
    memory = builder.trace().memory[["ts", "bytes", "allocated", "reserved", "device"]]
    assert memory.to_numpy().tolist() == [[2, 512, 512, 2048, 0], [8, -512, 0, 2048, 0]]


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ARGS = {
    "Collective name": "_reduce_scatter_base", "Process Group Name": "3", "Process Group Ranks": "[0, 1]",
    "Group size": 2, "Seq": 17, "dtype": "BFloat16", "In msg nelems": 64, "Out msg nelems": "32",
}  # fmt: skip


def test_the_kernel_says_what_it_is() -> None:
    builder = TraceBuilder()
    builder.kernel(10, 20, 30, NCCL, **ARGS)
    builder.kernel(50, 60, 5, "gemm")
    (row,) = builder.trace().collectives.to_dict("records")
    assert row["name"] == "reduce_scatter"  # the description, not the kernel's name
    assert (row["group"], row["group_ranks"], row["group_size"], row["sequence"]) == ("3", "[0, 1]", 2, 17)
    assert (row["dtype"], row["in_elements"], row["out_elements"]) == ("BFloat16", 64, 32)


@pytest.mark.parametrize(
    ("ops", "kernel", "expected"),
    [
        ({"c10d::reduce_scatter_": {}, "record_param_comms": ARGS}, NCCL, ("reduce_scatter", "3", 17)),
        # only names say it
        (
            {"c10d::alltoall_base_": {}},
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)",
            ("all_to_all", None, None),
        ),
    ],
)
def test_the_operators_around_the_launch_say_it(
    ops: dict[str, dict[str, Any]], kernel: str, expected: tuple[str, str | None, int | None]
) -> None:
    builder = TraceBuilder()
    for number, (name, args) in enumerate(ops.items()):
        builder.op(name, 1_000 * number, 90_000, **args)
    builder.kernel(2_000, 20_000, 30, kernel)
    table = builder.trace().collectives[["name", "group", "sequence"]].astype(object)
    assert [tuple(row) for row in table.where(table.notna(), None).to_numpy()] == [expected]


@pytest.mark.parametrize(
    ("name", "collective", "kind"),
    [
        (NCCL, "all_reduce", "comm"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce", "comm"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv", "comm"),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "broadcast", "comm"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "reduce_scatter", "comm"),
        ("rccl_main_kernel_AllGather(x)", "all_gather", "comm"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce", "comm"),
        ("void sglang::one_shot_all_reduce_kernel<float>(x)", "all_reduce", "comm"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16>(x)", "all_reduce", "comm"),
        ("void deep_ep::internode::dispatch<false>(int4*)", "all_to_all", "comm"),
        ("nvshmemi_transfer_rma_nbi", None, "comm"),
        ("void (anonymous namespace)::ncclSymKernel<int>(x)", None, "comm"),
        ("void rcclGenericKernel<1, false>(x)", None, "comm"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel<x>(x)", "all_reduce", "comm"),
        ("void at::native::reduce_kernel<512, 1>(x)", "reduce", "compute"),
        ("void at::native::vectorized_gather_kernel<16, long>(x)", "gather", "compute"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>(x)", None, "compute"),
        ("void MemcpyLikeKernel(x)", None, "compute"),
        ("hipLaunchHelper", None, "compute"),
        ("cuda_sync_free_kernel", None, "compute"),
        ("splitKreduce_kernel", "reduce", "compute"),
    ],
)
def test_kinds_of_kernels_and_the_names_of_their_collectives(name: str, collective: str | None, kind: str) -> None:
    assert naming.collective_name(name) == collective
    builder = TraceBuilder()
    builder.gpu(name, 0, 10, None)
    builder.add("gpu_memcpy", name, 20, 10, pid=0, tid=7, args={"device": 0, "stream": 7})
    assert builder.trace().kernels["kind"].tolist() == [kind, "memory"]


def test_a_trace_without_collectives_has_an_empty_table() -> None:
    builder = TraceBuilder()
    builder.kernel(10, 20, 30, "gemm")
    assert len(builder.trace().collectives) == 0


_CALLS: list[int] = []


def _of_one_kernel() -> Trace:
    builder = TraceBuilder()
    builder.kernel(0, 5, 3)
    return builder.trace()


@once
def _double(trace: Trace, number: int) -> int:
    _CALLS.append(number)
    return 2 * number + len(trace.kernels)


def test_the_same_question_is_computed_once_but_anew_of_a_changed_copy() -> None:
    trace = _of_one_kernel()
    _CALLS.clear()
    assert [_double(trace, 1), _double(trace, 1), _double(trace, 2)] == [3, 3, 5]
    assert _CALLS == [1, 2]
    assert _double(replace(trace, kernels=trace.kernels.iloc[:0]), 1) == 2


def test_a_trace_goes_to_another_process_with_what_was_computed_of_it() -> None:
    trace = _of_one_kernel()
    _CALLS.clear()
    assert _double(trace, 1) == _double(pickle.loads(pickle.dumps(trace)), 1)
    assert _CALLS == [1]


@pytest.mark.parametrize("own_number", [False, True])
@pytest.mark.parametrize(
    ("category", "launch", "inner_launch", "wait", "inner_wait"),
    [
        ("cuda", "cudaLaunchKernel", "cuLaunchKernel", "cudaStreamSynchronize", "cuStreamSynchronize"),
        ("xpu", "urEnqueueKernelLaunch", "zeCommandListAppendLaunchKernel", "urQueueFinish", "zeEventHostSynchronize"),
    ],
)
def test_the_drivers_call_inside_the_runtimes_is_a_part_of_it(
    category: str, launch: str, inner_launch: str, wait: str, inner_wait: str, *, own_number: bool
) -> None:
    builder = TraceBuilder()
    for step in range(3):
        ts = step * 1_000_000
        builder.step(step, ts, 1_000_000)
        outer = builder.call(launch, ts + 10_000, 10_000, category=f"{category}_runtime")
        inner = builder.call(inner_launch, ts + 12_000, 5_000, category=f"{category}_driver")
        if not own_number:
            builder.events[-1]["args"]["correlation"] = outer
        builder.gpu("gemm", ts + 30_000, 500_000, inner if own_number else outer)
        builder.call(wait, ts + 50_000, 490_000, category=f"{category}_runtime")
        builder.call(inner_wait, ts + 51_000, 480_000, category=f"{category}_driver")
    trace = builder.trace()
    assert not trace.meta.records.lost
    assert trace.launches["name"].tolist() == [launch, wait] * 3
    assert trace.kernels["launch"].tolist() == [0, 2, 4]
    assert trace.syncs["kind"].tolist() == [wait] * 3


def test_an_outer_call_without_a_number_gets_that_of_the_inner_one() -> None:
    builder = TraceBuilder()
    builder.call("cudaLaunchKernel", 0, 10_000)
    del builder.events[-1]["args"]["correlation"]
    builder.gpu("gemm", 20_000, 5_000, builder.call("cuLaunchKernel", 2_000, 5_000, category="cuda_driver"))
    trace = builder.trace()
    assert trace.launches["name"].tolist() == ["cudaLaunchKernel"]
    assert trace.kernels["launch"].tolist() == [0]


def test_two_calls_of_one_name_at_the_same_time_are_two() -> None:
    builder = TraceBuilder()
    for k in range(2):
        builder.gpu("gemm", 20_000 + 5_000 * k, 5_000, builder.call("cudaLaunchKernel", 0, 7_000))
    assert builder.trace().kernels["launch"].tolist() == [0, 1]


def test_a_copys_own_wait_is_no_second_sync_and_a_wait_inside_a_launch_is_one() -> None:
    builder = TraceBuilder()
    copy = builder.call("hipMemcpyWithStream", 0, 100_000)
    builder.call("hipStreamSynchronize", 10_000, 80_000)
    builder.gpu(PINNED_D2H, 20_000, 60_000, copy)
    launch = builder.call("hipGraphLaunch", 200_000, 100_000)
    builder.call("hipStreamSynchronize", 210_000, 80_000)
    builder.gpu("gemm", 320_000, 10_000, launch)
    trace = builder.trace()
    assert trace.syncs["ts"].tolist() == [0, 210_000]


def test_calls_that_seem_to_overlap_in_whole_microseconds_are_not_one() -> None:
    builder = TraceBuilder()
    for at, length in ((0, 6_000), (5_000, 1_000), (6_000, 0), (6_000, 3_000)):
        builder.gpu("gemm", 100_000 + at, 1_000, builder.call("cudaLaunchKernel", at, length))
    assert len(builder.trace().launches) == 4
