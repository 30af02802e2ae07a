"""A page runs its own script and nothing else, whatever the data it shows holds."""

import re
from base64 import b64encode
from hashlib import sha256

from steptrace.report.page.markup import page


def test_the_policy_names_the_script_that_is_there() -> None:
    html = page("x", "<p>body</p>", [])
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    assert f"default-src 'none'; script-src 'sha256-{digest}';" in policy[1]
    assert html.index("Content-Security-Policy") < html.index("<style>")
