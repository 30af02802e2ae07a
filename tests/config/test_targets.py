"""A `_target_` that is not allowed, does not exist or does not take its arguments is refused before any training."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from steptrace.config import targets
from steptrace.config.inspect_targets import Answer, Call, answer
from steptrace.config.plan import Plan
from steptrace.errors import ConfigError

MINE = """
import abc
import dataclasses
import functools
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

import torch.nn as nn
from torch import Tensor
from torch.utils.data import Dataset

from others import Base, Far as Near

T = TypeVar("T")
NUMBER = 3
for each in ("A", "B"):
    globals()[each] = type(each, (), {})

class Own(nn.Module):
    def __init__(self, width: int, *, depth=2): ...
class Inherits(Own): ...
class Bare(nn.Module): ...
class Samples(Dataset[T]): ...
class Abstract(abc.ABC, Generic[T]): ...
class Mixed(Abstract, Own): ...
class Positional:
    def __init__(self, a, /, b, *rest): ...
@dataclass
class Fields(Abstract):
    a: int
    b: int = 2
    shared: ClassVar[int] = 3
    made: int = field(init=False)
@dataclasses.dataclass(frozen=True)
class MoreFields(Fields.__mro__[0] if False else object):
    c: int = 1
def function(a, *, b=1): ...
class ByNew:
    def __new__(cls, a): ...
class Meta(type):
    def __call__(cls, first): ...
class ByMeta(metaclass=Meta): ...
if T:
    class Conditional:
        def __init__(self, a): ...
        class Inner: ...

class Open:
    def __init__(self, a, **more): ...
class Exceptional(Exception): ...
class Wrapped:
    @functools.wraps(function)
    def __init__(self, *arguments, **named): ...
@functools.cache
def wrapped(): ...
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("python_path")
    (folder / "mine.py").write_text(MINE)
    (folder / "lazy.py").write_text(
        "def __getattr__(name):\n    if name == 'Net':\n        return print\n    raise AttributeError\n"
    )
    (folder / "broken.py").write_text("\nclass Loss(:\n")
    (folder / "leaves.py").write_text("import sys\n\nsys.exit(3)\n")
    (folder / "needs.py").write_text("import not_installed_anywhere\n")
    (folder / "others").mkdir()
    (folder / "others" / "__init__.py").write_text("from .deep import Base, Far\n")
    (folder / "others" / "deep.py").write_text("class Base:\n    def __init__(self, base): ...\nclass Far(Base): ...\n")
    yield folder
    for name in ("mine", "lazy", "others", "others.deep"):
        sys.modules.pop(name, None)


@pytest.fixture
def ask(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """A function from a target and the names of its arguments to the answer, given in this process."""
    monkeypatch.syspath_prepend(folder)

    def asking(target: str, *names: str, complete: bool = False, positional: int = 0, trusted: bool = True) -> Answer:
        allowed, origins = ((""), ("")) if trusted else (targets.ALLOWED, ("torch.", "steptrace."))
        return answer(Call(target, names, positional, complete, "loss", allowed, origins))

    return asking


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("Own", ["width", "depth"]),
        ("Inherits", ["width", "depth"]),
        ("Base", ["base"]),
        ("Near", ["base"]),
        ("Bare", []),
        ("Samples", []),
        ("Abstract", []),
        ("Mixed", ["width", "depth"]),
        ("Positional", ["b"]),
        ("Fields", ["a", "b"]),
        ("MoreFields", ["c"]),
        ("function", ["a", "b"]),
        ("ByNew", ["a"]),
        ("ByMeta", ["first"]),
        ("A", []),
        ("Conditional", ["a"]),
    ],
)
def test_arguments_that_a_class_takes(ask: Callable[..., Answer], name: str, names: list[str]) -> None:
    assert ask(f"mine.{name}", *names).problem is None
    refused = ask(f"mine.{name}", *names, "other")
    assert refused.problem == f"unknown key 'loss.other': mine.{name} takes no argument 'other'"
    assert refused.argument == "other"
    expected = f"known: {', '.join(sorted(names))}" if names else "remove it: it takes no argument by name"
    assert refused.next_step == expected


@pytest.mark.parametrize("name", ["Open", "Exceptional", "Wrapped", "wrapped"])
def test_what_may_take_any_argument_is_accepted(ask: Callable[..., Answer], name: str) -> None:
    assert ask(f"mine.{name}", "a", "other").problem is None


@pytest.mark.parametrize("target", ["torch.optim.AdamW", "torch.nn.Conv2d", "torch.nn.functional.relu"])
def test_pytorch_s_own_classes_and_functions(ask: Callable[..., Answer], target: str) -> None:
    assert ask(target, trusted=False).problem is None
    assert ask(target, "other", trusted=False).argument == "other"


