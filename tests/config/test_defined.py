"""A script, module or class that is not there is refused before anything runs; nothing that exists is."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from steptrace.config.defined import check_defined
from steptrace.config.digest import Cache
from steptrace.config.plan import Plan
from steptrace.errors import ConfigError

LOSSES = """
try:
    import fast as f
except ImportError:
    f = None

class Loss:
    def method(self): ...
"""
MODULES = {
    "mine/__init__.py": "from .losses import *\nfrom .parts import Part as Piece\n",
    "mine/losses.py": LOSSES,
    "mine/parts.py": "import os, json as reader\nimport mine.losses as own\nPart = make()\n",
    "mine/dynamic.py": "globals()['Made'] = 1\n",
    "mine/broken.py": "def (:\n",
    "spaces/inner/leaf.py": "class Leaf: ...\n",
}
EXISTING = (
    "mine.losses.Loss", "mine.Loss", "mine.Piece", "mine.losses.Loss.method", "mine.losses.f", "mine.parts.Part",
    "mine.parts.own.Loss", "mine.losses.f.Loss", "torch.nn.modules.linear.F.relu",
    "mine.dynamic.Made", "mine.broken.Loss", "spaces.inner.leaf.Leaf", "torch.nn.Linear", "torch.nn.functional.relu",
    "torch.optim.AdamW", "torch.optim.lr_scheduler.StepLR", "torch.utils.data.DataLoader", "torch.add", "sys.exit",
    "os.path.join",
    "torch.nn.parallel.DistributedDataParallel", "builtins.int", "functools.partial", "numpy.random.default_rng",
)  # fmt: skip
MISSING = {
    "mine.losses.Los": ["'mine.losses' has no 'Los'", "did you mean 'Loss'?"],
    "mine.Part": ["'mine' has no 'Part'"],
    "mine.lossess.Loss": ["'mine' has no 'lossess'"],
    "mine.parts.os.system": ["the package 'os'"],
    "mine.parts.reader.loads": ["the package 'json'"],
    "torch.utils.data.dataloader.os.system": ["the package 'os'"],
    "random._os.system": ["the package 'os'"],
    "yours.Loss": ["there is no module 'yours'", "python_path"],
    "spaces.inner.leaf.Leaves": ["'spaces.inner.leaf' has no 'Leaves'"],
    "torch.nn.Linearr": ["'torch.nn' has no 'Linearr'", "did you mean 'Linear'?"],
    "torch.optim.Adamm": ["'torch.optim' has no 'Adamm'"],
    "torch.optim.lr_scheduler.Steplr": ["did you mean 'StepLR'?"],
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in MODULES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize("target", EXISTING)
def test_what_exists_is_accepted(root: Path, target: str) -> None:
    check_defined({"loss": {"_target_": target}}, [root], Cache(None), where="study.yaml")


@pytest.mark.parametrize("target", MISSING)
def test_what_does_not_exist_is_named(root: Path, target: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_defined({"loss": {"_target_": target}}, [root], Cache(None), where="study.yaml")
    for part in ["study.yaml: loss._target_ is", *MISSING[target]]:
        assert part in str(caught.value)


def test_nothing_is_imported(root: Path) -> None:
    (root / "mine" / "losses.py").write_text("raise SystemExit\nclass Loss: ...\n")
    check_defined({"loss": {"_target_": "mine.losses.Loss"}}, [root], Cache(None), where="study.yaml")
    assert "mine" not in sys.modules


STUDY = "title: T\nbaseline: a\nprogram: {{command: {}}}\nvariants: {{a: []}}\n"


@pytest.fixture
def programs(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that alone is on the path, with programs that nothing starts."""
    folder = copy / "programs"
    folder.mkdir()
    for name in ("python", "python3.11", "torchrun", "jupyter", "bash", "make", "env"):
        executable(folder / name)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def executable(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("[python, train.py]", None),
        ("[python3.11, -u, train.py, --out=new.py]", None),
        ("[python, -W, ignore, -Xdev, train.py]", None),
        ("[python, -c, pass]", None),
        ("[python, '-']", None),
        ("[python, '-', data.txt]", None),
        ("[bash, -c, 'cd own && ./run.sh']", None),
        ("[bash, -e, -uc, exec run.sh]", None),
        ("[bash, -e, run.sh, -c]", "there is no script 'run.sh'"),
        ("[jupyter, nbconvert, --execute, --output, done.ipynb, own/train.ipynb]", None),
        ("[env, LR=1, python, train.py]", None),
        ("python -m torch.distributed.run --nproc-per-node=2 train.py", None),
        ("[torchrun, --nproc-per-node, 2, train.py]", None),
        ("[torchrun, -m, own.train]", None),
        ("[python, 'train_{seed}.py']", None),
        ("[make, train.py]", None),  # it may make it
        ("[python, own]", None),  # it has a `__main__.py`
        ("[./start, anything]", None),
        ("bash run.sh", "there is no script 'run.sh'"),
        ("[python, trian.py]", "did you mean 'train.py'?"),
        ("[python, trian]", "did you mean 'train.py'?"),
        ("[python, -W, ignore, trian.py]", "did you mean 'train.py'?"),
        ("[env, LR=1, python, trian.py]", "did you mean 'train.py'?"),
        ("[python, empty]", "there is no script 'empty'"),
        ("[jupyter, execute, train.ipynb]", "there is no script 'train.ipynb'"),
        ("[torchrun, --nproc-per-node, 2, scripts/train.py]", "there is no script 'scripts/train.py'"),
        ("[torchrun, --nproc-per-node=2, -m, own.trian]", "did you mean 'train'?"),
        ("python -m torch.distributed.run --module own.trian", "did you mean 'train'?"),
        ("[python, -u, -m, own.trian]", "did you mean 'train'?"),
        ("[python, -um, own.trian]", "did you mean 'train'?"),
        ("[python, -m, empty]", "'empty'"),
        ("[pyhton, train.py]", "did you mean 'python'?"),
        ("[./stop]", "there is no program './stop'"),
        ("[./train.py]", "chmod +x ./train.py"),
        ("[python, '']", None),
    ],
)
def test_what_a_command_starts(plan_of: Callable[..., Plan], copy: Path, command: str, problem: str | None) -> None:
    for folder in ("own", "empty"):
        (copy / folder).mkdir()
    for file in ("train.py", "own/train.py", "own/__main__.py", "own/train.ipynb"):
        (copy / file).write_text("")
    executable(copy / "start")
    if problem is None:
        plan_of(STUDY.format(command))
    else:
        with pytest.raises(ConfigError) as caught:
            plan_of(STUDY.format(command))
        assert problem in str(caught.value)
        assert "variant 'a'" in str(caught.value)


