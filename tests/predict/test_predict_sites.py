"""Where predicted syncs are said to be, and what is said not to be known."""

import copy
import importlib
import inspect
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import record_function

from steptrace.documents import probe
from steptrace.documents.base import convert
from steptrace.documents.prediction import predicted_step
from steptrace.predict import Prediction, Site, SyncRule, predict_syncs
from steptrace.predict.sync_rules import SyncRules
from steptrace.predict.syncs import Syncs

HERE = __file__


def line_of(function: object, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return next(first + offset for offset, line in enumerate(lines) if text in line)


def read(x: Tensor) -> float:
    with record_function("outer"), record_function("reading"):
        return x.sum().item()


def test_a_site_has_line_label_and_count():
    with predict_syncs() as syncs:
        x = torch.rand(3, device="cuda")
        read(x)
        read(x)
    assert syncs.sites == [
        Site(
            kind="d2h_copy", op="aten::_local_scalar_dense", file=HERE, line=line_of(read, "x.sum()"), function="read",
            code="return x.sum().item()", label="reading", phase="forward", count=2, reason="the host reads one value",
        )
    ]  # fmt: skip
    assert syncs.total == 2


def twice_read(weight: Tensor, steps: int) -> None:
    """Reads a value before and after the backward pass, in every second step by turns."""
    for step in range(steps):
        loss = (weight * 2).sum()
        if step % 4 == 0:
            read(loss)
        loss.backward()
        if step % 4 == 2:
            read(loss)
        Syncs.active.step_ends()


def test_a_line_that_runs_in_several_parts_of_a_step_is_one_site():
    weight = torch.ones(3, device="cpu", requires_grad=True)
    with predict_syncs() as syncs:
        twice_read(weight.to("cuda").detach().requires_grad_(), steps=8)
    (site,) = [site for site in syncs.sites if site.function == "read"]
    assert (site.count, site.by_step) == (4, (1, 0, 1, 0, 1, 0, 1, 0))
    assert site.phase in ("forward", "other")
    told = predicted_step([convert(Prediction.so_far(syncs).to_json(), probe.Prediction)]).sites[-1].site
    assert (told.in_steps, told.of_steps, told.every) == (4, 8, 2)


def test_the_backward_pass_of_a_line_is_a_site_of_its_own():
    with predict_syncs() as syncs:
        weight = torch.ones(3, device="cuda").requires_grad_()
        mask = torch.ones(3, device="cuda") > 0
        weight[mask].sum().backward()
    assert {site.phase for site in syncs.sites} == {"forward", "backward"}
    assert len({site.line for site in syncs.sites}) == 1


def test_counts_of_steps_are_forgotten_with_all_others():
    with predict_syncs() as syncs:
        x = torch.rand(3, device="cuda")
        read(x)
        syncs.step_ends()
        syncs.reset()
        read(x)
        syncs.step_ends()
    assert [site.by_step for site in syncs.sites] == [(1,)]


def test_a_function_that_a_library_made_of_text_has_no_line_of_its_own():
    made: dict[str, Any] = {}
    exec("def made(x):\n    return x.sum().item()\n", made)
    with predict_syncs() as syncs:
        made["made"](torch.rand(3, device="cuda"))
    (site,) = syncs.sites
    assert (site.file, site.code) == (HERE, 'made["made"](torch.rand(3, device="cuda"))')


def test_operators_are_counted_under_every_label_they_run_in_without_views():
    with predict_syncs() as syncs:
        read(torch.rand(2, 3, device="cuda").t())
    assert syncs.operators_per_label == {"outer": 2, "reading": 2}  # sum and the read
    assert syncs.operator_total == 3  # and rand


def lose(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].sum()


def test_a_sync_in_backward_is_mapped_to_the_forward_line():
    with predict_syncs() as syncs:
        x = torch.rand(3, device="cuda", requires_grad=True)
        lose(x, x.detach() > 0.5).backward()
    forward, backward = syncs.sites
    assert (forward.phase, backward.phase) == ("forward", "backward")
    assert (backward.file, backward.line, backward.function) == (HERE, line_of(lose, "x[mask]"), "lose")
    assert backward.op.startswith("aten::index_put") or backward.op == "aten::_index_put_impl_"


def test_each_part_of_a_step_has_its_phase():
    model = nn.Linear(3, 1)
    frozen = nn.Linear(3, 3).requires_grad_(requires_grad=False)
    batch = torch.ones(2, 3)
    loader = torch.utils.data.DataLoader(torch.ones(4, 3), batch_size=2)
    with predict_syncs() as syncs:
        model = model.cuda()
        frozen = frozen.cuda()
        average = copy.deepcopy(model.weight).detach()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for values in loader:
            syncs.reset()
            inputs = values.cuda()
            optimizer.zero_grad(set_to_none=False)
            targets = batch.cuda()
            if inputs.sum().item() > 0:
                targets = targets + batch.cuda()
            loss = (model(frozen(inputs)) - targets).square().sum()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
            optimizer.step()
            average.lerp_(model.weight.detach(), 0.1)
            loss.item()
            with torch.no_grad():
                frozen(inputs).sum().item()
    phases = ["data", "data", "forward", "forward", "other", "other", "other"]
    assert [(site.phase, site.count) for site in syncs.sites] == [(phase, 1) for phase in phases]
    assert {call.phase for call in syncs.operators} == {"data", "forward", "backward", "optimizer", "other"}


def test_a_model_is_moved_before_the_forward_pass_whatever_it_holds():
    """A batch norm has a counter of its batches, a single number: its copy is the start of nothing."""
    with predict_syncs() as syncs:
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).to("cuda")
        assert syncs.copied_before() == syncs.total == 9
        model(torch.ones(2, 3, device="cuda"))
        torch.tensor(1.0).to("cuda")
        assert [site.phase for site in syncs.sites] == ["data", "forward"]


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: object, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(_ctx: object, grad: Tensor) -> Tensor:
        return grad.clamp(max=grad.max().item())


