"""Traces of other versions, runtimes and tools: what they call things, and what of them is not read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from builders import AUTOGRAD, MAIN, TraceBuilder
from recorded import case, case_trace
from steptrace.analysis import summarize
from steptrace.analysis.input import input_wait
from steptrace.analysis.overview import busy_pct
from steptrace.analysis.quality import quality
from steptrace.analysis.syncs import syncs
from steptrace.documents.quality import Quality, QualityCheck
from steptrace.errors import TraceError
from steptrace.findings.headline import headline_of
from steptrace.trace import names
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace
from steptrace.trace.read import read_raw
from steptrace.words.notes import note_text
from steptrace.words.quality import warning

MS = 1_000_000
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
OPTIMIZER = "Optimizer.step#SGD.step"


def _check(of: Quality, name: str) -> QualityCheck:
    (check,) = (check_row for check_row in of.checks if check_row.check == name)
    return check


def _loop(steps: int, *, category: str, marks: bool = True, loader: bool = True, optimizers: int = 1) -> TraceBuilder:
    """A training loop of 10 ms a step: 4 ms of waiting for data, 5 ms of GPU work, an optimizer at the end."""
    builder = TraceBuilder()
    old = category == "Operator"
    for step in range(steps):
        ts = step * 10 * MS
        if marks:
            builder.add(category, f"ProfilerStep#{step}", ts, 10 * MS)
        if loader:
            builder.add(category, LOADER, ts + 1_000, 4 * MS)
        builder.add("Operator" if old else "cpu_op", "aten::conv2d", ts + 4_100_000, 100_000)
        builder.add("Operator" if old else "cpu_op", "ConvolutionBackward0", ts + 4_300_000, 100_000, tid=AUTOGRAD)
        correlation = builder.call(
            "cudaLaunchKernel", ts + 4_120_000, 5_000, category="Runtime" if old else "cuda_runtime"
        )
        builder.gpu("conv", ts + 4_200_000, 5 * MS, correlation)
        if old:
            builder.events[-1]["cat"] = "Kernel"
        for k in range(optimizers):
            builder.add(category, OPTIMIZER, ts + 9_000_000 + k * 200_000, 100_000)
    return builder


@pytest.mark.parametrize("category", ["Operator", "cpu_op", "user_annotation"])
def test_labels_are_labels_in_any_category(category: str) -> None:
    trace = _loop(3, category=category).trace()
    assert trace.steps["dur"].tolist() == [10 * MS] * 3
    assert busy_pct(trace) == pytest.approx(50)
    assert input_wait(trace).share == pytest.approx(0.4, abs=0.01)
    assert set(trace.ops["name"]) == {"aten::conv2d", "ConvolutionBackward0"}
    assert trace.ops["backward"].tolist() == [name == "ConvolutionBackward0" for name in trace.ops["name"]]
    assert trace.meta.steps_from == "profiler"


def test_a_label_that_is_written_in_two_categories_counts_once() -> None:
    builder = _loop(3, category="user_annotation")
    builder.events += [event | {"cat": "cpu_op"} for event in builder.events if event["cat"] == "user_annotation"]
    trace = builder.trace()
    assert len(trace.steps) == 3
    assert input_wait(trace).waits == 3


@pytest.mark.parametrize(
    ("name", "backward"),
    [
        ("AddmmBackward", True),
        ("ConvolutionBackward0", True),
        ("autograd::engine::evaluate_function: MulBackward0", True),
        ("torch::autograd::AccumulateGrad", True),
        ("struct torch::autograd::AccumulateGrad", True),
        ("CompiledFunctionBackward", True),
        ("torch::autograd::CopyBackwards", True),
        ("torch::autograd::CopySlices", True),
        ("torch::autograd::CppNode<roi_align>", True),
        ("torch::jit::(anonymous namespace)::DifferentiableGraphBackward", True),
        ("aten::convolution_backward", False),
        ("aten::mm", False),
        ("Backward", False),
        ("BackwardHook", False),
    ],
)
def test_backward_by_name(name: str, *, backward: bool) -> None:
    assert names.is_backward(name) is backward


@pytest.mark.parametrize("category", ["Operator", "user_annotation"])
@pytest.mark.parametrize(
    ("loader", "optimizers", "source", "steps"),
    [(True, 1, "optimizer", 4), (False, 1, "optimizer", 3), (True, 2, "optimizer", 4), (True, 0, "loader", 3)],
)
def test_steps_without_marks_are_those_of_pytorchs_own_labels(
    category: str, source: str, steps: int, optimizers: int, *, loader: bool
) -> None:
    trace = _loop(4, category=category, marks=False, loader=loader, optimizers=optimizers).trace()
    assert trace.meta.steps_from == source
    assert trace.steps["index"].tolist() == list(range(steps))
    assert (trace.steps["host_dur"].iloc[1:] == 10 * MS).all()
    check = _check(quality(trace), "steps_marked")
    assert (check.wrong, check.warns) == (1, True)
    assert quality(trace).steps_from == source


def test_one_label_alone_makes_no_step() -> None:
    trace = _loop(1, category="user_annotation", marks=False, loader=False).trace()
    assert (len(trace.steps), trace.meta.steps_from) == (0, None)


def test_ids_as_the_first_versions_wrote_them() -> None:
    builder = TraceBuilder()
    outer = builder.add("Operator", "aten::outer", 0, 100)
    outer["args"] = {"external id": 7}
    builder.add("Operator", "aten::inner", 10, 20)
    call = builder.add("Runtime", "cudaLaunchKernel", 12, 5)
    call["args"] = {"external id": 7, "correlation": 3}
    builder.gpu("k", 50, 9, 3)
    trace = builder.trace()
    assert trace.launches["external_id"].tolist() == [7]
    assert trace.ops["name"].iloc[int(trace.launches["op"].iloc[0])] == "aten::outer"


_COMMUNICATION = [
    "void dpsk::ep::internode::dispatch<false, 8, false, 8>(int4*, float*)",
    "void deep_ep::intranode::combine<__nv_bfloat16, 8>(int4*, float*)",
    "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*)",
    "deep_ep::intranode::cached_notify_combine<8>(void**, int*)",
    "void uccl::internode::combine<8>(int4*)",
    "void mori::moe::EpDispatchIntraNodeKernel<float>(float*)",
    "mori::moe::EpCombineInterNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs<hip_bfloat16>)",
    "void pplx::dispatchSendKernel<2>(int*)",
    "void pplx_kernels::a2a::combineRecvKernel<float>(float*)",
    "void tensorrt_llm::kernels::moe_alltoall::moeA2ADispatchKernel<1>(int*)",
    "void tensorrt_llm::kernels::moe_comm::moeAllToAllKernel(int)",
    "mooncake::ep::dispatch<1>(int*)",
    "oneccl_allreduce_ring_kernel",
    "void ccl::v1::reduce_copy<float>(float*)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<float>(float*)",
    "void vllm::cross_device_reduce_1stage<float,8>(float*)",
    "void ck_tile::quick_reduce::allreduce_prototype_twoshot<float>(float*)",
    "void mscclpp::allreduce_kernel<float>(float*)",
    "ncclSymDevKernel_AllReduce_AGxLL_R_sum(float)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "void nvshmemi_transfer<int>(int*)",
    "void c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**)",
    "barrier_kernel(unsigned int**, unsigned int, int)",
    "wait_signal_kernel(unsigned int**, int)",
    "MoeDistributeDispatch",
    "void hybrid_ep::dispatch_kernel<8>(int*)",
    "void bytedance::flux::cudaipc_barrier_all_kernel<8>(int*)",
    "void peer_memory::push_pull_halos_1d_kernel<float>(float*)",
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<2>(int)",
    "kernel_all2all_push",
    "deepep::dispatch_kernel",
    "ishmem_allgather_kernel",
    "cnclKernel_ring",
    "symm_mem_one_shot_copy",
    "barrier_all_intra_node_kernel",
    "void nccl::ep::dispatch<8>(int*)",
    "HcclSend",
    "hcom_broadcast__123_1",
    "mcclKernel_Broadcast_RING_LL",
    "iris::put<float>(float*)",
    "gin_put_kernel",
    "ucp_put_nbx_kernel",
    "DispatchFFNCombine",
    "_iris_all_scatter",
    "moonep_dispatch",
    "void moonep::combine<16>(int*)",
    "void custom_ar::one_stage<__nv_bfloat16, 4>(custom_ar::RankData*)",
    "cross_device_reduce_2stage",
    "gdr_copy_kernel",
    "void tensorrt_llm::kernels::fusedMoeCommKernel(tensorrt_llm::kernels::FusedMoeFieldInfo)",
    "void tensorrt_llm::kernels::lowPrecisionTwoShotHierKernel<half, 8>(int)",
    "void barrier_on_stream_kernel_threadgroup<(threadgroup_t)2>(int)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(Pattern)1, half>(Params<half>)",
    "void c10d::nvshmem_extension::allToAllV(void*, void*)",
    "HybridEPIntraNodeSend",
    "void intra_node_a2a<float>(float const*, float**)",
    "copy_and_barrier_all_intra_node_kernel",
    "allreduce_one_shot_push_intra_node_kernel",
]
_COMPUTE = [
    "triton_red_fused_add_all_reduce_wait_tensor_3",
    "triton_poi_fused__to_copy_all_gather_into_tensor_0",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64>>(Flash_fwd_params)",
    "void cub::DispatchReduce<float>::kernel(float*)",
    "void at::native::(anonymous namespace)::dispatch_elementwise<float>(float*)",
    "cutlass::Kernel2<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<dispatch>>(Params)",
    "void keep::mask<float>(float*)",
    "void step::update(float*)",
    "_fwd_kernel_ep_scatter_1",
    "moe_permute_kernel",
    "occlusion_kernel",
    "origin_put",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
    "triton_poi_fused_add_a2ab3_0",
    "void combine_heads_kernel(float*)",
    "gemm",
    "void tensorrt_llm::kernels::reduce_fusion::rms_norm_kernel<half, false>(tensorrt_llm::kernels::AllReduceParams)",
    "block_all_reduce_sum_f32_f32_kernel(float*, float*, int)",
    "void softmax_warp_all_reduce<float>(float*)",
    "internodes_edges_kernel",
    "intra_node_sort",
    "void graph::intra_node_attention<float>(float*)",
    "inter_node_feats_kernel",
    "TreeIntraNodeScan",
    "void vllm::moe_dispatch_kernel<half, int>(half*)",
    "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<16>>, 5, float>>(Params)",
    "_moe_combine_kernel",
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)",
    "_step_combine_kernel",
    "prep_dispatch_kernel",
    "void iris_detector_conv(int)",
    "barrier_free_scan_kernel",
]


@pytest.mark.parametrize("name", [*_COMMUNICATION, *_COMPUTE])
def test_communication_by_the_form_of_a_kernels_name(name: str) -> None:
    assert names.is_collective_kernel(name) is (name in _COMMUNICATION)


def test_a_negative_device_is_no_gpu_beside_a_real_one() -> None:
    builder = TraceBuilder()
    for at in range(0, 60_000, 20_000):
        builder.kernel(at, at + 2_000, 1_000)
    copy = builder.call("cudaMemcpyAsync", 5_000, 500)
    builder.gpu("Memcpy DtoH (Device -> Pinned)", 6_000, 500, copy, device=-1)  # launched: of the only GPU
    builder.gpu("Memset (Unknown)", 6_000, 50_000, None, device=-1)  # nobody launched it
    trace = builder.trace()
    assert (trace.devices, trace.device, len(trace.kernels)) == ([0], 0, 4)
    assert [note.figures["events"] for note in trace.meta.notes if note.code == "impossible_events"] == [1]
    builder.kernel(70_000, 72_000, 1_000, device=1)
    assert len(builder.trace().kernels) == 4
    alone = TraceBuilder()
    alone.kernel(0, 2_000, 1_000, device=-1)
    assert alone.trace().device == -1


def test_a_kernel_that_pytorch_describes_as_a_collective_is_one() -> None:
    builder = TraceBuilder()
    builder.kernel(0, 2_000, 1_000, name="new_library_kernel", **{"Collective name": "all_reduce"})
    builder.kernel(5_000, 7_000, 1_000, name="other")
    assert builder.trace().kernels["kind"].tolist() == ["comm", "compute"]


@pytest.mark.parametrize(
    ("ranks", "name", "warns"), [(8, "gemm", True), (8, "ncclDevKernel_AllReduce", False), (1, "gemm", None)]
)
def test_a_job_of_many_ranks_without_communication_is_a_warning(ranks: int, name: str, *, warns: bool | None) -> None:
    builder = TraceBuilder(distributedInfo={"rank": 0, "world_size": ranks})
    builder.kernel(0, 2_000, 1_000, name=name)
    builder.kernel(4_000, 6_000, 1_000)
    checks = [check.warns for check in quality(builder.trace()).checks if check.check == "communication"]
    assert checks == ([] if warns is None else [warns])


def _other_runtime(category: str, launch: str, wait: str | None, **args: Any) -> TraceBuilder:
    builder = TraceBuilder()
    for step in range(3):
        ts = step * 10 * MS
        builder.step(step, ts, 10 * MS)
        for k in range(2):
            correlation = builder.call(launch, ts + k * MS, 5_000, category=category)
            builder.gpu("gemm", ts + k * MS + 50_000, 600_000, correlation)
            event = builder.events[-1]
            event["args"] = {key: value for key, value in event["args"].items() if key != "stream"} | args
        if wait:
            builder.call(wait, ts + 5 * MS, 900_000, category=category)
    return builder


@pytest.mark.parametrize(
    ("category", "launch", "wait", "scope"),
    [
        ("xpu_runtime", "urEnqueueKernelLaunch", "urQueueFinish", "stream"),
        ("xpu_runtime", "urEnqueueKernelLaunch", "urEventWait", "event"),
        ("xpu_driver", "zeCommandListAppendLaunchKernel", "zeCommandQueueSynchronize", "stream"),
        ("xpu_driver", "zeCommandListAppendLaunchKernel", "zeEventHostSynchronize", "event"),
        ("privateuse1_runtime", "AscendCL@aclrtLaunchKernel", "AscendCL@aclrtSynchronizeStreamWithTimeout", "stream"),
        ("privateuse1_driver", "aclrtLaunchKernel", "aclrtSynchronizeDevice", "device"),
        ("musa_runtime", "musaLaunchKernel", "musaStreamSynchronize", "stream"),
        ("mlu_runtime", "cnrtInvokeKernel", "cnrtQueueSync", "stream"),
        ("mtia_runtime", "mtiaLaunchKernel", "mtiaDeviceSynchronize", "device"),
        ("cuda_driver", "cuLaunchKernelEx", "cuCtxSynchronize", "device"),
        ("Runtime", "cudaLaunchKernel", "cudaEventSynchronize", "event"),
    ],
)
def test_other_runtimes_are_read_by_their_ending(category: str, launch: str, wait: str, scope: str) -> None:
    assert (names.launch_kind(launch), names.wait_scope(wait)) == ("kernel", scope)
    entry = _other_runtime(category, launch, wait, **{"sycl queue": 64}).summary()
    assert entry.quality.launch_coverage == 1
    assert (entry.syncs.per_step, entry.syncs.count) == (1, 3)
    assert entry.launches is not None
    assert entry.launches.count == 6
    assert not any("left out" in warning for warning in entry.quality.warnings)


@pytest.mark.parametrize(
    "name",
    [
        "urEnqueueEventsWait", "urEnqueueEventsWaitWithBarrier", "piEnqueueEventsWait", "cudaStreamWaitEvent",
        "cudaEventQuery", "zeCommandListAppendWaitOnEvents", "aclrtStreamWaitEvent", "zeCommandListAppendBarrier",
        "cudaLaunchKernel", "cudaEventRecord",
    ],
)  # fmt: skip
def test_calls_that_only_the_device_waits_in_are_no_syncs(name: str) -> None:
    assert names.wait_scope(name) is None


def test_a_queue_is_a_stream() -> None:
    builder = _other_runtime("xpu_runtime", "urEnqueueKernelLaunch", None)
    kernels = [event for event in builder.events if event["cat"] == "kernel"]
    for k, kernel in enumerate(kernels):
        kernel["args"]["sycl queue"] = 64 + k % 2
    assert builder.trace().kernels["stream"].tolist() == [64, 65] * 3


@pytest.mark.parametrize("category", ["mtia_runtime", "privateuse1_runtime", "hpu_driver"])
def test_syncs_of_a_runtime_whose_calls_are_not_known_are_not_measured(category: str) -> None:
    entry = _other_runtime(category, "launch", None).summary()
    assert (entry.syncs.count, entry.syncs.per_step, entry.syncs.by_step, entry.syncs.blocked_ns) == (None,) * 4
    check = _check(entry.quality, "waiting_calls")
    assert check.warns
    assert category.split("_")[0] in check.says


def test_gpu_work_without_any_call_leaves_syncs_unmeasured() -> None:
    builder = _other_runtime("cuda_runtime", "cudaLaunchKernel", None)
    builder.events = [event for event in builder.events if event["cat"] != "cuda_runtime"]
    assert builder.summary().syncs.count is None


@pytest.mark.parametrize(
    ("category", "module"),
    [("xpu_runtime", "torch.xpu"), ("mtia_runtime", "torch.mtia"), ("cuda_runtime", "torch.cuda"),
     ("privateuse1_runtime", "torch.accelerator")],
)  # fmt: skip
def test_remedies_name_the_device(category: str, module: str) -> None:
    builder = _other_runtime(category, "xLaunchKernel", None)
    for k in range(4):
        builder.call("xLaunchKernel", 28 * MS + k, 1, category=category)
    (warning,) = (text for text in quality(builder.trace()).warnings if "launches have no GPU activity" in text)
    assert f"{module}.synchronize()" in warning


def _events(*phases: str, category: str = "cpu_op") -> list[dict[str, Any]]:
    return [
        {"ph": phase, "cat": category, "name": "a", "pid": 1, "tid": 1, "ts": k, "id": 1}
        for k, phase in enumerate(phases)
    ]


@pytest.mark.parametrize(
    ("events", "named"),
    [
        (_events("B", "E"), ["phases B and E", "cpu_op"]),
        (_events("b", "n", "e", category="horovod"), ["phases b, e and n", "horovod"]),
        (_events("X", "X", category="Compute"), ["2 events", "Compute"]),
        (_events("S", "F", category=""), ["phases F and S"]),
        ([{"ph": "X", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}], ["1 event", "without a category"]),
    ],
)
def test_what_was_not_read_is_named(tmp_path: Path, events: list[dict[str, Any]], named: list[str]) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(TraceError) as error:
        read_raw(path)
    assert all(text in error.value.what for text in named)
    assert "schedule" not in str(error.value)
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    path.write_text(json.dumps({"traceEvents": [operator, *events]}))
    notes = read_raw(path).notes
    assert any(all(text in note_text(note) for text in named) for note in notes)


def test_metadata_arrows_and_counters_are_not_missed(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.kernel(0, 2_000, 1_000)
    builder.events += [{"ph": phase, "name": "x", "pid": 1, "tid": MAIN, "ts": 1} for phase in "MsftCiIP"]
    assert read_raw(builder.write(tmp_path / "trace.json")).notes == []


def test_public_reports() -> None:
    for file in ("trace.json", "same_with_todays_categories.json"):
        (entry,) = summarize([case("old_operator_labels", file)])[0].traces
        assert [step.dur_ns for step in entry.steps] == pytest.approx([100 * MS] * 3, rel=0.01)
        assert entry.gpu_busy_pct == pytest.approx(57, abs=1)
        assert entry.input.share == pytest.approx(0.4, abs=0.01)
        assert entry.training
    assert set(case_trace("expert_parallel_names").kernels["kind"]) == {"comm"}
    xpu = case_trace("xpu_runtime")
    assert xpu.kernels["launch"].notna().all()
    assert syncs(xpu).per_step == 1
    with pytest.raises(TraceError, match="phases B and E"):
        read_trace(case("begin_end_events"))


@pytest.mark.parametrize("change", [str.lower, str.capitalize])
def test_the_first_versions_categories_in_other_letters(change: Any) -> None:
    builder = _loop(3, category="Operator")
    for event in builder.events:
        event["cat"] = change(event["cat"])
    trace = builder.trace()
    assert trace.steps["dur"].tolist() == [10 * MS] * 3
    assert len(trace.launches) == len(trace.kernels) == 3


@pytest.mark.parametrize(
    ("events", "phases"),
    [
        ([{"ph": "C", "name": "memory", "pid": 1, "ts": 1, "args": {"bytes": 5}}], ["C"]),
        ([{"ph": phase, "cat": "ac2g", "id": 1, "pid": 1, "tid": 1, "ts": 1} for phase in "sf"], ["f", "s"]),
        ([{"ph": "i", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "s": "t"}], ["i"]),
        ([{"ph": phase, "cat": "cpu_op", "id": 1, "pid": 1, "tid": 1, "ts": 1} for phase in "bne"], ["b", "e", "n"]),
        ([{"ph": "P", "cat": "x", "name": "a", "pid": 1, "tid": 1, "ts": 1}], ["P"]),
    ],
)
def test_a_trace_of_events_that_are_not_read_says_which(tmp_path: Path, events: Any, phases: list[str]) -> None:
    path = tmp_path / "trace.json"
    metadata = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}
    path.write_text(json.dumps({"traceEvents": [metadata, *events]}))
    with pytest.raises(TraceError) as error:
        read_raw(path)
    assert all(phase in str(error.value).split("phase")[1] for phase in phases)
    assert "schedule" not in str(error.value)


def test_a_trace_of_the_profiler_before_kineto_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    op = {"name": "aten::mm", "ph": "X", "ts": 1.5, "dur": 20.0, "tid": 1, "pid": "CPU functions", "args": {}}
    arrow = {"name": "aten::mm", "ph": "s", "ts": 1.5, "tid": 1, "pid": "CPU functions", "id": 0, "cat": "cpu_to_cuda"}
    kernel = {"name": "aten::mm", "ph": "X", "ts": 9.0, "dur": 5.0, "tid": 0, "pid": "CUDA functions", "args": {}}
    path.write_text(json.dumps([op, arrow, kernel]))
    with pytest.raises(TraceError, match="use_kineto=False"):
        read_raw(path)


def test_a_complete_event_without_a_length_is_left_out() -> None:
    builder = _loop(3, category="user_annotation")
    del next(event for event in builder.events if event["cat"] == "kernel")["dur"]
    checked = quality(builder.trace())
    assert [(lost.lost, lost.of) for lost in checked.lost] == [(1, 3)]
    assert [note.code for note in checked.notes] == ["impossible_events"]


@pytest.mark.parametrize("write", [hex, str, lambda number: f"0X{number:X}"])
def test_ids_as_texts(write: Any) -> None:
    builder = _loop(3, category="user_annotation")
    for event in builder.events:
        if "correlation" in event["args"]:
            event["args"]["correlation"] = write(event["args"]["correlation"])
    assert builder.trace().kernels["launch"].notna().all()


@pytest.mark.parametrize(
    ("marks", "steps"),
    [
        ([(0, 0, 100), (1, 100, 200), (2, 200, 300), (9, 0, 310)], [(0, 0, 100), (1, 100, 200), (2, 200, 300)]),
        ([(0, 0, 130), (1, 100, 230), (2, 200, 330)], [(0, 0, 100), (1, 100, 200), (2, 200, 330)]),
        ([(5, 0, 100), (2, 1, 101), (6, 100, 200), (3, 101, 201)], [(5, 0, 100), (6, 100, 200)]),
        ([(5, 0, 100), (2, 0, 100)], [(5, 0, 100)]),
    ],
)
def test_steps_of_one_thread_do_not_overlap(marks: list[tuple[int, int, int]], steps: Any) -> None:
    builder = TraceBuilder()
    for number, begin, end in marks:
        builder.step(number, begin * 1_000, (end - begin) * 1_000)
    table = builder.trace().steps
    begins = table["ts"] // 1_000
    lengths = table["host_dur"] // 1_000
    assert list(zip(table["index"], begins, begins + lengths, strict=True)) == steps


@pytest.mark.parametrize(
    ("call", "scope"),
    [
        ("cnrtQueueSync", "stream"),
        ("cnrtSyncDevice", "device"),
        ("synStreamSynchronize", "stream"),
        ("zeCommandListHostSynchronize", "stream"),
        ("cudaEventRecord", None),
        ("cudaStreamSynchronizeLater", None),
    ],
)
def test_calls_that_wait(call: str, scope: str | None) -> None:
    assert names.wait_scope(call) == scope


@pytest.mark.parametrize(
    ("kinds", "name", "counted"),
    [
        ({"copy kind": "DtoH", "src kind": "device", "dst kind": "pageable"}, "Memcpy DtoH (Device -> Pageable)", 1),
        ({"copy kind": "DtoH", "src kind": "device", "dst kind": "pinned"}, "Memcpy DtoH (Device -> Pinned)", 0),
        ({"copy kind": "HtoD", "src kind": "pinned", "dst kind": "device"}, "Memcpy HtoD (Pinned -> Device)", 0),
        ({"copy kind": "DtoD", "src kind": "device_static"}, "Memcpy DtoD (Device Static -> Unknown)", 0),
        ({"copy kind": 9}, "Memcpy 9 (Unknown -> Unknown)", 0),
        ({}, "Memcpy", 0),
    ],
)
def test_a_copys_direction_as_an_argument(kinds: dict[str, Any], name: str, counted: int) -> None:
    """As the CUPTI monitor of PyTorch 2.13 writes copies."""
    builder = TraceBuilder()
    builder.step(0, 0, 10 * MS)
    builder.kernel(0, 2_000, 1_000)
    builder.gpu("Memcpy", 9_000, 500, builder.call("cudaMemcpyAsync", 4_000, 3_000), bytes=4, **kinds)
    builder.kernel(20_000, 30_000, 1_000, name="nccl", **{"Collective name": "all_reduce"})
    builder.add("graph_event_node", "EventRecord", 40_000, 0, pid=0, tid=7)
    trace = builder.trace()
    assert trace.kernels["name"].tolist() == ["gemm", name, "nccl"]
    assert trace.kernels["kind"].tolist() == ["compute", "memory", "comm"]
    assert len(trace.syncs) == counted
    assert trace.meta.notes == ()


def test_allocations_that_are_written_as_complete_events() -> None:
    """As PyTorch's exporter in Python writes them (`use_python_export=True`)."""
    made = []
    for phase in ("i", "X"):
        builder = TraceBuilder()
        builder.kernel(0, 2_000, 1_000)
        event = builder.add("cpu_instant_event", "[memory]", 500, 0)
        event |= {"ph": phase}
        event["args"] = {"Device Type": 1, "Device Id": 0, "Addr": 5, "Bytes": 512, "Total Allocated": 512}
        builder.add("cpu_instant_event", "OutOfMemory", 600, 0)
        made.append(builder.trace().memory)
    assert made[0].to_dict() == made[1].to_dict()
    assert made[0]["bytes"].tolist() == [512]


