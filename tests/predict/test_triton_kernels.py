"""Triton kernels: launches are remarks, and what a kernel's source says that it writes is assumed.

Triton itself is not needed: kernels here have what its own have. `tests/standin/test_triton.py` launches real ones.
"""

import textwrap
from types import SimpleNamespace

import pytest
import torch

from steptrace.predict import predict_syncs, triton_kernels


class Kernel:
    """A kernel as Triton holds it."""

    def __init__(self, source, **others):
        self.src = textwrap.dedent(source)
        names = self.src[self.src.index("(") + 1 : self.src.index(")")].split(", ")
        self.arg_names = [name.partition("=")[0] for name in names]
        self.params = [
            SimpleNamespace(name=name.partition("=")[0], default=name.partition("=")[2], has_default="=" in name)
            for name in names
        ]
        self.pre_run_hooks = []
        self.__name__ = "kernel"
        self.fn = SimpleNamespace(__globals__=others)


STORE = Kernel("def store(out, at, value):\n    tl.store(out + at, value)\n")
FORMS = {
    "a pointer": ("def k(x, y, n):\n    tl.store(y + tl.arange(0, n), tl.load(x))\n", {"y", "n"}),
    "a pointer with a name": (
        "def k(x, y, n):\n    at = y\n    for i in range(n):\n        at += i\n    tl.store(at, 1)\n",
        {"y"},
    ),
    "an index that was loaded": ("def k(x, y):\n    i = tl.load(x)\n    tl.store(y + i, i)\n", {"y"}),
    "an atomic operation": ("def k(x, y):\n    tl.atomic_add(y, tl.load(x))\n", {"y"}),
    "a block": (
        "def k(x, y, n):\n    block = tl.make_block_ptr(base=y, shape=(n,))\n    tl.store(block, tl.load(x))\n",
        {"y", "n"},
    ),
    "a descriptor": ("def k(x, y):\n    y.store([0, 0], x.load([0, 0]))\n", {"y"}),
    "a function of the program's": ("def k(x, y):\n    store(y, 0, tl.load(x))\n", {"y"}),
    "that function by names": ("def k(x, y):\n    store(value=tl.load(x), at=0, out=y)\n", {"y"}),
    "several targets": ("def k(x, y, z):\n    a, b = y, z\n    tl.store(b, tl.load(x))\n", {"y", "z"}),
    "nothing": ("def k(x, y):\n    unknown(x, y)\n", set()),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_a_kernel_writes_to_is_read_in_its_source(form):
    source, expected = FORMS[form]
    assert triton_kernels._written(Kernel(source, store=STORE)) == expected


def test_functions_that_call_each_other_end():
    first = Kernel("def first(x, n):\n    second(x, n)\n")
    second = Kernel("def second(y, n):\n    tl.store(y, n)\n    first(y, n)\n", first=first)
    first.fn.__globals__["second"] = second
    assert triton_kernels._written(first) == {"x"}


@pytest.fixture
def launched():
    """What a launch gives, predicts and leaves behind."""

    def launch(kernel, *args, grid=(1,), **kwargs):
        return triton_kernels._launch(kernel, *args, grid=grid, warmup=False, **kwargs)

    return launch


def test_a_launch_is_a_remark_and_its_results_are_assumed(launched):
    kernel = Kernel("def k(x, y, n, B=64):\n    tl.store(y, tl.load(x))\n")
    asked = []
    with predict_syncs() as syncs:
        x, y = torch.tensor([2.0, 3.0]).cuda(), torch.empty(2, device="cuda")
        syncs.reset()
        launched(kernel, x, y, n=2, grid=lambda given: asked.append(given) or (1,))
        assert syncs.total == 0
        assert [(place.op, place.count) for place in syncs.unknown] == [("triton::kernel", 1)]
        assert x.tolist() == [2, 3]
        assert not syncs.assumed
        assert torch.isfinite(y).all().item()
        assert syncs.assumed
    assert (asked[0]["n"], asked[0]["B"]) == (2, "64")


def test_a_kernel_that_says_nothing_may_have_written_to_any_numbers(launched):
    with predict_syncs() as syncs:
        values = torch.tensor([2.0]).cuda()
        index = torch.tensor([7]).cuda()
        launched(Kernel("def k(x, i):\n    unknown(x, i)\n"), values, index)
        assert index.item() == 7
        assert not syncs.assumed
        values.item()
        assert syncs.assumed


def test_a_tensor_of_the_host_is_refused_as_triton_refuses_it(launched):
    kernel = Kernel("def k(x):\n    tl.store(x, 1)\n")
    with predict_syncs():
        with pytest.raises(ValueError, match="cannot be accessed from Triton"):
            launched(kernel, torch.ones(2))
        launched(kernel, torch.ones(2).pin_memory())


def test_a_compiled_kernel_is_asked_and_launched():
    kernel = Kernel("def k(x, n):\n    tl.store(x, n)\n")
    with predict_syncs() as syncs:
        x = torch.ones(2, device="cuda")
        compiled = triton_kernels._launch(kernel, x, 2, grid=(1,), warmup=True)
        assert not syncs.unknown
        assert compiled.n_regs > 0
        compiled[(1, 1, 1)](x, 2)
    assert [place.op for place in syncs.unknown] == ["triton::kernel"]