def test_a_backward_written_in_python_and_a_hook_have_their_own_lines():
    with predict_syncs() as syncs:
        x = torch.rand(3, device="cuda", requires_grad=True)
        y = x * 2
        y.register_hook(lambda grad: grad * grad.max().item())
        Clipped.apply(y).sum().backward()
    assert [(site.phase, site.line) for site in syncs.sites] == [
        ("backward", line_of(Clipped.backward, "grad.max()")),
        ("backward", line_of(test_a_backward_written_in_python_and_a_hook_have_their_own_lines, "register_hook")),
    ]


def test_a_gradient_on_its_way_back_to_the_cpu_is_a_sync_of_the_line_that_moved_the_tensor():
    weight = torch.rand(3, requires_grad=True)
    with predict_syncs() as syncs:
        moved = weight.cuda()
        syncs.reset()
        moved.sum().backward()
    (site,) = syncs.sites
    assert (site.kind, site.phase, site.code) == ("d2h_copy", "backward", "moved = weight.cuda()")


def test_frames_of_pytorch_are_not_blamed():
    with predict_syncs() as syncs:
        torch.distributions.Bernoulli(probs=torch.full((2,), 0.5, device="cuda"), validate_args=True)
        str(torch.ones(2, device="cuda"))
    assert {site.file for site in syncs.sites} == {HERE}


def test_a_sync_in_a_library_names_the_program_s_line_too(tmp_path, monkeypatch):
    installed = tmp_path / "site-packages" / "steptrace_test_library.py"
    installed.parent.mkdir()
    installed.write_text("def count(mask):\n    return mask.nonzero()\n\ndef pick(x, mask):\n    return x[mask]\n")
    monkeypatch.syspath_prepend(installed.parent)
    library = importlib.import_module("steptrace_test_library")
    with predict_syncs() as syncs:
        x = torch.ones(3, device="cuda", requires_grad=True)
        library.count(x > 0)
        picked = library.pick(x, x > 0)
        picked.sum().backward()
    here = test_a_sync_in_a_library_names_the_program_s_line_too
    places = [(site.file, site.line, site.program_file, site.program_line, site.phase) for site in syncs.sites]
    pick = line_of(here, "library.pick(x")
    assert places == [
        (str(installed), 2, HERE, line_of(here, "library.count(x"), "forward"),
        (str(installed), 5, HERE, pick, "forward"),
        (str(installed), 5, HERE, pick, "backward"),
    ]
    assert Prediction.so_far(syncs).sites[0].file == installed.name


