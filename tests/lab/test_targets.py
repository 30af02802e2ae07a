"""A `_target_` leads to what its name says, and nowhere else."""

import sys

import pytest

from steptrace.errors import ConfigError
from steptrace.lab.targets import check_targets


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    "target",
    [
        "torch.nn.Linear",
        "torch.nn.functional.gelu",  # compiled
        "torch.nn.functional.conv2d",  # compiled, and said to be of `torch`
        "torch.optim.swa_utils.AveragedModel",
        "torch.nn.functional.max_pool2d",  # a function made by another
        "torch.nn.modules.loss.CrossEntropyLoss",
        "torch.optim.SGD",
        "torch.utils.data.StackDataset",
        "torch.linalg.norm",  # allowed by `allow_targets: [torch.linalg]`
        "steptrace.workloads.segmentation.RandomMasks",
        "mine.Loss",
        "mine.parts.half",
        "mine.Loss.from_scale",
        "mine.Borrowed.fromkeys",  # inherited from another package
    ],
)
def test_a_class_or_function_of_the_named_package(target):
    check_targets({"loss": {"_target_": target}}, where="config.yaml")


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("torch.utils.data.dataloader.os.system", "another package"),
        ("torch.nn.modules.module.warnings.warn", "another package"),
        ("torch.utils.data.distributed.dist.init_process_group", "torch.distributed"),
        ("torch.nn.functional.torch._C.import_ir_module", "another package"),
        ("torch.nn.functional.torch.load", "another package"),
        ("torch.nn.functional._VF.lstm", "another package"),
        ("torch.utils.data.dataloader.functools.partial", "another package"),
        ("torch.utils.data.graph.pickle.loads", "another package"),
        ("torch.nn.modules.module.namedtuple", "defined in collections"),
        ("torch.nn.Module.__init__.__globals__", "'__init__'"),
        ("torch.nn.Linear.forward.x", "neither a module nor a class"),
        ("torch.nn.modules", "neither a class nor a function"),
        ("torch.nn.Lineal", "there is no 'torch.nn.Lineal'"),
        ("mine.run", "defined in subprocess"),
        ("mine.value", "of type int"),
        ("nobody.has.this", "importing it failed"),
        ("mine.broken.Loss", "importing it failed"),
        ("mine.program.Loss", "importing it failed: a module ends the process with 3"),
        ("", "not a dotted name"),
        (".mine.Loss", "not a dotted name"),
        ("mine.Loss()", "not a dotted name"),
        (" mine.Loss", "not a dotted name"),
    ],
)
def test_what_leads_elsewhere_is_refused(target, told):
    config = {"model": {"_target_": "torch.nn.Linear"}, "data": {"parts": [{"_target_": target}]}}
    with pytest.raises(ConfigError) as error:
        check_targets(config, where="config.yaml")
    assert told in str(error.value)
    assert target in str(error.value)
    assert "data.parts.0._target_" in str(error.value)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A user's package `mine`, which imports from others."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from collections import OrderedDict\nfrom subprocess import run\nfrom mine import parts\nvalue = 1\n"
        "class Loss:\n    @classmethod\n    def from_scale(cls): return cls()\n"
        "class Borrowed(OrderedDict): ...\n"
    )
    (folder / "parts.py").write_text("def half(): return 0.5\n")
    (folder / "broken.py").write_text("import nobody.has.this\n")
    (folder / "program.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]
