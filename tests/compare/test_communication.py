"""What comparison.json says of the ranks' communication."""

import pytest

from documents import compare
from steptrace.documents.run import Communication
from steptrace.record import write_communication

RECORD = Communication(
    world_size=4,
    backend="gloo",
    parameters=1_000,
    parameter_bytes=4_000,
    bucket_bytes=(3_000, 1_000),
    bus_bytes_per_s=1e6,
    expected_ns=6_000_000,
    simplified_ns=4_000_000,
)


def ranks(*, measured_ms=9, straggler=1, count=8):
    return {
        "count": 4,
        "straggler": None if straggler is None else {"rank": straggler, "share": 0.75},
        "all_reduce": {
            "count_per_step": count,
            "bytes_per_step": 16_000,
            "measured_ns_per_step": measured_ms * 1e6,
            "exposed_ns_per_step": 3e6,
            "overlap": 2 / 3,
            "wait_ns_per_step": 1e6,
        },
    }


@pytest.fixture
def compared(folder, trace_of):
    """Compare a study of one variant with these entries of `ranks`, a run each."""

    def make(*entries, record=RECORD):
        folder.make_study([{"name": "ddp", "baseline": "ddp"}], repeats=len(entries))
        for repeat, entry in enumerate(entries):
            run = folder.add_run("ddp", repeat, [10.0] * 5, world_size=4)
            folder.add_summary(run, trace_of() | {"ranks": entry})
            if record:
                write_communication(run, record)
        return compare(folder.path)["variants"][0]

    return make


def test_one_process_has_no_communication(compared):
    variant = compared(None, record=None)
    assert (variant["communication"], variant["ranks"]) == (None, None)


def test_what_ranks_tell_each_other_stands_beside_what_was_measured(compared):
    variant = compared(ranks(measured_ms=8), ranks(measured_ms=9), ranks(measured_ms=30))
    assert variant["communication"]["expected_ns"] == 6_000_000
    traced = variant["ranks"]["all_reduce"]
    assert (traced["measured_ns_per_step"], traced["exposed_ns_per_step"]) == (9e6, 3e6)
    assert (traced["count_per_step"], traced["bytes_per_step"]) == (8, 16_000)
    assert variant["ranks"]["straggler"]["rank"] == 1


def test_a_straggler_is_the_same_rank_in_every_run(compared):
    assert compared(ranks(), ranks(straggler=2))["ranks"]["straggler"]["rank"] is None
    assert compared(ranks(), ranks(straggler=None))["ranks"]["straggler"] is None


def test_a_damaged_file_is_no_communication(compared, folder):
    compared(ranks())
    (folder.path / "ddp" / "run0" / "communication.json").write_text("{}")
    assert compare(folder.path)["variants"][0]["communication"] is None
