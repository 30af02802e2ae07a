"""The flame graph of a page: geometry and escaping."""

import re
from pathlib import Path

import pytest

from builders import TraceBuilder, training_step
from steptrace.analysis import summarize
from steptrace.documents.program import Flame, FlameBox
from steptrace.report.draw.flame import BOX, GAP, flame
from steptrace.report.trace import page as trace_page

_BOX = re.compile(
    r'<svg class="(\w+)" x="([\d.e-]+)%" y="(\d+)" width="([\d.e-]+)%" height="\d+"><title>([^<]*)</title>'
)


def _graph(*boxes: tuple[str, str, int, int | None]) -> Flame:
    found = tuple(FlameBox(name=name, kind=kind, calls=1, ns=ns, parent=up) for name, kind, ns, up in boxes)
    return Flame(total_ns=found[0].ns, boxes=found)


def test_boxes_stand_below_their_callers_the_widest_to_the_left() -> None:
    graph = _graph(
        ("GPU time", "root", 1000, None), ("small", "op", 200, 0), ("large", "op", 700, 0), ("gemm", "compute", 150, 1)
    )
    drawn = flame(graph, "GPU time")
    assert drawn is not None
    found = {
        name.split("\n")[0]: (kind, float(x), int(y), float(width)) for kind, x, y, width, name in _BOX.findall(drawn)
    }
    row = BOX + GAP
    assert found == {
        "all GPU time": ("root", 0.0, 0, 100.0),
        "large": ("op", 0.0, row, 70.0),
        "small": ("op", 70.0, row, 20.0),
        "gemm": ("compute", 70.0, 2 * row, 15.0),
    }
    assert f'height="{3 * row}"' in drawn


def test_code_outside_of_functions_is_named_without_a_line() -> None:
    """PyTorch names such a frame by the file's first line, or by the line at which the profiler started."""
    graph = _graph(("GPU time", "root", 1000, None), ("train.py(1): <module>", "frame", 900, 0))
    drawn = str(flame(graph, "GPU time"))
    assert "train.py, module level" in drawn
    assert "train.py(1)" not in drawn


def test_no_name_is_written_of_which_only_a_fragment_would_be_seen() -> None:
    graph = _graph(("GPU time", "root", 1000, None), ("aten::addmm", "op", 960, 0), ("aten::relu", "op", 40, 0))
    drawn = str(flame(graph, "GPU time"))
    assert [name in re.findall("<text[^>]*>([^<]*)", drawn) for name in ("aten::addmm", "aten::relu")] == [True, False]
    assert "aten::relu\n" in drawn  # what a pointer shows


def test_names_are_escaped() -> None:
    drawn = str(flame(_graph(("x", "root", 10, None), ("<script>alert(1)</script>", "op", 10, 0)), "GPU time"))
    assert "<script" not in drawn
    assert "&lt;script&gt;" in drawn


def test_nothing_measured_is_no_graph() -> None:
    assert flame(None, "GPU time") is None


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    builder = TraceBuilder()
    for step in range(3):
        training_step(builder, step, step * 1_000_000)
    folder = tmp_path_factory.mktemp("flame")
    summary, _ = summarize([builder.write(folder / "trace.json")])
    trace_page.write(summary, folder / "report.html")
    return folder / "report.html"


def test_the_page_holds_path_sequences_and_flame_graph(page: Path) -> None:
    text = page.read_text()
    assert 'id="critical_path"' in text
    assert 'id="sequences"' in text
    assert 'class="flame"' in text
    assert "model.py:10" in re.sub("<[^>]*>", "", text)
