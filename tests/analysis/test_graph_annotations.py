"""Kernels inside CUDA graphs keep the annotations that PyTorch writes."""

from typing import Any

import pytest

from builders import TraceBuilder
from steptrace.analysis.graph_annotations import MOST, OTHERS, graph_annotations
from steptrace.trace.model import Trace

STEP = 1_000_000


def _replays(*annotated: dict[str, Any], steps: int = 3) -> Trace:
    """Steps that launch one graph; its kernels take 10, 20, ... us and have these arguments."""
    builder = TraceBuilder()
    for step in range(steps):
        builder.step(step, step * STEP, STEP)
        correlation = builder.call("cudaGraphLaunch", step * STEP, 2_000)
        start = step * STEP + 5_000
        for place, args in enumerate(annotated):
            length = 10_000 * (place + 1)
            builder.gpu(f"k{place}", start, length, correlation)
            builder.events[-1]["args"] |= {"graph id": 3, "graph node id": place + 1, **args}
            start += length + 1_000
    return builder.trace()


def test_work_is_summed_by_annotation() -> None:
    trace = _replays({"str": "attention"}, {"str": "mlp"}, {"str": "mlp"}, {})
    rows = [
        (row.annotation, row.count, row.device_ns, row.longest_ns, row.kernel)
        for row in graph_annotations(trace).itertuples()
    ]
    assert rows == [("mlp", 6, 3 * 50_000, 30_000, "k2"), ("attention", 3, 3 * 10_000, 10_000, "k0")]


@pytest.mark.parametrize("written", [{"str": "a"}, {"annotation": "a"}, {"name": "a", "dtype": "bf16"}])
def test_the_ways_in_which_pytorch_writes_an_annotation(written: dict[str, Any]) -> None:
    trace = _replays(written, {})
    assert trace.kernels["annotation"].tolist()[::2] == ["a"] * 3
    assert trace.kernels["annotation"].isna().tolist()[1::2] == [True] * 3


@pytest.mark.parametrize("written", [{}, {"str": 5}, {"str": ""}, {"str": None}, {"str": ["a"]}])
def test_without_a_text_there_is_no_annotation(written: dict[str, Any]) -> None:
    trace = _replays(written)
    assert trace.kernels["annotation"].isna().all()
    assert len(graph_annotations(trace)) == 0


def test_an_annotation_with_a_collectives_description_describes_it() -> None:
    described = {"Collective name": "allreduce", "Process Group Name": "1", "In msg nelems": "8", "dtype": "Float"}
    trace = _replays({"str": "reduce gradients", **described})
    assert set(trace.collectives["name"]) == {"all_reduce"}
    assert set(trace.collectives["in_elements"]) == {8}


def test_of_many_annotations_those_with_most_time_have_rows_and_the_others_one() -> None:
    builder = TraceBuilder()
    correlation = builder.call("cudaGraphLaunch", 0, 2_000)
    for number in range(MOST + 3):
        builder.gpu("k", 5_000 + 3_000 * number, 1_000 + (number % 2) * 1_000, correlation)
        builder.events[-1]["args"] |= {"graph id": 3, "graph node id": number + 1, "str": f"call {number}"}
    table = graph_annotations(builder.trace())
    assert len(table) == MOST + 1
    assert table["count"].sum() == MOST + 3
    assert table.iloc[-1][["annotation", "count", "device_ns"]].tolist() == [OTHERS, 3, 3_000]
