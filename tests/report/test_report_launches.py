"""The page's section on what a step launches: counts, bytes and synchronised sections."""

import re

from steptrace.report.study.model import load_study
from steptrace.report.study.overview import launches

SECTIONS = {"copy data": 0.05, "forward": 4.0, "calc loss": 6.2, "backward": 5.0, "optimizer": 0.7}


def rows(page, table):
    """The texts of a table's rows, cell by cell."""
    body = re.findall(r"<table.*?</table>", page, re.DOTALL)[table]
    return [
        [" ".join(re.sub("<[^>]+>", " ", cell).split()) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)]
        for row in re.findall(r"<tr>.*?</tr>", body, re.DOTALL)
    ]


def test_counts_and_bytes_stand_side_by_side(study_builder):
    study_builder.add("loop", [20.0, 20.1], operators_per_step=8685, batch_bytes={"inputs": 262144, "targets": 500})
    study_builder.add("fused", [12.0, 12.1], operators_per_step=108, kernels_per_step=19, peak_allocated_bytes=2**20)
    study = load_study(study_builder.write())
    head, *cells = rows(launches(study), 0)
    loop, fused = (dict(zip(head, row, strict=True)) for row in cells)
    wanted = ["Operators per step", "Kernels per step", "Inputs copied", "Targets copied", "Peak GPU memory"]
    assert [loop[name] for name in wanted] == ["8,685", "not measured", "256 KiB", "500 B", "not measured"]
    assert [fused[name] for name in wanted] == ["108", "19", "not measured", "not measured", "1.00 MiB"]


def test_synchronised_sections_stand_beside_the_unprofiled_step(study_builder):
    study_builder.add("loop", [20.0, 20.0], synchronised_sections_ms=SECTIONS)
    study_builder.add("fused", [12.0, 12.0])
    head, loop, fused = rows(launches(load_study(study_builder.write())), 1)
    assert head[1:] == ["Copy data", "Forward", "Calc loss", "Backward", "Optimizer", "Step time"]
    assert [float(cell) for cell in loop[1:6]] == list(SECTIONS.values())
    assert abs(float(loop[6]) - 20) < 1
    assert fused[1:6] == 5 * ["not measured"]


def test_a_study_without_such_a_pass_shows_counts_alone(make_study):
    page = launches(load_study(make_study("cpu")))
    assert page.count("<table") == 1
    assert "Inputs" not in page.split("</table>")[0]
    assert "each by itself" not in page
