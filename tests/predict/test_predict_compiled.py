"""Code that a program compiles: its calls are counted as they are made, and what compiling folds is no sync."""

import contextlib
import copy
import dataclasses
import errno
import importlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from steptrace import torch_names
from steptrace.advice.compiled import instead_of_break
from steptrace.documents.estimate import Estimate
from steptrace.documents.prediction import predicted_step
from steptrace.documents.probe import Prediction as Written
from steptrace.estimate.gpus import gpu_named
from steptrace.estimate.step import estimate_prediction, estimate_variants, followed_step
from steptrace.predict import Prediction, captured, graph_compiler, predict_syncs
from steptrace.predict.syncs import Syncs
from steptrace.torch_names import release_of

#: For tests of the kernels of compiled code.
needs_inductor = pytest.mark.skipif(
    release_of(torch.__version__) < captured._OLDEST, reason="finding the kernels of compiled code takes PyTorch 2.13"
)


def syncs_of(function: Callable[..., object], *shape: int, **options: object) -> tuple[int, int]:
    """The syncs of a function of a tensor of this shape: uncompiled, and compiled with these options."""
    totals = []
    for compiled in (False, True):
        with predict_syncs() as syncs:
            run = torch.compile(function, **options) if compiled else function
            x = torch.linspace(-1, 1, torch.Size(shape).numel(), device="cuda").view(shape)
            syncs.reset()
            run(x)
        totals.append(syncs.total)
    return totals[0], totals[1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.where(x > 0, x, torch.tensor(-1.0, device=x.device)),
        lambda x: x * torch.tensor(2.0).to(x.device),
        lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device),
        lambda x: x + x.new_tensor(3.0),
        lambda x: x[torch.tensor([0, 2])],
        lambda x: x[[0, 1]],
        lambda x: x + torch.arange(4).to(x.device),
        lambda x: x + (torch.zeros(4) + 1).to(x.device),
        lambda x: x.masked_fill(x > 0, torch.zeros((), device=x.device)),
        lambda x: torch.where(x > 0, x, torch.tensor(1.0)),
    ],
    ids=["where", "to", "list", "new_tensor", "index", "index list", "arange", "chain", "masked_fill", "host scalar"],
)
def test_small_constants_and_what_the_cpu_makes_of_none_are_no_copies_of_compiled_code(function):
    assert syncs_of(function, 4, 4) == (1, 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x.sum().item(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.cpu(),
        lambda x: x + torch.tensor([float(place) for place in range(64)], device=x.device),
    ],
    ids=["item", "if", "mask", "nonzero", "cpu", "many values"],
)
def test_what_breaks_the_graph_or_is_too_large_for_a_kernel_waits_as_uncompiled(function):
    assert syncs_of(function, 64) == (1, 1)


def test_a_copy_of_what_the_code_is_given_stays():
    table = torch.ones(4)
    assert syncs_of(lambda x: x + table.to(x.device), 4) == (1, 1)


def test_a_backend_that_fuses_nothing_folds_nothing():
    def function(x: Tensor) -> Tensor:
        return x * torch.tensor(2.0, device=x.device)

    assert syncs_of(function, 4, backend="eager") == (1, 1)
    assert syncs_of(function, 4, disable=True) == (1, 1)


