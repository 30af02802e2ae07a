"""A page runs its own script and nothing else, whatever the data it shows holds."""

import re
from base64 import b64encode
from hashlib import sha256

from documents import fill
from steptrace.documents.timeline import Timeline
from steptrace.report.draw.timeline import timeline_figure
from steptrace.report.page.markup import page


def test_the_policy_names_the_script_that_is_there() -> None:
    html = page("x", "<p>body</p>", [])
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    assert f"default-src 'none'; script-src 'sha256-{digest}';" in policy[1]
    assert html.index("Content-Security-Policy") < html.index("<style>")


def test_a_tampered_kind_of_box_stays_text() -> None:
    lane = {"kind": "stream", "name": "a", "start_ns": [0], "dur_ns": [9], "level": [0], "events": [1]}
    lane |= {"time_ns": [9], "what": [0]}
    step = {"step": 1, "span_ns": 9, "host_ns": 9, "left_out": []}
    hostile = '"><script>alert(1)</script>'
    drawn = timeline_figure(fill(Timeline, {**step, "kinds": [hostile], "names": ["n"], "lanes": [lane]}))
    assert drawn is not None
    assert "<script" not in drawn
