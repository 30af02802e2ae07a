"""The compiled extension, its twin, and what both must agree on."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

EXTENSION = Path(__file__).resolve().parents[2] / "ext" / "giou"
sys.path.insert(0, str(EXTENSION / "python"))


@dataclass(frozen=True)
class Tolerance:
    """How far the library may be from the twin on the same numbers: `loss` absolute, `gradient` over its scale."""

    loss: float
    gradient: float


# Stated once. Losses are means of numbers in [-1, 1] in float32 whatever the predictions' dtype; gradients are rounded
# to that dtype.
TOLERANCES = {
    torch.float64: Tolerance(loss=1e-13, gradient=1e-12),
    torch.float32: Tolerance(loss=2e-6, gradient=5e-6),
    torch.float16: Tolerance(loss=2e-6, gradient=2.0**-10),
    torch.bfloat16: Tolerance(loss=2e-6, gradient=2.0**-7),
}

DTYPE_PAIRS = [
    (torch.float32, torch.float32),
    (torch.float32, torch.uint8),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.uint8),
    (torch.float16, torch.float16),
    (torch.float16, torch.float32),
    (torch.float16, torch.uint8),
    (torch.float64, torch.float64),
    (torch.float64, torch.float32),
    (torch.float64, torch.uint8),
]


@pytest.fixture(scope="session")
def tolerance() -> Callable[[torch.dtype], Tolerance]:
    return TOLERANCES.__getitem__


@pytest.fixture(scope="session")
def agree() -> Callable[..., None]:
    """Holds a loss and its gradient against others, within the tolerance of the predictions' type."""

    def check(
        ours: tuple[torch.Tensor, torch.Tensor], theirs: tuple[torch.Tensor, torch.Tensor], dtype: torch.dtype
    ) -> None:
        loss, gradient = ours
        expected_loss, expected = theirs
        limit = TOLERANCES[dtype]
        torch.testing.assert_close(loss, expected_loss, rtol=0, atol=limit.loss)
        scale = expected.abs().max().item()
        torch.testing.assert_close(gradient, expected, rtol=limit.gradient, atol=limit.gradient * scale)

    return check


@pytest.fixture(params=DTYPE_PAIRS, ids=lambda pair: "-".join(str(dtype).removeprefix("torch.") for dtype in pair))
def dtypes(request: pytest.FixtureRequest) -> tuple[torch.dtype, torch.dtype]:
    return request.param


@pytest.fixture(scope="session")
def build() -> ModuleType:
    from steptrace_giou import build as module

    return module


@pytest.fixture(scope="session")
def ops(build: ModuleType) -> ModuleType:
    """`steptrace_giou.ops` on a library built from the present sources."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to build the extension with")
    from steptrace_giou import library

    build.build(library.DEFAULT_FOLDER, build.choose_toolchain("auto"))
    from steptrace_giou import ops as module

    assert module.IMPLEMENTATION.name == "library", module.IMPLEMENTATION.reason
    return module


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    from steptrace_giou import reference as module

    return module


@pytest.fixture(params=["library", "reference"])
def giou(request: pytest.FixtureRequest) -> ModuleType:
    """Either implementation: what holds for one holds for the other."""
    return request.getfixturevalue("ops" if request.param == "library" else "reference")


MakeBoxes = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(scope="session")
def make_boxes() -> MakeBoxes:
    """Predictions around the targets, some of them reversed; a share of the targets is padding."""

    def make(
        *shape: int,
        dtypes: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32),
        valid: float = 0.6,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(sum(shape) + kwargs.pop("seed", 0))
        corner = torch.randint(0, 100, (*shape, 2), generator=random)
        size = torch.randint(1, 100, (*shape, 2), generator=random)
        targets = torch.cat([corner, corner + size], -1) * (torch.rand(*shape, 1, generator=random) < valid)
        predictions = targets + 20 * torch.randn(*shape, 4, generator=random)
        return predictions.to(dtypes[0]), targets.to(dtypes[1])

    return make


@pytest.fixture(scope="session")
def loss_and_gradient() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The loss and d loss / d predictions of an implementation."""

    def call(
        module: ModuleType, predictions: torch.Tensor, targets: torch.Tensor, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = predictions.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        loss = module.giou_loss(leaf, targets, **kwargs)
        (gradient,) = torch.autograd.grad(loss, leaf)
        return loss.detach(), gradient

    return call
