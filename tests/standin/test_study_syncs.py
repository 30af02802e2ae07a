"""Each study's variants do on the stand-in device what is predicted: host syncs, launches, peak memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXTENSION = Path(__file__).parents[2] / "ext" / "giou" / "python"
#: What the article's four stages of a loss are known to make, see docs/syncs.md; a second nonzero is one more.
MASKED_LOSS = {"boolean_mask": 6, "second_nonzero": 7, "where": 4, "sort": 3, "ignore_index": 0}
#: A study of two ranks, with one process alone. DistributedDataParallel itself reads times now and then, which waits.
RANKS = "all_reduce"
ALONE = "one_process"
STUDIES = [
    "masked_loss",
    "sync_cost",
    "copies",
    "giou",
    "giou_as_published",
    "giou_heavy",
    "memory",
    "input_pipeline",
    "precision",
    RANKS,
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("study", STUDIES)
def test_predicted_warned_and_traced_agree(study: str) -> None:
    program = Path(__file__).with_name("study_syncs.py")
    path = os.pathsep.join([str(EXTENSION), os.environ.get("PYTHONPATH", "")])
    content = {"FAKECUDA_COMPUTED_SIZE": "8", "FAKECUDA_COMPUTED_BOOL": "0"}
    environment = {**os.environ, **content, "PYTHONPATH": path}
    if study.startswith("giou"):
        subprocess.run([sys.executable, "-m", "steptrace_giou.build"], env=environment, check=True)
    done = subprocess.run(
        [sys.executable, program, study], env=environment, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [row.split() for row in done.stdout.splitlines()[1:]]
    by_variant = {variant: [float(figure) for figure in figures] for _, variant, *figures in rows}
    assert by_variant
    syncs = {name: figures[: 2 if study == RANKS and name != ALONE else 3] for name, figures in by_variant.items()}
    assert {name: counts for name, counts in syncs.items() if len(set(counts)) > 1} == {}
    if study == "masked_loss":
        assert {name: figures[0] for name, figures in by_variant.items()} == MASKED_LOSS
    launched = {name: figures[3:5] for name, figures in by_variant.items()}
    assert {name: pair for name, pair in launched.items() if pair[0] != pytest.approx(pair[1], rel=0.02)} == {}
    peaks = {name: figures[5:7] for name, figures in by_variant.items()}
    assert {name: pair for name, pair in peaks.items() if pair[0] != pytest.approx(pair[1], rel=0.05)} == {}