@pytest.fixture
def library():
    made = torch.library.Library("steptrace_sites_test", "FRAGMENT")
    made.define("twice(Tensor x) -> Tensor")
    made.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    yield made
    made._destroy()


@pytest.mark.usefixtures("library")
def test_a_custom_operator_is_unknown_until_it_has_a_rule():
    rule = SyncRule("steptrace_sites_test::twice", "stream", lambda _: 1, "its kernel's source", "it waits")
    with predict_syncs() as unknown:
        assert torch.ops.steptrace_sites_test.twice(torch.ones(2, device="cuda")).is_cuda
    with predict_syncs(rules=[rule]) as judged:
        torch.ops.steptrace_sites_test.twice(torch.ones(2, device="cuda"))
    assert [u.op for u in unknown.unknown] == ["steptrace_sites_test::twice"]
    assert unknown.total == 0
    assert not judged.unknown
    assert [(site.kind, site.reason) for site in judged.sites] == [("stream", "it waits")]


def test_rows_of_a_program_go_before_those_given_and_these_before_the_table_s():
    def waits(op: str, number: int) -> SyncRule:
        return SyncRule(op, "stream", number, "a source", "a reason")

    def counted() -> int:
        before = Syncs.active.total
        torch.ones(2, device="cuda").nonzero()
        return Syncs.active.total - before

    with predict_syncs():
        assert counted() == 1
    with predict_syncs(rules=[waits("nonzero", 2)]) as syncs:
        assert counted() == 2
        syncs.rules = SyncRules([waits("nonzero", 3)])
        assert counted() == 3
    with predict_syncs(rules=[waits("masked_fill_", 2)]) as syncs:
        assert counted() == 1  # all others are forgotten
        x = torch.ones(2, device="cuda")
        x.masked_fill_(x > 0, 1.0)
        assert syncs.total == 3
        x.masked_fill_(x > 0, x.sum())  # an overload with rows of its own
        assert syncs.total == 4


@pytest.mark.parametrize(
    "step",
    [
        lambda: torch.ones(2, 4096, device="cuda").mode(1),
        lambda: torch.linalg.eigh(torch.eye(2, device="cuda")),
        lambda: torch.linalg.svd(torch.eye(2, device="cuda")),
        lambda: torch.compile(lambda x: x)(torch.ones(1, device="cuda")),
        lambda: torch.eye(2, device="cuda").to_sparse().narrow_copy(0, 0, 1),
        lambda: torch.cuda.empty_cache(),
    ],
)
def test_what_cannot_be_judged_is_unknown_not_none(step):
    with predict_syncs() as syncs:
        step()
    assert syncs.unknown
    assert all(place.reason and place.file == HERE for place in syncs.unknown)


def test_a_compiled_function_that_is_not_called_is_nothing_unknown():
    with predict_syncs() as syncs:
        torch.compile(read)
    assert not syncs.unknown


def test_syncs_of_other_threads_of_the_program_are_counted():
    with predict_syncs() as syncs:
        x = torch.rand(2, device="cuda")
        thread = threading.Thread(target=read, args=(x,))
        thread.start()
        thread.join()
    assert [site.function for site in syncs.sites] == ["read"]


def test_the_code_of_a_site_goes_on_to_where_its_brackets_close():
    with predict_syncs() as syncs:
        x = torch.ones(3, device="cuda")
        if (
            (x > 0).all()
            and x.numel()
        ):  # fmt: skip
            x = x * 2
        max(
            1,
            x[0].item(),
        )  # fmt: skip
    asked, read = [site.code for site in syncs.sites]
    # Python 3.11 places the jump at the whole `if`, later ones at its first condition.
    assert asked in ("if ( (x > 0).all() and x.numel() ):  # fmt: skip", "(x > 0).all()")
    assert read == "x[0].item(),"


