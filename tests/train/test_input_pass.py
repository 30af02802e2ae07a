"""The pass that times the parts of loading: rows for whole steps, and a training that goes on as before."""

import pytest

from steptrace.documents.run import InputOfRun
from steptrace.record import read_rows, read_steps
from steptrace.train.main import main
from steptrace.train.passes import left_out, measure_input
from steptrace.train.setup import build_loader, training


@pytest.mark.parametrize(("workers", "accumulate"), [(0, 1), (2, 1), (0, 2)])
def test_a_row_for_each_batch_of_the_steps_asked_for(make_config, workers, accumulate):
    config = make_config({"data.num_workers": workers, "step.accumulate": accumulate})
    with training(config, seed=1) as parts:
        loader = build_loader(config, parts.device, 1)
        assert left_out(loader) == 1 + workers
        table = measure_input(parts, loader, 4)
    assert table["batch"].tolist() == list(range(4 * accumulate))
    assert (table[["wait_ns", "fetch_ns", "collate_ns"]] > 0).all(axis=None)
    assert set(table["worker"].dropna()) == set(range(workers))
    if workers == 0:
        assert (table["wait_ns"] >= table["fetch_ns"] + table["collate_ns"]).all()
    # Nothing is pinned, and on a CPU nothing is copied.
    assert table[["pin_ns", "copy_ns"]].isna().all(axis=None)


def test_a_run_leaves_the_table_and_the_same_timed_steps(write_config, tmp_path):
    outs = {}
    for steps in (0, 3):
        outs[steps] = tmp_path / str(steps)
        config = write_config({"scale.input_steps": steps}, name=f"{steps}.yaml")
        assert main([str(config), "--out", str(outs[steps]), "--repeat", "0"]) == 0
    assert len(read_rows(outs[3], InputOfRun)) == 3
    assert not (outs[0] / "input.parquet").exists()
    without, with_pass = (read_steps(outs[steps]) for steps in (0, 3))
    assert with_pass["loss"].tolist()[:6] == without["loss"].tolist()[:6]