def test_arguments_that_are_missing_or_too_many(ask: Callable[..., Answer]) -> None:
    missing = ask("mine.Own", "depth", complete=True)
    assert missing.problem == "loss: mine.Own: missing a required argument: 'width'"
    assert missing.next_step == "add `width:` to its YAML file, or an override `+loss.width=...`"
    assert ask("mine.Own", "depth").problem is None  # something is added when it is called
    assert ask("mine.Own", "depth", complete=True, positional=1).problem is None
    assert ask("mine.Own", positional=2).problem == "loss: mine.Own: too many positional arguments"
    assert ask("mine.Own", "width", positional=1).problem == "loss: mine.Own: multiple values for argument 'width'"


@pytest.mark.parametrize(
    ("target", "said", "step"),
    [
        ("steptrace.workloads.masked_losses.WhereLos", "there is no 'WhereLos' in", "did you mean 'WhereLoss'?"),
        ("steptrace.workloads.masked_loses.WhereLoss", "there is no 'masked_loses'", "did you mean 'masked_losses'?"),
        ("torch.optim.AdamV", "there is no 'AdamV' in torch.optim", "did you mean 'Adam'?"),
        ("mine.Ouwn", "there is no 'Ouwn' in mine", "did you mean 'Own'?"),
        ("mine.Tensr", "there is no 'Tensr' in mine", "did you mean 'Tensor'?"),  # imported there
        ("mine.Conditional.Iner", "there is no 'Iner' in Conditional", "did you mean 'Inner'?"),
        ("others.depp.Base", "there is no 'depp' in others", "did you mean 'deep'?"),
        ("others.Nothing", "there is no 'Nothing' in others", "known: Base, Far"),
        ("others.deep", "is a module", "name a class or function"),
        ("mine.NUMBER", "is of type int", "name a class or function"),
        ("lazy.Nit", "there is no 'Nit' in lazy", None),
        ("nowhere_at_all.Net", "there is no module 'nowhere_at_all'", "list its folder in `python_path`"),
        ("broken.Loss", "cannot be imported: SyntaxError: invalid syntax (broken.py, line 2)", "correct it"),
        ("leaves.Loss", "cannot be imported: SystemExit: 3 (", "correct it"),
        ("needs.Loss", "No module named 'not_installed_anywhere' (", "install what it needs"),
    ],
)
def test_a_target_that_does_not_exist(ask: Callable[..., Answer], target: str, said: str, step: str | None) -> None:
    found = ask(target)
    assert f"_target_ '{target}'" in str(found.problem)
    assert said in str(found.problem)
    assert step is None or step in str(found.next_step)
    assert found.next_step is None or len(found.next_step) < 200


def test_a_module_made_at_run_time(ask: Callable[..., Answer]) -> None:
    assert ask("lazy.Net").problem is None


def test_where_an_import_failed_is_said(ask: Callable[..., Answer], folder: Path) -> None:
    assert f"({folder / 'needs.py'}, line 1)" in str(ask("needs.Loss").problem)


@pytest.mark.parametrize(
    "target",
    [
        "torch.nn.modules.module.torch.hub.load",
        "torch.nn.modules.module.torch.load",
        "torch.utils.data.dataloader.os.system",
        "torch.nn.modules.module.namedtuple",
        "steptrace.workloads.giou_kernels.sys.exit",
    ],
)
def test_what_an_allowed_module_merely_imports_is_not_allowed(ask: Callable[..., Answer], target: str) -> None:
    refused = ask(target, trusted=False)
    assert "outside the allowed packages" in str(refused.problem)
    assert "allow_targets: [" in str(refused.next_step)
    assert ask(target).problem is None


STUDY = """
title: Tiny
baseline: plain
reference: [loss=masked_reference, precision=fp32]
variants:
  plain: [loss=boolean_mask]
  other: [loss=where]
"""