def test_a_program_that_switches_anomaly_mode_off_keeps_the_lines_of_its_backward_pass():
    with predict_syncs() as syncs:
        torch.autograd.set_detect_anomaly(False)
        assert not torch.is_anomaly_enabled()
        x = torch.rand(3, device="cuda", requires_grad=True)
        lose(x, x.detach() > 0.5).backward()
    assert syncs.sites[-1].phase == "backward"
    assert syncs.sites[-1].line == line_of(lose, "x[mask]")
    assert not torch.is_anomaly_enabled()


def test_anomaly_mode_of_the_program_checks_for_nan():
    def divide() -> None:
        with predict_syncs(), torch.autograd.detect_anomaly():
            x = torch.zeros(3, device="cuda", requires_grad=True)
            (x / x).sum().backward()

    with pytest.raises(RuntimeError, match="nan"), pytest.warns(UserWarning, match="Anomaly Detection|Error detected"):
        divide()


def test_a_warning_of_pytorch_names_the_program_s_line():
    with predict_syncs(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nn.functional.mse_loss(torch.ones(2, 1, device="cuda"), torch.ones(2, device="cuda"))
        _ = torch.ones(2, 3, 4, device="cuda").T
        warnings.warn("CUDA initialization: Found no NVIDIA driver on your system.", stacklevel=1)
        warnings.warn("flex_attention called without torch.compile()", stacklevel=1)
    here = test_a_warning_of_pytorch_names_the_program_s_line
    lines = [line_of(here, "mse_loss"), line_of(here, ".T")]
    assert [(warning.filename, warning.lineno) for warning in caught] == [(HERE, line) for line in lines]


def test_an_error_in_backward_shows_the_line_of_the_forward_pass():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, values):
            return values * 2

        @staticmethod
        def backward(_ctx, _gradient):
            raise ValueError("broken")

    with (
        predict_syncs(),
        pytest.warns(UserWarning, match=f"(?s)BrokenBackward.*{Path(__file__).name}"),
        pytest.raises(ValueError, match="broken"),
    ):
        Broken.apply(torch.ones(3, device="cuda", requires_grad=True)).sum().backward()


def test_the_steps_of_a_program_s_own_profiler_are_one_place():
    later = torch.profiler.schedule(wait=9, warmup=1, active=1)
    with predict_syncs() as syncs:
        value = torch.ones(1, device="cuda")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=later) as own:
            for _ in range(3):
                value.item()
                own.step()
    assert [(site.label, site.count) for site in syncs.sites] == [(None, 3)]
    assert syncs.operators_per_label == {}


class PassesOn(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.mean and args[0].sum().item() > 1e9:
            raise ValueError
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def test_a_class_that_passes_calls_on_has_no_line_of_its_own_but_where_it_waits_itself():
    with predict_syncs() as syncs:
        values = torch.ones(3, device="cuda").as_subclass(PassesOn)
        values.sum().item()
        values.mean()
    here, own = syncs.sites
    assert here.code == "values.sum().item()"
    assert own.line == line_of(PassesOn, "args[0].sum()")


class ReadsResults(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if func is torch.Tensor.mean and func(*args, **(kwargs or {})).item() > 1e9:
                cls.is_large = True
            elif func is torch.Tensor.std and func(*args, **(kwargs or {})).isnan():
                return args[0]
            if func is torch.Tensor.sum:
                func(*args, **(kwargs or {})).tolist()
            return func(*args, **(kwargs or {}))


def test_a_class_that_reads_what_a_call_gives_waits_at_its_own_line():
    with predict_syncs() as syncs:
        values = torch.ones(3, device="cuda").as_subclass(ReadsResults)
        values.mean()
        values.std()
        values.sum()
    assert [site.line for site in syncs.sites] == [
        line_of(ReadsResults, ".item()"),
        line_of(ReadsResults, ".isnan()"),
        line_of(ReadsResults, ".tolist()"),
    ]
