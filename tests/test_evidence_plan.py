from pathlib import Path

import pytest

from steptrace import evidence_plan
from steptrace.errors import ConfigError
from steptrace.evidence_plan import gpus_needed, runnable

ROOT = Path(__file__).parents[1]


@pytest.fixture
def two_gpus_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU, where the study `giou` needs two."""
    monkeypatch.setattr(evidence_plan, "count_gpus", lambda: 1)
    monkeypatch.setattr(evidence_plan, "gpus_needed", lambda *asked: 2 if asked[-1] == "giou" else 1)


@pytest.mark.usefixtures("two_gpus_needed")
def test_every_study_that_the_machine_can_run_the_main_ones_first(tmp_path: Path) -> None:
    chosen, left_out = runnable(ROOT, tmp_path, "gpu")
    others = {file.stem for file in (ROOT / "config" / "study").glob("*.yaml")} - {"masked_loss", "giou"}
    assert chosen == ["masked_loss:1", "masked_loss", *sorted(others)]
    assert left_out == ["giou: left out, it needs 2 GPUs, and there is one"]


@pytest.mark.usefixtures("two_gpus_needed")
def test_another_order_and_other_repeats(tmp_path: Path) -> None:
    assert runnable(ROOT, tmp_path, "cpu", ["giou:1", "masked_loss"]) == (["giou:1", "masked_loss"], [])
    chosen, left_out = runnable(ROOT, tmp_path, "gpu", ["memory,giou:2", "giou"])
    assert (chosen, len(left_out)) == (["memory:2"], 1)


@pytest.mark.parametrize(("entry", "message"), [("giuo", "did you mean 'giou'"), ("giou:x", "NAME,NAME:REPEATS")])
def test_what_is_no_study_is_refused(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        runnable(ROOT, tmp_path, "cpu", [entry])


def test_a_training_in_one_process_needs_one_gpu(tmp_path: Path) -> None:
    assert gpus_needed(ROOT, tmp_path, "gpu", "masked_loss") == 1
