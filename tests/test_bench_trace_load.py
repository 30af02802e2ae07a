"""The bench of reading runs on its made-up trace and says what it compares."""

import json
import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "bench" / "trace_load.py"


def test_it_measures_every_way_on_a_trace_given(tmp_path: Path) -> None:
    made = str(tmp_path / "made.json")
    script = (
        "import json, sys\n"
        f"sys.path.insert(0, {str(BENCH.parent)!r})\n"
        "import trace_load\n"
        f"open({made!r}, 'w').write(json.dumps(trace_load.made_up_trace(2, 5)))\n"
        "trace_load.ROUNDS = 1\n"
        f"sys.argv = ['trace_load.py', {made!r}, '--mb', '0.3']\n"
        "trace_load.main()\n"
    )
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert output.startswith("made.json, repeated to 0 MB of JSON")
    for how in ("json.load", "columns", "steptrace"):
        assert f"\n{how} " in output
    assert "steptrace against json.load: " in output
    for command in ("analyze --no-report", "analyze", "analyze (small)", "--help"):
        assert re.search(rf"\n{re.escape(command)} +[\d.]+ +\d+\n", output)
    assert "times the import of numpy and pandas" in output
    assert "the same events in 0 and 0 MB" in output


def test_repeating_keeps_copies_apart(tmp_path: Path) -> None:
    """Ids, correlations and step numbers are of one copy only, so that links and steps stay what they were."""
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(BENCH.parent)!r})\n"
        "from pathlib import Path\n"
        "import trace_load\n"
        f"trace_load.write_repeated(trace_load.made_up_trace(2, 5), Path({str(tmp_path / 'out.json')!r}), 0.02)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    launches = [e["args"]["correlation"] for e in events if e["cat"] == "cuda_runtime"]
    kernels = [e["args"]["correlation"] for e in events if e["cat"] == "kernel"]
    assert launches == kernels
    assert len(set(launches)) == len(launches) > 10
    steps = [e["name"] for e in events if e["cat"] == "user_annotation"]
    assert len(set(steps)) == len(steps) > 2
