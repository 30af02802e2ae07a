"""Results that cannot be read are made again by the next call, and by that call alone."""

import pytest

pytestmark = pytest.mark.workflow


def test_damaged_results_are_made_again_by_one_call(project):
    damaged = {
        "tiny/plain/run0/status.json": b"\x00" * 100,
        "tiny/other/run1/steps.parquet": b"PAR1 garbage",
        "tiny/plain/equivalence/equivalence.json": b'{"status": ',
        "tiny/comparison.json": b"",
        "verdict.json": b"\xff\xfe",
    }
    for name, content in damaged.items():
        (project.folder / "results" / name).write_bytes(content)
    result = project.run()
    assert result.returncode == 0, result.stdout
    for name, content in damaged.items():
        assert f"steptrace: results/{name} cannot be read (" in result.stdout
        aside = project.folder / "results" / f"{name}.corrupt"
        assert aside.read_bytes() == content
    ran = project.ran()
    assert sorted(line for line in ran if line.split()[0] in ("train", "equivalence", "predict")) == [
        "equivalence results/tiny/plain",
        "train results/tiny/other/run1",
        "train results/tiny/plain/run0",
    ]
    assert "Nothing to be done" in project.run().stdout