def test_a_key_of_a_group_s_file_is_told_with_the_file(plan_of: Callable[..., Plan], copy: Path) -> None:
    path = copy / "config" / "loss" / "where.yaml"
    path.write_text(path.read_text() + "ignore_idx: 3\n")
    with pytest.raises(ConfigError) as caught:
        plan_of(STUDY)
    assert str(caught.value) == (
        f"{path}: unknown key 'loss.ignore_idx': steptrace.workloads.masked_losses.WhereLoss takes no argument "
        "'ignore_idx'\n  next: did you mean 'ignore_index'?"
    )


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("+loss.foo=3", "tiny, variant other: unknown key 'loss.foo'"),
        ("+optimizer.momentun=0.5", "did you mean 'momentum'?"),
        ("+data.dataset.sise=3", "unknown key 'data.dataset.sise'"),
        ("+equivalence.model.hiden=3", "unknown key 'equivalence.model.hiden'"),
        ("loss._target_=torch.nn.MSELoss", "torch.nn.MSELoss takes no argument 'ignore_index'"),
        ("optimizer._target_=torch.optim.RMSprop", None),
        ("optimizer._partial_=false", "missing a required argument: 'params'\n  next: set `_partial_: true`"),
        ("+model.inner=[{_target_:torch.nn.Linear,width:1}]", "unknown key 'model.inner"),
        ("loss._target_=torch.nn.MSELos", "did you mean 'MSELoss'?"),
    ],
)
def test_an_override_is_told_with_the_variant(
    plan_of: Callable[..., Plan], override: str, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same answers without a process that imports torch, for each of the mistakes; the tests below have theirs.
    here = lambda pending, _: ((placed, answer(placed.call)) for placed in pending)  # noqa: E731
    monkeypatch.setattr(targets, "_ask", here)
    study = STUDY.replace("other: [loss=where]", f'other: ["{override}"]')
    if told is None:
        plan_of(study)
        return
    with pytest.raises(ConfigError) as caught:
        plan_of(study)
    assert told in str(caught.value)


def test_a_node_whose_class_completes_what_lies_below_it() -> None:
    config = {
        "model": {"_target_": "a.B", "_recursive_": False, "inner": {"_target_": "a.C", "list": [{"_target_": "a.D"}]}},
        "loss": {"_target_": "a.E", "_partial_": True},
        "optimizer": {"_target_": "a.F", "_args_": [1, 2]},
    }
    calls = {call.key: call for call in targets.calls_of(config, allow=["a"])}
    assert {key for key, call in calls.items() if call.complete} == {"model", "optimizer"}
    assert set(calls) == {"model", "model.inner", "model.inner.list.0", "loss", "optimizer", "equivalence.model"}
    assert calls["model"].names == ("inner",)
    assert calls["optimizer"].positional == 2


OWN = STUDY.replace("other: [loss=where]", "other: ['python_path=[plugins]', loss=mine]")


@pytest.fixture
def own(plan_of: Callable[..., Plan], copy: Path) -> Callable[[str], Plan]:
    """A function that plans a study with a loss of one's own, of this source."""
    (copy / "plugins").mkdir()
    (copy / "config" / "loss" / "mine.yaml").write_text("_target_: my_losses.Loss\nwidth: 3\n")

    def planned(source: str) -> Plan:
        path = copy / "plugins" / "my_losses.py"
        if not path.exists() or path.read_text() != source:
            path.write_text(source)
        return plan_of(OWN, allow_targets=["my_losses"])

    return planned


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has checked nothing yet."""
    monkeypatch.setattr(targets, "_checked", {})


def test_planning_again_imports_nothing(own: Callable[[str], Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    source = "print('imported')\nclass Loss:\n    def __init__(self, width): ...\n"
    own(source)
    forget(monkeypatch)
    asked: list[object] = []
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: asked.append(1) or 1 / 0)
    own(source)
    assert not asked


def test_a_changed_module_is_looked_at_again(own: Callable[[str], Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    own("class Loss:\n    def __init__(self, width): ...\n")
    forget(monkeypatch)
    with pytest.raises(ConfigError, match=r"mine\.yaml: unknown key 'loss\.width'"):
        own("class Loss:\n    def __init__(self, depth=3): ...\n")
    forget(monkeypatch)
    with pytest.raises(ConfigError, match=r"mine\.yaml: unknown key 'loss\.width'"):  # a mistake is not remembered
        own("class Loss:\n    def __init__(self, depth=3): ...\n")


def test_a_damaged_memory_is_no_obstacle(plan_of: Callable[..., Plan], copy: Path) -> None:
    memory = copy / "results" / ".cache" / "targets.json"
    plan_of(STUDY)
    right = json.loads(memory.read_text())
    for damage in ("{", "[]", '{"a": 3}'):
        memory.write_text(damage)
        plan_of(STUDY)
        assert json.loads(memory.read_text()) == right or damage == '{"a": 3}'


def test_folders_with_modules_of_one_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same_name.py").write_text(f"class Loss:\n    def __init__(self, {name}): ...\n")
    placed = [
        targets.Placed(Call("same_name.Loss", (name,), 0, True, "loss", ("",), ("",)), (tmp_path / name,), where=name)
        for name in ("one", "two")
    ]
    targets.check_calls(placed, cache=tmp_path / "cache.json", workdir=tmp_path, groups=[])
    wrong = targets.Placed(placed[0].call, placed[1].folders, where="study x")
    with pytest.raises(ConfigError, match=r"study x: unknown key 'loss\.one'"):
        targets.check_calls([*placed, wrong], cache=tmp_path / "cache.json", workdir=tmp_path, groups=[])


def test_a_module_that_ends_the_process(own: Callable[[str], Plan]) -> None:
    with pytest.raises(
        ConfigError, match=r"importing what `_target_` names ended without an answer: last words"
    ) as caught:
        own("import os, sys\nsys.stderr.write('last words')\nsys.stderr.flush()\nos._exit(0)\n")
    assert "my_losses.Loss" in str(caught.value)
