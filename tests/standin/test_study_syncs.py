"""Each study's variants make as many host syncs as predicted and as PyTorch warns of, and the trace shows as many."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXTENSION = Path(__file__).parents[2] / "ext" / "giou" / "python"
#: What the article's four stages of a loss are known to make, see docs/syncs.md.
MASKED_LOSS = {"boolean_mask": 6, "where": 4, "sort": 3, "ignore_index": 0}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("study", ["masked_loss", "giou", "giou_as_published", "memory", "input_pipeline", "precision"])
def test_predicted_warned_and_traced_agree(study: str) -> None:
    program = Path(__file__).with_name("study_syncs.py")
    path = os.pathsep.join([str(EXTENSION), os.environ.get("PYTHONPATH", "")])
    content = {"FAKECUDA_COMPUTED_SIZE": "8", "FAKECUDA_COMPUTED_BOOL": "0"}
    environment = {**os.environ, **content, "PYTHONPATH": path}
    if study.startswith("giou"):
        subprocess.run([sys.executable, "-m", "steptrace_giou.build"], env=environment, check=True)
    done = subprocess.run(
        [sys.executable, program, study], env=environment, capture_output=True, text=True, timeout=880, check=False
    )
    assert done.returncode == 0, done.stderr
    counts = {row.split()[1]: [float(count) for count in row.split()[2:5]] for row in done.stdout.splitlines()[1:]}
    assert counts
    differ = {name: found for name, found in counts.items() if len(set(found)) > 1}
    assert differ == {}
    if study == "masked_loss":
        assert {name: found[0] for name, found in counts.items()} == MASKED_LOSS
