"""A page runs its own script and nothing else, and every column that a section names is declared with its meaning."""

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest
from markupsafe import Markup

from steptrace import report
from steptrace.report import diff, notebook, results  # noqa: F401  (with them all kinds of documents are there)
from steptrace.report.page.markup import definitions, inline_code, page
from steptrace.report.page.table import text_table


def test_the_policy_names_the_script_that_is_there():
    html = page("x", "<p>body</p>", [])
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)
    assert f"default-src 'none'; script-src 'sha256-{digest}';" in policy[1]
    assert html.index("Content-Security-Policy") < html.index("<style>")


NOWRAP = '<span class="nowrap">'
_SECTIONS = "".join(
    path.read_text(encoding="utf-8")
    for path in Path(report.__file__).parent.rglob("*")
    if path.suffix in (".py", ".j2")
)
NAMES = sorted(set(re.findall(r'"([A-Z][a-zA-Z]+\.[a-z]\w+)"', _SECTIONS)))


def test_sections_name_columns():
    assert {"StepTimes.median", "IdleGap.cause", "RowChange.renamed_from"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_declared(name):
    (definition,) = definitions([name])
    assert definition.term
    assert definition.meaning.endswith(".")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("aten::max_pool2d_with_indices_backward", ["aten::", "max_", "pool2d_", "with_", "indices_", "backward"]),
        ("torch.backends.cudnn.benchmark", ["torch.", "backends.", "cudnn.", "benchmark"]),
        ("short_name", ["short_name"]),
        ("folder/of_models/model.py:379", ["folder/", "of_", "models/", "model.", f"{NOWRAP}py:379</span>"]),
    ],
)
def test_a_long_name_within_a_sentence_may_break_after_its_parts(name, parts):
    shown = "<wbr>".join(parts)
    boxed = f'<span class="long">{shown}</span>' if len(parts) > 1 else shown
    assert inline_code(f"it calls {name} here") == f"it calls {boxed} here"


def test_no_line_ends_between_a_figure_and_its_unit():
    shown = inline_code("7.8 % of 4.43 ms, 24.8 GB/s, 3 MiB and 2 syncs")
    assert shown.replace("\N{NO-BREAK SPACE}", "_") == "7.8_% of 4.43_ms, 24.8_GB/s, 3_MiB and 2 syncs"


def test_nor_in_a_table_and_tags_and_code_stay_as_they_are():
    cells = ("now: 75 % of <3 ms", Markup('<i title="1 ms">2 s</i> <code>sleep 3 s</code>'), "4 ms")
    shown = text_table(("a", "b", "c"), [cells]).replace("\N{NO-BREAK SPACE}", "_")
    assert "now: 75_% of &lt;3_ms" in shown
    assert '<i title="1 ms">2_s</i> <code>sleep 3 s</code>' in shown


def test_code_with_spaces_is_one_piece_of_code_and_no_box_begins_within_it():
    shown = inline_code("call `torch.compile(mode_of_model, and_its_long_options)` or (`a_name_of_more_than_twenty`).")
    assert shown.count("<code>") == shown.count("</code>") == 2
    assert shown.count('<span class="long">(<code>a_') == shown.count("</code>).</span>") == 1
    assert shown.count("<span") == 1
