"""What is known of a collective: from its kernel, from the operator around its launch, or from names alone."""

import pytest

from builders import TraceBuilder
from steptrace.trace import names as naming

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ARGS = {
    "Collective name": "_reduce_scatter_base", "Process Group Name": "3", "Process Group Ranks": "[0, 1]",
    "Group size": 2, "Seq": 17, "dtype": "BFloat16", "In msg nelems": 64, "Out msg nelems": "32",
}  # fmt: skip


def _row(builder: TraceBuilder) -> dict[str, object]:
    table = builder.trace().collectives
    assert len(table) == 1
    return dict(table.astype(object).iloc[0])


def test_the_kernel_says_what_it_is() -> None:
    builder = TraceBuilder()
    builder.kernel(10, 20, 30, NCCL, **ARGS)
    builder.kernel(50, 60, 5, "gemm")
    row = _row(builder)
    assert row["name"] == "reduce_scatter"  # the description, not the kernel's name
    assert (row["group"], row["group_ranks"], row["group_size"], row["sequence"]) == ("3", "[0, 1]", 2, 17)
    assert (row["dtype"], row["in_elements"], row["out_elements"]) == ("BFloat16", 64, 32)


def test_the_operator_around_the_launch_says_it() -> None:
    builder = TraceBuilder()
    builder.op("c10d::reduce_scatter_", 0, 100_000)
    builder.op("record_param_comms", 1_000, 90_000, **ARGS)
    builder.kernel(2_000, 20_000, 30, NCCL)
    row = _row(builder)
    assert (row["name"], row["group"], row["sequence"]) == ("reduce_scatter", "3", 17)


def test_only_names_say_it() -> None:
    builder = TraceBuilder()
    builder.op("c10d::alltoall_base_", 0, 100_000)
    builder.kernel(2_000, 20_000, 30, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)")
    row = _row(builder)
    assert row["name"] == "all_to_all"
    assert row["group"] is None


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
        ("void deep_ep::internode::dispatch<false>(int4*)", None, "comm"),
        ("nvshmemi_transfer_rma_nbi", None, "comm"),
        ("void at::native::reduce_kernel<512, 1>(x)", "reduce", "compute"),
        ("void at::native::vectorized_gather_kernel<16, long>(x)", "gather", "compute"),
    ],
)
def test_names_of_collectives(name: str, collective: str | None, kind: str) -> None:
    assert naming.collective_name(name) == collective
    assert naming.kernel_kind(name, "kernel") == kind


def test_a_trace_without_collectives_has_an_empty_table() -> None:
    builder = TraceBuilder()
    builder.kernel(10, 20, 30, "gemm")
    assert len(builder.trace().collectives) == 0
