from pathlib import Path

import pytest

from steptrace.config.lookup import check_target_exists
from steptrace.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(
        "try:\n    import fast\nexcept ImportError:\n    fast = None\nif True:\n    class Loss: ...\nMAKERS = {}\n"
    )
    (tmp_path / "made.py").write_text("for name in ('A', 'B'):\n    globals()[name] = type(name, (), {})\n")
    (tmp_path / "lazy.py").write_text("def __getattr__(name): ...\n")
    (tmp_path / "broken.py").write_text("class Loss(:\n")
    (tmp_path / "losses.py").write_text(
        "from torch import Tensor, nn\nimport torch.nn.functional as F\n"
        "class MaskedLoss(nn.Module): ...\ndef plain_loss(a, b): ...\nclass _Hidden: ...\n"
    )
    package = tmp_path / "deep"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "net.py").write_text("class Net:\n    class Inner: ...\n")
    return tmp_path


@pytest.mark.parametrize(
    "target",
    [
        "steptrace.workloads.masked_losses.WhereLoss",
        "torch.optim.SGD",
        "torch.nn.CrossEntropyLoss",  # by a star import
        "torch.nn.functional.relu",
        "torch.optim.adamw.AdamW",
        "torch.randn",  # from a compiled module
        "mine.Loss",
        "mine.MAKERS.get",
        "mine.fast.Loss",
        "made.A",
        "lazy.Anything",
        "broken.Loss",  # whoever imports it tells the line
        "deep.net.Net.Inner",
    ],
)
def test_what_is_there_or_cannot_be_told_is_accepted(folder: Path, target: str) -> None:
    check_target_exists(target, [folder], where="test")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("steptrace.workloads.masked_losses.WhereLos", "did you mean 'WhereLoss'?"),
        ("steptrace.workloads.masked_loses.WhereLoss", "did you mean 'masked_losses'?"),
        ("torch.optim.AdamV", "did you mean 'Adam"),
        ("mine.Los", "there is no 'Los' in mine"),
        ("deep.nets.Net", "did you mean 'net'?"),
        ("losses.MaskLoss", "did you mean 'MaskedLoss'?"),
        ("losses.Nothing", "next: known: MaskedLoss, plain_loss"),  # and not what it imports
        ("losses.Tensr", "did you mean 'Tensor'?"),
        ("deep.net", "is a module"),
        ("nowhere_at_all.Net", "there is no module 'nowhere_at_all'"),
    ],
)
def test_a_target_that_leads_nowhere_is_told_with_the_nearest(folder: Path, target: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_target_exists(target, [folder], where="study, variant x")
    assert said in str(caught.value)
    assert "study, variant x" in str(caught.value)
    assert target in str(caught.value)