def test_a_program_is_looked_for_on_the_path_of_the_study(
    plan_of: Callable[..., Plan], copy: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy / "train.py").write_text("")
    monkeypatch.setenv("PATH", "/nowhere")
    study = STUDY.replace("command: {}", f"command: [python, train.py], env: {{{{PATH: {programs}}}}}")
    plan_of(study.format())
    with pytest.raises(ConfigError, match="there is no program 'python'"):
        plan_of(STUDY.format("[python, train.py]"))


def test_the_module_of_a_command(plan_of: Callable[..., Plan], copy: Path) -> None:
    python = copy / "environment" / "bin" / "python"
    (copy / "environment" / "lib" / "python3.11" / "site-packages" / "installed").mkdir(parents=True)
    python.parent.mkdir()
    executable(python)
    (copy / "own.py").write_text("")
    for module in ("own", "installed.train", "json.tool"):
        plan_of(STUDY.format(f"[{python}, -m, {module}]"))
    with pytest.raises(ConfigError, match="there is no module 'missing'"):
        plan_of(STUDY.format(f"[{python}, -m, missing.train]"))
    (python.parent.parent / "lib/python3.11/site-packages/project.pth").write_text("/elsewhere\n")
    plan_of(STUDY.format(f"[{python}, -m, missing.train]"))  # it may be there