def test_the_backward_pass_of_compiled_code_is_compiled():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(_, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(_, gradient: Tensor) -> Tensor:
            return gradient * torch.tensor(2.0, device=gradient.device)

    totals = []
    for compiled in (False, True):
        with predict_syncs() as syncs:
            run = torch.compile(lambda x: Scaled.apply(x)) if compiled else Scaled.apply
            run(torch.ones(4, device="cuda", requires_grad=True)).sum().backward()
        totals.append(syncs.total)
    assert totals == [1, 0]


@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
def test_compiled_flex_attention_copies_nothing():
    def followed(attention: Callable[..., Tensor]) -> Syncs:
        with predict_syncs() as syncs:
            mask = create_block_mask(lambda _b, _h, i, j: i >= j, None, None, 128, 128, device="cuda")
            query = torch.ones(1, 1, 128, 16, device="cuda", requires_grad=True)
            run = torch.compile(attention) if attention is flex_attention else attention
            syncs.reset()
            run(query, query, query, block_mask=mask).sum().backward()
        return syncs

    assert followed(lambda *args, **named: flex_attention(*args, **named)).total > 0
    compiled = followed(flex_attention)
    assert compiled.total == 0
    assert sum(place.count for place in compiled.unknown) == 1


def test_each_call_of_a_compiled_module_or_function_is_noted_once():
    with predict_syncs() as syncs:
        inner = torch.compile(nn.Linear(8, 8).cuda())
        outer = torch.compile(lambda x: inner(x).relu())
        x = torch.zeros(4, 8, device="cuda")
        syncs.reset()
        for _ in range(2):
            inner(x)
        outer(x)
    assert sorted(place.count for place in syncs.unknown) == [1, 2]


def test_a_compiled_module_is_one_as_pytorch_makes_it():
    with predict_syncs() as syncs:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda()
        compiled = torch.compile(model)
        assert compiled._orig_mod is model
        assert all(name.startswith("_orig_mod.") for name in compiled.state_dict())
        twin = copy.deepcopy(compiled).eval()
        assert model.training
        x = torch.ones(2, 4, device="cuda")
        torch.testing.assert_close(twin(x).cpu(), nn.functional.relu(model[0](x)).cpu())
        model.compile()
        model(x)
    assert sum(place.count for place in syncs.unknown) == 2


class _Block(nn.Module):
    """A transformer's feed-forward network, which breaks its graph where it is told so."""

    def __init__(self, *, reads: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.wide = nn.Linear(64, 256)
        self.narrow = nn.Linear(256, 64)
        self.reads = reads

    def forward(self, x: Tensor) -> Tensor:
        wide = nn.functional.gelu(self.wide(self.norm(x)))
        if self.reads:
            wide = wide * wide.mean().item()
        return x + self.narrow(wide)


class _Chain(nn.Module):
    """Maps of elements in a row: one kernel each way."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(8):
            x = (x * self.scale).sin()
        return x


def followed(module: nn.Module, **options: object) -> Prediction:
    """The second step of a compiled module, with its kernels."""
    with predict_syncs(follow_compiled=True) as syncs:
        model = torch.compile(module.cuda(), **options)
        for _ in range(2):
            syncs.reset()
            model(torch.ones(8, 32, 64, device="cuda")).sum().backward()
        return Prediction.so_far(syncs)


def estimated(prediction: Prediction) -> Estimate:
    """The estimate of what another process reads of a prediction."""
    read = msgspec.json.decode(msgspec.json.encode(prediction), type=Written)
    return estimate_prediction(predicted_step([read]), gpu_named("H100"))


@needs_inductor
def test_kernels_of_compiled_code_stand_for_its_operators_forward_and_backward():
    module = _Block()
    weights = [weight.detach().clone() for weight in module.parameters()]
    prediction = followed(module)
    (code,) = prediction.compiled.codes
    assert (code.graphs, code.unlowered, code.breaks) == (1, None, ())
    names = {part: [call.name for call in getattr(code.kernels, part)] for part in ("forward", "backward")}
    assert {name.split(".")[1] for name in names["forward"]} == {"addmm", "reduction", "pointwise"}
    assert sum(name.startswith("aten.") for name in names["forward"]) == 2
    assert names["backward"].count("aten.mm.default") == 4
    flop = sum(call.flop for part in names for call in getattr(code.kernels, part))
    assert flop == 3 * 2 * (2 * 8 * 32 * 64 * 256)
    assert prediction.compiled.queue.count(-2) == prediction.compiled.queue.count(-3) == 1
    assert len(prediction.compiled.queue) < len(prediction.queue)
    # Following them changes nothing of the program.
    assert all(torch.equal(a, b.cpu()) for a, b in zip(weights, module.parameters(), strict=True))


@needs_inductor
def test_a_graph_break_has_its_line_and_reason_and_the_kernels_of_both_graphs_are_known():
    prediction = followed(_Block(reads=True))
    # The number that is read differs at the second call, and the code behind the break is compiled again.
    code, again = prediction.compiled.codes
    assert (code.graphs, again.graphs) == (2, 1)
    assert [(found.file.endswith("test_predict_compiled.py"), ".item()" in found.code) for found in code.breaks] == [
        (True, True)
    ]
    assert sum(call.name.startswith("aten.") for call in code.kernels.forward) == 2
    assert prediction.total == 1


@needs_inductor
def test_alike_blocks_are_compiled_once():
    with predict_syncs(follow_compiled=True) as syncs:
        blocks = [torch.compile(_Block().cuda()) for _ in range(3)]
        x = torch.ones(8, 32, 64, device="cuda")
        for block in blocks:
            x = block(x)
        prediction = Prediction.so_far(syncs)
    # The first one gets an input without a gradient.
    assert len(prediction.compiled.codes) == 2
    assert sum(place < -1 for place in prediction.compiled.queue) == 3


@needs_inductor
def test_a_compiled_step_is_estimated_beside_the_uncompiled_one():
    prediction = followed(_Chain())
    eager = estimated(dataclasses.replace(prediction, compiled=None, unknown=()))
    compiled = estimated(prediction)
    assert compiled.uncompiled_ms == eager.step_ms
    assert compiled.launches < eager.launches == compiled.compiled.launches_uncompiled
    assert compiled.step_ms[1] < eager.step_ms[1]
    assert compiled.compiled.difference.is_faster
    assert compiled.peak_memory_bytes < eager.peak_memory_bytes
    graphs = estimated(followed(_Chain(), mode="reduce-overhead"))
    assert graphs.host_ms[1] < compiled.host_ms[1]


@needs_inductor
def test_a_study_s_estimates_say_what_compiling_changes():
    def read(prediction: Prediction) -> Any:
        return predicted_step([msgspec.json.decode(msgspec.json.encode(prediction), type=Written)])

    found = followed(_Chain(), fullgraph=True)
    assert found.compiled.codes[0].fullgraph
    predictions = {"eager": read(dataclasses.replace(found, compiled=None, unknown=())), "compiled": read(found)}
    steps = {name: followed_step(prediction) for name, prediction in predictions.items()}
    of_study = estimate_variants(steps, dict.fromkeys(steps, "eager"), gpu_named("H100"), predictions=predictions)
    assert of_study["eager"].compiled is None
    assert of_study["compiled"].compiled == estimated(found).compiled
    # Against the baseline, which is the same code uncompiled, it saves what compiling does.
    assert of_study["compiled"].difference.saved_ms == of_study["compiled"].compiled.difference.saved_ms


@needs_inductor
def test_code_that_cannot_be_lowered_stays_uncompiled_with_the_reason(monkeypatch):
    def refuses(*_: object, **__: object) -> None:
        raise NotImplementedError("no such PyTorch")

    monkeypatch.setattr(graph_compiler, "launches_of", refuses)
    prediction = followed(_Block())
    (code,) = prediction.compiled.codes
    assert (code.kernels, code.unlowered) == (None, "not_lowered")
    assert "no such PyTorch" in code.reason
    assert prediction.compiled.queue == prediction.queue
    flop = [prediction.operator_calls[place].flop for place in prediction.compiled.fused_queue if place >= 0]
    assert sum(flop) == 3 * 2 * (2 * 8 * 32 * 64 * 256)
    assert len(flop) < len(prediction.queue)
    estimate = estimated(prediction)
    assert estimate.step_ms is None
    assert estimate.compiled is None
    # Some compiled step lies between these.
    assert estimate.fused_ms[1] < estimate.uncompiled_ms[1]


@needs_inductor
def test_a_pytorch_without_a_name_loses_kernels_alone(monkeypatch):
    row = next(row for row in torch_names.NAMES if row.area == "compile")
    monkeypatch.setattr(captured, "missing", lambda area: [row] if area == "compile" else [])
    prediction = followed(_Block())
    (code,) = prediction.compiled.codes
    assert (code.kernels, code.unlowered) == (None, "names")
    assert row.path in code.reason
    assert prediction.total == 0


def test_code_is_followed_beside_any_number_of_open_files():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, before[1]), before[1]))
    try:
        with contextlib.ExitStack() as files:
            for _ in range(1100):  # `select` takes numbers below 1024
                files.enter_context(Path(os.devnull).open())
            assert captured.in_child(lambda: captured.unlowered("ended")) == captured.unlowered("ended")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_process_that_cannot_be_forked_loses_kernels_alone(monkeypatch):
    def refuses() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuses)
    assert captured.in_child(lambda: captured.unlowered("kinds")) is None


@pytest.mark.parametrize("limit", [8, 9])
def test_code_with_more_kinds_of_arguments_than_are_compiled_runs_uncompiled(monkeypatch, limit):
    monkeypatch.setattr(captured, "capture", lambda *_, **__: captured.unlowered("ended"))
    with torch._dynamo.config.patch(recompile_limit=limit), predict_syncs(follow_compiled=True) as syncs:
        function = torch.compile(lambda x: x + 1, dynamic=False)
        for size in range(1, 11):
            function(torch.ones(size, device="cuda"))
        reasons = [code.unlowered for code in Prediction.so_far(syncs).compiled.codes]
    assert reasons == ["ended"] * limit + ["kinds"]


def test_a_size_that_changes_is_one_kind_and_later_sizes_have_the_kernels_of_the_nearest(monkeypatch):
    sizes = []

    def captures(_target, args, *_, **__):
        sizes.append(len(args[0]))
        return captured.unlowered("ended")

    monkeypatch.setattr(captured, "capture", captures)
    with predict_syncs(follow_compiled=True) as syncs:
        function = torch.compile(lambda x: x + 1)
        for size in (4, 8, 64, 9, 60, 5, *range(10, 30)):
            function(torch.ones(size, device="cuda"))
        prediction = Prediction.so_far(syncs)
    assert sizes == [4, 8, 64]
    assert {code.unlowered for code in prediction.compiled.codes} == {"ended"}


def test_options_of_inductor_are_its_modes(monkeypatch):
    monkeypatch.setattr(captured, "capture", lambda *_, **__: captured.unlowered("ended"))
    found = []
    for options in ({"mode": "max-autotune-no-cudagraphs"}, {"options": {"triton.cudagraphs": True}}, {}):
        with predict_syncs(follow_compiled=True) as syncs:
            torch.compile(lambda x: x + 1, **options)(torch.ones(3, device="cuda"))
            (code,) = Prediction.so_far(syncs).compiled.codes
        found.append((code.cuda_graphs, code.tunes))
    assert found == [(False, True), (True, False), (False, False)]


def scaled_by_a_literal(x: Tensor) -> Tensor:
    return x * torch.tensor(2.0, device=x.device)


@pytest.mark.parametrize("owner", [torch.compiler, torch._dynamo], ids=["compiler", "dynamo"])
def test_what_is_excluded_from_compilation_waits_as_uncompiled(owner):
    with predict_syncs() as syncs:
        outside = owner.disable
        marked = outside(scaled_by_a_literal)
        decorated = outside()(scaled_by_a_literal)
        run = torch.compile(lambda x: scaled_by_a_literal(marked(x)) + decorated(x))
        x = torch.ones(3, device="cuda")
        syncs.reset()
        run(x)
    assert syncs.total == 2
    assert {site.line for site in syncs.sites} == {scaled_by_a_literal.__code__.co_firstlineno + 1}


#: Assertions as Python compiles them; those in the files of tests are pytest's.
ASSERTIONS = """
import torch

def asserted(x):
    assert torch.isfinite(x).all()
    assert x.sum() < 9, "a constant message"
    return x

def with_a_value(x):
    assert x.sum() < 9, f"{x.shape}"
    return x

def of_a_number(x):
    assert x.sum().item() < 9
    return x
"""


def test_an_assertion_on_a_tensor_is_checked_on_the_device_in_compiled_code():
    functions: dict[str, Callable[..., Tensor]] = {}
    exec(compile(ASSERTIONS, "assertions.py", "exec"), functions)
    assert syncs_of(functions["asserted"], 4) == (2, 0)
    assert syncs_of(functions["with_a_value"], 4) == (1, 1)
    assert syncs_of(functions["of_a_number"], 4) == (1, 1)


@needs_inductor
def test_what_is_added_to_gradients_between_two_passes_is_not_compiled():
    with predict_syncs(follow_compiled=True) as syncs:
        model = torch.compile(_Block().cuda())
        x = torch.ones(8, 32, 64, device="cuda")
        model(x).sum().backward()
        syncs.reset()
        model(x).sum().backward()
        prediction = Prediction.so_far(syncs)
    queue = prediction.compiled.queue
    assert (queue.count(-2), queue.count(-3)) == (1, 1)
    names = [prediction.operator_calls[place].name for place in queue if place >= 0]
    assert sum(name.startswith("aten.add_") for name in names) == len(list(model.parameters()))


@needs_inductor
def test_what_compiling_a_program_would_give_stands_beside_its_step_as_it_is():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = _Block(reads=True)
            self.chain = _Chain()

        def forward(self, x: Tensor) -> Tensor:
            return self.block(self.chain(x))

    with predict_syncs(compile_modules=True) as syncs:
        model = Outer().cuda()
        loss = nn.MSELoss()
        x = torch.ones(8, 32, 64, device="cuda")
        for _ in range(2):
            syncs.reset()
            model.zero_grad()
            loss(model(x), x).backward()
        prediction = Prediction.so_far(syncs)
    # The outermost module alone, and no loss without parameters; the code behind the break is compiled again.
    code, again = prediction.compiled.codes
    assert again.graphs == 1
    assert prediction.compiled.is_asked
    assert code.graphs > 1
    assert [one.kind for one in code.breaks]
    assert prediction.total == 1
    assert not prediction.unknown
    estimate = estimated(prediction)
    assert estimate.step_ms == estimate.uncompiled_ms
    assert estimate.compiled.launches < estimate.compiled.launches_uncompiled == estimate.launches
    assert estimate.compiled.peak_memory_bytes < estimate.peak_memory_bytes


@needs_inductor
def test_attention_and_autocast_of_compiled_code_are_those_of_the_gpu():
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(64, 192)

        def forward(self, x: Tensor) -> Tensor:
            query, key, value = self.project(x).view(8, 32, 3, 4, 16).permute(2, 0, 3, 1, 4)
            return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    with predict_syncs(follow_compiled=True) as syncs:
        model = torch.compile(Attending().cuda())
        with torch.autocast("cuda", torch.bfloat16):
            model(torch.ones(8, 32, 64, device="cuda"))
        (code,) = Prediction.so_far(syncs).compiled.codes
    attended = [call for call in code.kernels.forward if "attention" in call.name]
    assert [call.name for call in attended] == ["aten._scaled_dot_product_flash_attention.default"]
    assert {one.dtype for one in attended[0].inputs} == {"bfloat16"}
    assert attended[0].flop > 0


OPTIMIZER_STEP = """
import torch
from torch import nn
from steptrace.predict import Prediction, predict_syncs

with predict_syncs(follow_compiled=True) as syncs:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    step = torch.compile(optimizer.step)
    model(torch.ones(4, 16, device="cuda")).sum().backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step()
    (code,) = Prediction.so_far(syncs).compiled.codes
    assert code.unlowered is None, code.reason
    assert [call.name for call in code.kernels.forward] == ["inductor.pointwise"], code.kernels.forward
    assert code.kernels.backward == ()
    # The program's own optimizer has stepped.
    assert all((a - b).abs().sum().item() for a, b in zip(before, model.parameters(), strict=True))
"""


@needs_inductor
def test_a_compiled_step_of_an_optimizer_is_one_kernel_for_all_parameters():
    # In a process of its own, as predictions are: in one that has run many tests Inductor made a kernel for each.
    command = [sys.executable, "-W", "ignore", "-c", OPTIMIZER_STEP]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_inductor
def test_a_bias_of_a_convolution_is_added_in_the_kernel_that_follows():
    with predict_syncs(follow_compiled=True) as syncs:
        model = torch.compile(nn.Sequential(nn.Conv2d(32, 32, 3), nn.ReLU()).cuda())
        with torch.inference_mode(), torch.autocast("cuda", torch.float16):
            model(torch.ones(2, 32, 16, 16, device="cuda"))
        (code,) = Prediction.so_far(syncs).compiled.codes
    (convolution,) = (call for call in code.kernels.forward if call.name == "aten.convolution.default")
    assert [len(one.shape) for one in convolution.inputs] == [4, 4]


@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
def test_a_compiled_flex_attention_is_a_kernel_each_way_and_does_what_its_mask_leaves():
    with predict_syncs(follow_compiled=True) as syncs:
        mask = create_block_mask(lambda _b, _h, i, j: i >= j, None, None, 256, 256, device="cuda")
        query = torch.ones(1, 2, 256, 16, device="cuda", requires_grad=True)
        syncs.reset()
        torch.compile(flex_attention)(query, query, query, block_mask=mask).sum().backward()
        prediction = Prediction.so_far(syncs)
    (code,) = prediction.compiled.codes
    (forward,) = code.kernels.forward
    (backward,) = code.kernels.backward
    # Of 2 x 2 blocks, three are not masked.
    assert forward.flop == 3 / 4 * 4 * 2 * 256 * 256 * 16
    assert backward.flop == 2.5 * forward.flop
    assert (prediction.compiled.queue.count(-2), prediction.compiled.queue.count(-3)) == (1, 1)
    assert prediction.total == 0


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@needs_inductor
def test_flex_attention_in_other_compiled_code_is_a_kernel_each_way():
    causal = create_block_mask(lambda _b, _h, q, k: q >= k, None, None, 256, 256, device="cpu")
    kernels = {}
    for name, mask in (("all", None), ("causal", causal)):
        with predict_syncs(follow_compiled=True) as syncs:
            project = nn.Linear(32, 96).cuda()

            def attend(x: Tensor, mask: Any, project: nn.Linear = project) -> Tensor:
                query, key, value = project(x).view(1, 256, 3, 2, 16).permute(2, 0, 3, 1, 4)
                return flex_attention(query, key, value, block_mask=mask).sum()

            x = torch.ones(1, 256, 32, device="cuda")
            torch.compile(attend)(x, None if mask is None else mask.to("cuda")).backward()
            (code,) = Prediction.so_far(syncs).compiled.codes
        assert (code.breaks, code.unlowered, code.graphs) == ((), None, 1)
        for way in ("forward", "backward"):
            (kernels[name, way],) = [one for one in getattr(code.kernels, way) if "flash_attention" in one.name]
    full = 2 * 2 * 256 * 256 * (16 + 16)
    assert kernels["all", "forward"].flop == full
    assert kernels["all", "backward"].flop == full * 5 // 2
    # Of the four blocks of 128 by 128 the mask leaves three.
    assert kernels["causal", "forward"].flop == full * 3 // 4


@needs_inductor
def test_a_literal_of_a_number_that_varies_does_not_break_a_graph():
    with predict_syncs(follow_compiled=True) as syncs:
        model = nn.Linear(8, 8).cuda()
        scaled = torch.compile(lambda x, factor: (model(x) * torch.tensor(factor, device=x.device)).sum())
        syncs.reset()
        for number in range(3):
            scaled(torch.ones(4, 8, device="cuda"), 0.5 * number)
        prediction = Prediction.so_far(syncs)
    # Dynamo makes the number dynamic at its second value, and AOTAutograd makes it a constant again: `torch.tensor`
    # takes no number that is a tensor of the graph.
    codes = prediction.compiled.codes
    assert {(code.unlowered, code.breaks) for code in codes} == {(None, ())}
    assert [code.graphs for code in codes] == [1, 1, 1]
    assert prediction.total == 0


@pytest.mark.parametrize(
    ("owner", "name"),
    [(torch.compiler, "is_compiling"), (torch.compiler, "is_dynamo_compiling"), (torch._dynamo, "is_compiling")],
)
def test_what_the_program_leaves_out_while_it_is_compiled_makes_nobody_wait(owner, name):
    def checked(x: Tensor) -> Tensor:
        if not getattr(owner, name)() and x.sum() > 0:
            return -x
        return x + 1

    assert syncs_of(checked, 4) == (1, 0)
    # Dynamo says yes for any backend.
    assert syncs_of(checked, 4, backend="eager") == (1, 0)
    assert syncs_of(checked, 4, disable=True) == (1, 1)
    assert syncs_of(lambda x: torch.compiler.disable(checked)(x), 4) == (1, 1)
    assert not getattr(owner, name)()


@needs_inductor
def test_a_call_of_compiled_code_is_told_as_not_covered_only_where_its_kernels_are_not_known(monkeypatch):
    def text(*, followed: bool) -> str:
        with predict_syncs(follow_compiled=followed) as syncs:
            torch.compile(lambda x: x + 1)(torch.ones(3, device="cuda"))
            assert [place.op for place in Prediction.so_far(syncs).unknown] == ["torch.compile"]
            return str(syncs)

    assert "torch.compile at" in text(followed=False)
    assert "torch.compile at" not in text(followed=True)
    monkeypatch.setattr(captured, "capture", lambda *_, **__: captured.unlowered("ended"))
    assert "torch.compile at" in text(followed=True)


@needs_inductor
def test_a_graph_that_breaks_before_any_line_of_the_program_breaks_at_the_call():
    with predict_syncs(follow_compiled=True) as syncs:
        lstm = torch.compile(nn.LSTM(4, 4).cuda())
        lstm(torch.ones(3, 2, 4, device="cuda"))
        (code,) = Prediction.so_far(syncs).compiled.codes
    assert {(one.file, one.line, one.by_pytorch) for one in code.breaks} == {(code.file, code.line, False)}


@needs_inductor
def test_tuned_products_may_be_quicker_and_nothing_else_changes():
    plain = estimated(followed(_Block()))
    tuned = estimated(followed(_Block(), mode="max-autotune-no-cudagraphs"))
    assert tuned.launches == plain.launches
    assert tuned.gpu_ms[0] < plain.gpu_ms[0]
    assert 0.95 * plain.gpu_ms[1] < tuned.gpu_ms[1] <= plain.gpu_ms[1]


@needs_inductor
def test_kernels_of_compiled_autograd_are_not_known_with_a_code():
    with torch._dynamo.config.patch(compiled_autograd=True):
        prediction = followed(_Block(reads=True))
    code, again = prediction.compiled.codes
    assert {(found.kernels, found.unlowered) for found in (code, again)} == {(None, "compiled_autograd")}
    # Its graphs and graph breaks are those of the forward pass.
    assert (code.graphs, len(code.breaks)) == (2, 1)
    estimate = estimated(prediction)
    assert estimate.step_ms is None
    assert estimate.fused_ms[0] < estimate.uncompiled_ms[1]


@needs_inductor
def test_dynamo_knows_pytorch_s_own_functions_after_its_first_use_in_a_prediction():
    own = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling
    of_torch = importlib.import_module("torch._dynamo.variables.torch")
    of_torch.tracing_state_functions.cache_clear()
    of_torch.TorchInGraphFunctionVariable._get_handlers.cache_clear()
    with predict_syncs():
        assert torch.compiler.is_compiling not in own
        known = of_torch.tracing_state_functions()
    assert set(own) <= set(known)


def _condition(x: Tensor) -> Tensor:
    while x.norm() > 1e9:
        x = x / 2
    return x.sin()


def _number_as_index(x: Tensor) -> Tensor:
    return x[int(x.argmax())]


def _through_numpy(x: Tensor) -> Tensor:
    return x * torch.from_numpy(x.detach().cpu().numpy()).cuda()


def _sum_of_a_generator(x: Tensor) -> Tensor:
    return sum(x * k for k in range(3))


def _logged(x: Tensor) -> Tensor:
    return x * len(f"{x.mean():.2f}")


def _checkpointed(x: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)


def _with_context(x: Tensor) -> Tensor:
    with _printing():
        return x.cos()


@contextlib.contextmanager
def _printing():
    print(end="")  # noqa: T201
    yield


@needs_inductor
@pytest.mark.parametrize(
    ("function", "breaks"),
    [
        (_condition, ["Data-dependent branching"]),
        (_number_as_index, ["Unsupported Tensor.item() call with capture_scalar_outputs=False"]),
        (_through_numpy, []),
        (_sum_of_a_generator, []),
        (_logged, ["Observed exception"]),
        (_checkpointed, []),
        (_with_context, ["Failed to trace builtin operator"]),
    ],
)
def test_code_is_followed_with_the_breaks_of_its_own_lines_alone(function, breaks):
    with predict_syncs(follow_compiled=True) as syncs:
        torch.compile(function)(torch.ones(8, 8, device="cuda", requires_grad=True) * 1.0)
        (code,) = Prediction.so_far(syncs).compiled.codes
    assert code.unlowered in (None, "no_operators")
    assert [found.kind for found in code.breaks] == breaks
    assert all(found.file.endswith("test_predict_compiled.py") for found in code.breaks)
    assert all(instead_of_break(found.kind) for found in code.breaks)


def test_a_release_that_is_too_old_is_named_in_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "_OLDEST", (99, 0))
    code = captured.capture(torch.sin, (torch.ones(2),), {}, facts={}, dynamic=None, originals={})
    assert code.unlowered == "release"
    assert type(code.reason) is str  # PyTorch's own type cannot be written as JSON by everyone
