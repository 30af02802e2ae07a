"""How long a stage of a pipeline waits in receives, or is idle beside them."""

from typing import Any

import pytest

from builders import MAIN, TraceBuilder
from steptrace.analysis.pipeline import pipeline
from steptrace.trace.model import Trace

STEP = 1_000_000
KERNEL = "ncclDevKernel_SendRecv(x)"


def _described(name: str, source: int | None = None, size: int = 4, group: str = "pp") -> dict[str, Any]:
    args = {"Collective name": name, "Process Group Name": group, "Group size": size, "In msg nelems": 8}
    return args if source is None else {**args, "Src Rank": source}


def _stage(*messages: dict[str, Any], outside: bool = False) -> Trace:
    """Two steps of 1 ms. Each has these messages of 40 us, 100 us apart, and computes in between.

    `outside`: one step's messages more, after the steps.
    """
    builder = TraceBuilder()
    for step in range(2 + outside):
        if step < 2:
            builder.step(step, step * STEP, STEP)
        for place, args in enumerate(messages):
            at = step * STEP + place * 100_000
            builder.kernel(at + 1_000, at + 10_000, 40_000, KERNEL, stream=20, **args)
            builder.kernel(at + 3_000, at + 50_000, 60_000)
    return builder.trace()


def test_the_bubble_is_the_time_in_receives_beside_the_ideal_one() -> None:
    # A middle stage with two microbatches: activations from stage 0, gradients from stage 2.
    trace = _stage(*(_described("recv", source) for source in (0, 0, 2, 2)), _described("send"), outside=True)
    (row,) = pipeline(trace).to_dict("records")
    assert (row["group"], row["receives"], row["stages"], row["microbatches"]) == ("pp", 8, 4, 2)
    assert row["wait_ns"] == 2 * 4 * 40_000
    assert row["bubble"] == pytest.approx((row["wait_ns"] + row["idle_ns"]) / (2 * STEP))
    assert row["ideal_bubble"] == pytest.approx(3 / (2 + 3))


def test_computation_hides_a_receive() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, STEP)
    builder.kernel(1_000, 10_000, 100_000)
    builder.kernel(3_000, 20_000, 190_000, KERNEL, stream=20, **_described("recv", 0))
    (row,) = pipeline(builder.trace()).to_dict("records")
    assert (row["wait_ns"], row["idle_ns"]) == (100_000, 0)


def test_the_gpu_is_idle_for_a_receive_while_the_host_waits_for_it() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, STEP)
    builder.kernel(1_000, 10_000, 40_000, KERNEL, stream=20, **_described("recv", 0))
    builder.call("cudaDeviceSynchronize", 3_000, 57_000, tid=MAIN)
    builder.kernel(70_000, 80_000, 100_000)
    builder.kernel(300_000, 310_000, 100_000)  # the host was late for this one, and no receive is near
    (row,) = pipeline(builder.trace()).to_dict("records")
    assert (row["wait_ns"], row["idle_ns"]) == (40_000, 30_000)


@pytest.mark.parametrize(
    ("messages", "microbatches"),
    [
        ([_described("recv", size=2)] * 3, 3),  # the neighbour is not recorded, and there is only one
        ([_described("recv", size=4)] * 3, None),
        ([_described("batch_isend_irecv")] * 3, None),
    ],
)
def test_microbatches_are_null_where_they_cannot_be_counted(
    messages: list[dict[str, Any]], microbatches: float | None
) -> None:
    (row,) = pipeline(_stage(*messages)).to_dict("records")
    known = None if row["microbatches"] != row["microbatches"] else row["microbatches"]
    assert (row["receives"], known) == (6, microbatches)


def test_a_batch_without_a_description_counts_where_other_collectives_have_one() -> None:
    assert len(pipeline(_stage({}, {}))) == 0  # it can be an all-to-all
    (row,) = pipeline(_stage({}, {}, _described("allreduce", group="dp"))).to_dict("records")
    assert (row["group"], row["receives"]) == (None, 4)


@pytest.mark.parametrize("name", ["send", "all_to_all", "allreduce"])
def test_other_collectives_have_no_bubble(name: str) -> None:
    assert len(pipeline(_stage(_described(name)))) == 0


AUTOGRAD = 200


def _batched(batches: list[tuple[list[dict[str, Any]], int]], steps: int = 2) -> Trace:
    """Steps of 1 ms with batches as PyTorch's ProcessGroupNCCL records them: described parts, then a bare kernel.

    Args:
        batches: the parts of each batch, and the thread that launches the computation after it.
        steps: number of steps.
    """
    builder = TraceBuilder()
    for step in range(steps):
        builder.step(step, step * STEP, STEP)
        for place, (parts, thread) in enumerate(batches):
            at = step * STEP + place * 100_000
            for number, args in enumerate(parts):
                builder.op("record_param_comms", at + 1_000 + 2_000 * number, 1_500, **args)
            builder.kernel(at + 10_000, at + 20_000, 30_000, KERNEL, stream=20)
            builder.op("record_param_comms", at + 12_000, 1_000, **{"Collective name": "wait", "Group size": 1})
            builder.kernel(at + 15_000, at + 50_000, 40_000, tid=thread)
    return builder.trace()


def _part(name: str, source: int | None = None, size: int = 4) -> dict[str, Any]:
    return {**_described(name, source, size), "Out msg nelems": 8}


def test_a_batch_is_described_by_the_operators_of_its_parts() -> None:
    # A middle stage as Megatron runs it: one batch for both neighbours.
    both = [_part("send"), _part("recv", 0), _part("send"), _part("recv", 2)]
    trace = _batched([(both, MAIN)] * 3)
    collectives = trace.collectives
    assert collectives["name"].tolist() == ["send_recv"] * 6
    assert collectives["from_ranks"].tolist() == ["0,2"] * 6
    assert collectives["out_elements"].tolist() == [16] * 6
    (row,) = pipeline(trace).to_dict("records")
    assert (row["group"], row["stages"], row["microbatches"]) == ("pp", 4, 3)
    assert row["ideal_bubble"] == pytest.approx(3 / (3 + 3))


def test_a_batch_of_sends_alone_is_no_receive() -> None:
    assert len(pipeline(_batched([([_part("send"), _part("send")], MAIN)]))) == 0


def test_the_parts_of_a_batch_are_not_those_of_the_kernel_before() -> None:
    trace = _batched([([_part("recv", 0)], MAIN), ([_part("send")], MAIN)])
    assert trace.collectives["name"].tolist() == ["recv", "send"] * 2
    (row,) = pipeline(trace).to_dict("records")
    assert (row["receives"], row["microbatches"]) == (2, 1)


@pytest.mark.parametrize(
    ("threads", "microbatches"),
    [
        ([MAIN] * 4, 4),  # the last of two stages: activations alone
        ([AUTOGRAD] * 4, 4),  # the first: gradients alone
        ([MAIN, AUTOGRAD, AUTOGRAD] * 2, 4),  # two stages on each rank: 2 activations and 4 gradients
        ([MAIN] * 6 + [AUTOGRAD], 7),
    ],
)
def test_of_two_ranks_with_interleaved_stages_one_direction_counts(threads: list[int], microbatches: int) -> None:
    trace = _batched([([_part("recv", 1, size=2)], thread) for thread in threads])
    (row,) = pipeline(trace).to_dict("records")
    assert (row["stages"], row["microbatches"]) == (2, microbatches)
    assert row["ideal_bubble"] == pytest.approx(1 / (microbatches + 1))
