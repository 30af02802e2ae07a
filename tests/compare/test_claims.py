"""A number that the source of a study states, beside what was counted here."""

from typing import Any

import pytest

from documents import fill
from steptrace.compare.claims import launched_per_step
from steptrace.documents.comparison import Comparison
from steptrace.documents.variant import VariantResult
from steptrace.report.study.claims import claims

CLAIM = {"says": "About 30 kernels.", "source": "article", "variant": "padding", "label": "loss", "kernels": 30}


def traced(*rows: dict[str, Any], steps: int = 3) -> VariantResult:
    return fill(VariantResult, {"name": "padding", "trace": {"quality": {"steps": steps}, "labels": rows}})


def test_a_trace_counts_what_the_label_launches_per_step():
    rows = ({"label": "loss", "kernels": 111}, {"label": "forward", "kernels": 999})
    assert launched_per_step(traced(*rows), "loss") == 37
    assert launched_per_step(traced(*rows, steps=0), "loss") is None
    assert launched_per_step(traced(*rows), "giou") is None
    assert launched_per_step(traced({"label": "loss", "kernels": None}), "loss") is None  # without a GPU
    assert launched_per_step(fill(VariantResult, {"name": "padding", "trace": None}), "loss") is None


@pytest.mark.parametrize(("counted", "basis", "shown"), [(37.0, "measured", "37"), (34.0, "predicted", "34")])
def test_the_count_stands_beside_the_claim(counted, basis, shown):
    html = claims(fill(Comparison, {"claims": [CLAIM | {"counted": counted, "basis": basis}]}))
    assert html is not None
    assert html.index(">30<") < html.index(f">{shown} ")


def test_an_unknown_count_is_not_measured_and_no_zero():
    html = claims(fill(Comparison, {"claims": [CLAIM | {"counted": None, "basis": None}]}))
    assert html is not None
    assert 'class="null"' in html
    assert claims(fill(Comparison, {"claims": []})) is None
