"""An argument that a class does not take is told before anything is trained, and nothing that it may take."""

from collections.abc import Callable
from pathlib import Path

import pytest

from steptrace.config.plan import Plan
from steptrace.config.signature import parameters_of
from steptrace.errors import ConfigError

MINE = """
import abc
import dataclasses
import functools
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

import torch.nn as nn
from torch.utils.data import Dataset

from others import Base, Far as Near
from others.deep import *
import others.deep

T = TypeVar("T")

class Own(nn.Module):
    def __init__(self, width: int, *, depth=2): ...
class Inherits(Own): ...
class FromOthers(Base): ...
class ByStar(Starred): ...
class ByModule(others.deep.Starred): ...
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
class MoreFields(Fields):
    c: int = 1
def function(a, *, b=1): ...

class Open:
    def __init__(self, a, **more): ...
class InheritsOpen(Open): ...
class ByNew:
    def __new__(cls, a): ...
class InheritsNew(ByNew): ...
class Meta(metaclass=Registry): ...
class InheritsNowhere(Nowhere): ...
class InheritsTwo(Own, Positional): ...
class Exceptional(Exception): ...
class WithWrapped:
    @functools.wraps(print)
    def __init__(self): ...
class Assigned:
    __init__ = function
@dataclass(init=False)
class NoInit(Exception):
    a: int
@functools.cache
def wrapped(): ...
if T:
    class Conditional: ...
class Twice: ...
class Twice: ...
class Patched: ...
Patched.__init__ = function
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python_path")
    (folder / "mine.py").write_text(MINE)
    (folder / "others").mkdir()
    (folder / "others" / "__init__.py").write_text("from .deep import Base, Far\n")
    (folder / "others" / "deep.py").write_text(
        "class Base:\n    def __init__(self, base): ...\nclass Far(Base): ...\n"
        "class Starred:\n    def __init__(self, star): ...\n"
    )
    return folder


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("Own", {"width", "depth"}),
        ("Inherits", {"width", "depth"}),
        ("FromOthers", {"base"}),
        ("Near", {"base"}),
        ("ByStar", {"star"}),
        ("ByModule", {"star"}),
        ("Bare", set()),
        ("Samples", set()),
        ("Abstract", set()),
        ("Mixed", {"width", "depth"}),
        ("Positional", {"b"}),
        ("Fields", {"a", "b"}),
        ("MoreFields", {"a", "b", "c"}),
        ("function", {"a", "b"}),
    ],
)
def test_what_source_tells(folder: Path, name: str, names: set[str]) -> None:
    assert parameters_of(f"mine.{name}", [folder]) == names


@pytest.mark.parametrize(
    "name",
    [
        *("Open", "InheritsOpen", "ByNew", "InheritsNew", "Meta", "InheritsNowhere", "InheritsTwo", "Exceptional"),
        *("WithWrapped", "Assigned", "NoInit", "wrapped", "Conditional", "Twice", "Patched", "Missing", "Own.forward"),
    ],
)
def test_what_source_does_not_tell(folder: Path, name: str) -> None:
    assert parameters_of(f"mine.{name}", [folder]) is None


def test_the_installed_packages() -> None:
    assert {"lr", "momentum"} <= (parameters_of("torch.optim.SGD", []) or set())
    assert "label_smoothing" in (parameters_of("torch.nn.CrossEntropyLoss", []) or set())
    assert parameters_of("torch.randn", []) is None  # compiled


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
        ("+model.inner=[{_target_:torch.nn.Linear,width:1}]", "unknown key 'model.inner"),
    ],
)
def test_an_override_is_told_with_the_variant(plan_of: Callable[..., Plan], override: str, told: str | None) -> None:
    study = STUDY.replace("other: [loss=where]", f'other: ["{override}"]')
    if told is None:
        plan_of(study)
        return
    with pytest.raises(ConfigError) as caught:
        plan_of(study)
    assert told in str(caught.value)