@pytest.mark.parametrize("begins", [4 * MS, 8 * MS + 700_000])
@pytest.mark.parametrize("steps", [2, 5])
def test_kinds_of_optimizers_that_take_turns_are_of_one_step(begins: int, steps: int) -> None:
    builder = TraceBuilder()
    for step in range(steps):
        ts = step * 10 * MS
        builder.kernel(ts, ts + 20_000, 5 * MS)
        builder.label("Optimizer.step#Muon.step", ts + begins, MS // 5)
        builder.label("Optimizer.step#AdamW.step", ts + 9 * MS, MS // 5)
    trace = builder.trace()
    assert trace.steps["dur"].tolist() == [10 * MS] * (steps - 1)
    assert trace.meta.steps_from == (None if steps < 2 else "optimizer")


def _optimizers_of_one_class(passes: Sequence[str], gaps_us: Sequence[int]) -> Trace:
    """An Adam step every 10 ms behind a backward pass of these nodes; the host goes on after each one's gap."""
    builder = TraceBuilder()
    at = 0
    for nodes, gap in zip(passes, gaps_us, strict=True):
        for number, node in enumerate(nodes):
            name = "torch::autograd::AccumulateGrad" if node == "u" else f"{node.upper()}Backward0"
            builder.op(f"autograd::engine::evaluate_function: {name}", at + (1 + number) * 100_000, 9_000)
        builder.label("Optimizer.step#Adam.step", at + 2 * MS, MS // 5)
        at += 2 * MS + MS // 5 + gap * 1_000
    return builder.trace()


@pytest.mark.parametrize(
    ("passes", "gaps_us", "count", "steps"),
    [
        # A critic's step, and 0.1 ms later the generator's; then comes the next batch.
        (["a", "abc"] * 4, [100, 3_000] * 4, 2, 3),
        # The same with nothing between them that takes longer: a step still has both.
        (["a", "abc"] * 4, [500, 500] * 4, 2, 3),
        (["a", "b", "c"] * 3, [100, 100, 3_000] * 3, 3, 2),
        # One optimizer.
        (["ab"] * 6, [500] * 6, 1, 5),
        # Two or five steps of a critic for each of a generator.
        (["a", "a", "b"] * 3, [500] * 9, 3, 2),
        (["aa", "aa", "aa", "aa", "aa", "ab"] * 3, [100, 100, 100, 100, 100, 3_000] * 3, 6, 2),
        (["aa", "aa", "ab", "aa", "aa", "aa"] * 3, [500] * 18, 6, 2),  # recorded from the middle of a step
        # The generator's pass has all nodes of the critic's, and updates more parameters.
        ([*["au"] * 5, "auu"] * 3, [500] * 18, 6, 2),
        # A loss that is added every sixth step to the parameters' own; a single period; passes without a period.
        (["a", "a", "a", "a", "a", "ab"] * 3, [500] * 18, None, 17),
        (["a", "a", "a", "a", "a", "b"], [500] * 6, None, 5),
        (["a", "b", "a", "c"] * 4, [500] * 16, None, 15),
        (["a", "b", "b", "c", "a", "d"], [500] * 6, None, 5),
        # Too few to see a period.
        (["a", "b", "c"], [500] * 3, None, 2),
    ],
)
def test_optimizers_of_one_class_are_told_apart_by_their_backward_passes(
    passes: list[str], gaps_us: list[int], count: int | None, steps: int
) -> None:
    trace = _optimizers_of_one_class(passes, gaps_us)
    assert trace.meta.steps_from == "optimizer"
    made_of = trace.meta.optimizer_steps
    assert made_of is not None
    assert (made_of.count, len(trace.steps)) == (count, steps)
    if gaps_us[0] == 100:  # a step ends with its last optimizer
        lengths = set(trace.steps["host_dur"])
        assert lengths == {sum(2 * MS + MS // 5 + gap * 1_000 for gap in gaps_us[: count or 1])}
    check = next(check for check in quality(trace).checks if check.check == "steps_marked")
    assert check.figures["optimizer_steps"] == count


def test_a_rare_kind_of_optimizer_ends_no_step() -> None:
    builder = _loop(4, category="user_annotation", marks=False, loader=False)
    builder.label("Optimizer.step#Adam.step", 41 * MS, MS)
    assert builder.trace().steps["host_dur"].tolist() == [10 * MS] * 3


def test_work_of_ascend_that_has_no_category_leaves_syncs_unmeasured(tmp_path: Path) -> None:
    """As torch_npu writes its `trace_view.json`."""
    events: list[dict[str, Any]] = []
    for step in range(3):
        at = 1712345678901234 + step * 10_000
        where = {"ph": "X", "pid": 1, "tid": 1}
        events += [
            where | {"name": f"ProfilerStep#{step}", "cat": "cpu_op", "ts": f"{at}.500", "dur": 9990.0},
            where | {"name": "Enqueue@aclnnMatmul", "cat": "enqueue", "ts": f"{at + 100}.000", "dur": 5.0},
            where | {"name": "AscendCL@aclrtSynchronizeStream", "ts": f"{at + 200}.000", "dur": 900.0},
            where | {"name": "MatMulV2", "pid": 3, "tid": 7, "ts": f"{at + 150}.000", "dur": 900.0},
        ]
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(events))
    entry = summarize([path])[0].traces[0]
    assert [step.dur_ns for step in entry.steps] == [9_990_000] * 3
    assert (entry.syncs.count, entry.gpu_busy_pct, entry.device_module) == (None, None, "torch.npu")
    assert _check(entry.quality, "waiting_calls").figures["unknown"] == ["npu"]
    assert headline_of(entry).unread_runtimes == ("npu",)


@pytest.mark.parametrize(
    ("stream", "category", "runtimes"),
    [
        ("Stream 2", None, {"npu"}),
        ("stream 2", None, set()),
        ("Stream 2", "kernel", set()),
    ],
)
def test_ascend_is_known_by_its_streams(tmp_path: Path, stream: str, category: str | None, runtimes: set[str]) -> None:
    """As torch_npu writes a trace without its queue of tasks: no category tells it from others."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 3, "tid": 7, "args": {"name": stream}},
        {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": "10.500", "dur": 90.0},
        {"ph": "X", "name": "MatMulV2", "pid": 3, "tid": 7, "ts": "20.000", "dur": 500.0}
        | ({"cat": category} if category else {}),
    ]
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(events))
    entry = summarize([path])[0].traces[0]
    checks = [check for check in entry.quality.checks if check.check == "waiting_calls"]
    assert {name for check in checks for name in check.figures["unknown"]} == runtimes
    if runtimes:
        assert (entry.syncs.count, entry.gpu_busy_pct, entry.device_module) == (None, None, "torch.npu")


def _with_collective(process: int, thread: int) -> Trace:
    """Three steps with a kernel and an event of the category `collective_comm`."""
    builder = TraceBuilder()
    for index in range(3):
        at = index * 10 * MS
        builder.step(index, at, 9 * MS)
        builder.op("c10d::allreduce_", at + MS, MS)
        builder.kernel(at + MS, at + 2 * MS, 3 * MS, "MatMulV2")
        event = {"ph": "X", "cat": "collective_comm", "name": "sum", "pid": process, "tid": thread}
        builder.events.append({**event, "ts": (at + 5 * MS) / 1_000, "dur": 2_000, "args": {"streamId": 5}})
    return builder.trace()


def test_the_devices_collectives_are_communication_whatever_their_names() -> None:
    """As torch_npu writes them with Kineto: a category of its own, and `streamId`."""
    kernels = _with_collective(0, 9).kernels
    found = kernels[kernels["kind"] == "comm"]
    assert (len(kernels), found["dur"].tolist(), set(found["stream"])) == (6, [2 * MS] * 3, {5})
    assert set(kernels["category"]) == {"kernel"}


def test_the_hosts_calls_of_collectives_are_no_work_of_the_device() -> None:
    """oneCCL's events of that category lie on the thread that makes the call."""
    trace = _with_collective(1, MAIN)
    assert (trace.kernels["kind"].tolist(), trace.meta.notes) == (["compute"] * 3, ())


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_copies_without_their_work_are_noticed(lost: int) -> None:
    builder = TraceBuilder()
    for k in range(3):
        builder.kernel(k * MS, k * MS + 2_000, 1_000)
        correlation = builder.call("cudaMemcpyAsync", k * MS + 5_000, 1_000)
        if k >= lost:
            builder.gpu("Memcpy HtoD (Pinned -> Device)", k * MS + 7_000, 500, correlation)
    check = _check(quality(builder.trace()), "copies_with_work")
    assert (check.wrong, check.of, check.warns) == (lost, 3, lost > 0)


def test_copies_that_a_graph_captures_leave_no_record() -> None:
    builder = TraceBuilder()
    builder.call("cudaStreamBeginCapture", 0, 1_000)
    builder.call("cudaMemcpyAsync", 2_000, 1_000)
    builder.call("cudaStreamEndCapture", 4_000, 1_000)
    builder.kernel(8_000, 10_000, 1_000)
    builder.kernel(18_000, 20_000, 1_000)
    assert not [check for check in quality(builder.trace()).checks if check.check == "copies_with_work"]


@pytest.mark.parametrize("wrong", [1.5, "3,5", "about 3", None])
def test_times_that_cannot_be_read_are_not_blamed_on_the_schedule(tmp_path: Path, wrong: Any) -> None:
    builder = _loop(3, category="user_annotation")
    path = builder.write(tmp_path / "trace.json")
    assert read_raw(path)
    for event in builder.events:
        event |= {"ts": f"{event['ts']:.1f}".replace(".", ",") if isinstance(wrong, float) else wrong}
    with pytest.raises(TraceError, match="microseconds") as error:
        read_raw(builder.write(path))
    assert "schedule" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("CopyDeviceToHost", "DtoH"),
        ("CopyDeviceToDevice", "DtoD"),
        ("MEMORY_COPY_HOST_TO_DEVICE", "HtoD"),
        ("MEMORY_COPY_DEVICE_TO_HOST", "DtoH"),
        ("Memcpy HtoH (Pageable -> Pinned)", "HtoH"),
        ("Memcpy", None),
    ],
)
def test_directions_of_copies_by_name(name: str, direction: str | None) -> None:
    assert names.copy_direction(name) == direction


def test_work_in_a_category_that_is_not_read_is_not_blamed_on_the_profiler() -> None:
    builder = TraceBuilder()
    for k in range(5):
        builder.kernel(k * 1_000, k * 1_000 + 2_000, 900)
    for event in builder.events:
        if event["cat"] == "kernel":
            event["cat"] = "concurrent_kernel"
    (check,) = (c for c in builder.summary().quality.checks if c.check == "kernel_launches_with_work")
    assert (check.wrong, check.figures["unread"]) == (5, 5)
    assert "not read" in warning(check)
    assert "profile again" not in warning(check)


@pytest.mark.parametrize("category", ["hpu_op", "cuda_runtime,async", "foo"])
def test_events_that_were_not_read_leave_syncs_unmeasured(category: str) -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 1_000)
    builder.add(category, "synchronize", 100, 500)
    syncs = builder.summary().syncs
    assert (syncs.count, syncs.per_step) == (None, None)


@pytest.mark.parametrize("lost", ["calls", "correlations"])
def test_operators_without_a_known_launch_are_not_placed_on_the_host(lost: str) -> None:
    builder = TraceBuilder()
    for step in range(3):
        builder.step(step, step * MS, MS)
        for k in range(4):
            ts = step * MS + k * 200_000
            builder.op("aten::mm", ts, 190_000)
            builder.kernel(ts + 5_000, ts + 100_000, 80_000)
    if lost == "calls":
        builder.events = [event for event in builder.events if event["cat"] != "cuda_runtime"]
    for event in builder.events:
        if event["cat"] == "kernel":
            event["args"].pop("correlation")
    entry = builder.summary()
    assert not entry.placement
    assert "operators_on_host" not in {found.rule for found in entry.findings}
    assert entry.gpu.busy_ns == 12 * 80_000


@pytest.mark.parametrize(
    ("gpu", "stream"), [("GPU {}", "stream {}"), ("Device {}", "Stream #{}"), ("GPU {} (a)", "{} (b)")]
)
def test_a_gpu_and_its_stream_may_be_named_by_process_and_thread(gpu: str, stream: str) -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000_000)
    for device in (0, 1):
        for lane in (7, 20):
            correlation = builder.call("cudaLaunchKernel", 10_000 * (lane + device), 1_000)
            builder.gpu("gemm", 300_000, 100_000, correlation, stream=lane, device=device)
            builder.events[-1] |= {"pid": gpu.format(device), "tid": stream.format(lane)}
            builder.events[-1]["args"] = {"correlation": correlation}
    trace = builder.trace()
    assert sorted(zip(trace.kernels["device"].tolist(), trace.kernels["stream"].tolist(), strict=True)) == [
        (0, 7), (0, 20), (1, 7), (1, 20)
    ]  # fmt: skip
    assert _check(quality(trace), "one_at_a_time").wrong == 0


def test_records_that_are_written_twice_count_once(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in range(0, 60_000, 20_000):
        builder.op("aten::mm", at, 3_000)
        builder.kernel(at + 500, at + 4_000, 1_000)
    once = json.loads(builder.text())
    twice = {**once, "traceEvents": once["traceEvents"] * 2}
    (tmp_path / "once.json").write_text(json.dumps(once))
    (tmp_path / "twice.json").write_text(json.dumps(twice))
    first, second = (read_trace(tmp_path / name) for name in ("once.json", "twice.json"))
    pd.testing.assert_frame_equal(first.kernels, second.kernels)
    pd.testing.assert_frame_equal(first.launches, second.launches)
    assert len(first.ops) == len(second.ops)
    left_out = {note.figures["kind"]: note.figures["events"] for note in second.meta.notes}
    assert left_out == {"op": 3, "call": 3, "gpu": 3}
    assert not first.meta.notes
