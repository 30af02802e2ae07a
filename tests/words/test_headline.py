"""The first sentence on a trace."""

import pytest

from builders import TraceBuilder
from steptrace.findings.headline import headline_of
from steptrace.words.headline import headline_text

STEP = 1_000_000


@pytest.mark.parametrize(
    ("waits", "said"),
    [
        ([2], "1 sync in 4 profiled steps"),
        ([0, 2], "0.5 syncs per step on average (1, 0, 1 and 0 in the profiled steps)"),
        ([0, 1, 2, 3], "1 sync per step"),
    ],
)
def test_what_happens_once_is_said_to_happen_once(waits: list[int], said: str) -> None:
    builder = TraceBuilder()
    for step in range(4):
        builder.step(step, step * STEP, STEP)
        builder.kernel(step * STEP, step * STEP + 5_000, 800_000)
        if step in waits:
            builder.call("cudaStreamSynchronize", step * STEP + 900_000, 50_000)
    assert said in headline_text(headline_of(builder.summary()))


def test_syncs_that_were_not_measured_are_said_to_be() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, STEP)
    builder.gpu("gemm", 5_000, 800_000, None)
    builder.gpu("gemm", 850_000, 100_000, None)
    assert "syncs were not measured" in headline_text(headline_of(builder.summary()))
