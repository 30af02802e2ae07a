"""What rules on studies say, and how findings are ranked. test_rules.py has a fixture for each rule."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from documents import fill
from figures import figures_in
from findings.comparisons import comparison, healthy_variant, predicted, run, waiting
from steptrace import findings
from steptrace.advice.replacements import WORDS, counter_check, replacement
from steptrace.documents.finding import ANSWER
from steptrace.documents.syncs import BATCH_COPY, PredictedSite
from steptrace.findings import Finding, find, with_findings
from steptrace.findings.recommended import recommended
from steptrace.findings.rules.predicted_syncs import predicted_findings

MS = 1_000_000
OPERATORS, KINDS, SPECIAL = (
    {name: tuple(texts) for name, texts in WORDS[group].items() if isinstance(texts, list)}
    for group in ("operators", "kinds", "special")
)


def findings_of(**changes: Any) -> list[Finding]:
    return find(comparison(healthy_variant() | changes))


@pytest.fixture
def traced(monkeypatch):
    """A variant in whose trace these findings are."""

    def make(*items: dict[str, Any], **changes: Any) -> dict[str, Any]:
        monkeypatch.setattr(findings, "find_in_trace", lambda _: [fill(Finding, item) for item in items])
        return healthy_variant() | {"trace": {}} | changes

    return make


def test_a_line_is_in_one_finding_though_its_backward_pass_has_another_replacement():
    def site(line, op, phase):
        named = {"file": "train.py", "line": line, "op": op, "phase": phase, "kind": "d2h_copy", "count_per_step": 1}
        return fill(PredictedSite, predicted(**named))

    mask = site(28, "aten::nonzero", "forward"), site(28, "aten::index", "backward")
    assert len({replacement(item) for item in mask}) == 2
    first, other = predicted_findings([*mask, site(40, "aten::index", "backward")])
    assert (first.source.line, first.figures["syncs"]) == (28, 2)
    assert all(" ".join(replacement(site) or ()) in first.advice for site in mask)
    assert (other.source.line, other.figures["syncs"]) == (40, 1)


LIBRARY = {"file": "accelerate/utils/operations.py", "program_file": "train.py", "program_line": 9}
COPY = {"kind": "h2d_copy", "op": "aten::_to_copy", "code": "return tensor.to(device, non_blocking=non_blocking)"}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({**COPY, **LIBRARY}, "accelerate"),
        ({**COPY, **LIBRARY, "pinned": True}, "accelerate"),
        ({**COPY, **LIBRARY, "file": "/env/lightning/fabric/utilities/apply_func.py"}, "lightning"),
        ({"kind": "d2h_copy", "op": "aten::copy_", "code": "loss.backward()"}, "unused_parameters"),
        (
            {
                "kind": "d2h_copy",
                "op": "aten::copy_",
                "code": "loss.backward(**kwargs)",
                **LIBRARY,
                "phase": "backward",
            },
            "unused_parameters",
        ),
    ],
)
def test_what_a_user_cannot_change_is_set_by_an_option(changes: dict[str, Any], name: str) -> None:
    assert replacement(fill(PredictedSite, predicted(**changes))) == SPECIAL[name]


def test_a_tensor_that_a_library_makes_has_no_option_of_the_batch_s_copy() -> None:
    made = {**COPY, **LIBRARY, "code": "size = torch.tensor(tensor.shape, device=tensor.device)[None]"}
    moved = {**COPY, **LIBRARY, "code": "return tensor.to(device, non_blocking=non_blocking)"}
    texts = [replacement(fill(PredictedSite, predicted(**changes))) for changes in (made, moved)]
    assert texts[0] != SPECIAL["accelerate"]
    assert texts[1] == SPECIAL["accelerate"]


def test_a_line_of_a_library_is_called_one() -> None:
    own = {"kind": "d2h_copy", "op": "aten::copy_", "code": "host.copy_(value)"}
    of_library = {**own, "file": "library/metrics.py", "program_file": "train.py", "program_line": 9}
    (text, framed) = (replacement(fill(PredictedSite, predicted(**changes))) for changes in (own, of_library))
    assert text is not None
    assert framed is not None
    assert framed == (WORDS["special"]["library"].format(text=text[0]), *text[1:])


def test_environments_that_differ_are_a_finding_on_the_study():
    values = {"torch": ["2.12", "2.13"], "gpu": ["H100", None]}
    (finding,) = find(comparison(healthy_variant(), environments_differ=values))
    assert (finding.rule, finding.variant) == ("environments_differ", None)
    assert "torch, gpu" in finding.claim
    assert finding.evidence == ("torch: 2.12, 2.13", "gpu: H100, none")
    assert find(comparison(healthy_variant())) == []


def test_variant_without_measurements_has_only_the_finding_on_missing_runs():
    (finding,) = find(comparison({"name": "v", "runs": [run("not run")], "equivalence": {"status": "not measured"}}))
    assert (finding.rule, finding.severity) == ("failed_run", "warning")
    assert "are missing" in finding.claim


def test_predicted_syncs_are_named_where_no_gpu_has_measured_any():
    sites = {"predicted_sites": [predicted(), predicted(line=13, phase="backward")]}
    (finding,) = findings_of(syncs={"predicted_per_step": 2}, **sites)
    assert (finding.figures["syncs"], finding.figures["lines"]) == (2, 2)
    assert figures_in(finding.claim) == [2, 2, 12]  # the last one is the line
    assert "loss.py:12" in finding.claim
    assert finding.cost_ns_per_step is None
    assert finding.evidence == ("cost not measured", "`mask.nonzero()`, 1 d2h copy")  # the page's table has all
    assert finding.advice_parts == OPERATORS["aten::nonzero"]
    assert findings_of(syncs={"measured_per_step": 2, "predicted_per_step": 2}, **sites) == []
    other = predicted(line=20, op="aten::_local_scalar_dense", code="loss.item()")
    (finding,) = findings_of(syncs={"predicted_per_step": 2}, predicted_sites=[predicted(), other])
    to_do, *more = OPERATORS["aten::_local_scalar_dense"]
    both = *OPERATORS["aten::nonzero"], f"At loss.py:20: {to_do}", *more
    assert finding.advice_parts == both
    copy = predicted(file=None, line=None, code=None, label="copy data", op="aten::_to_copy", kind="h2d_copy")
    (finding,) = findings_of(syncs={"predicted_per_step": 1}, predicted_sites=[copy])
    assert finding.figures["replacement"] == "special.batch_copy"
    assert BATCH_COPY in finding.claim
    (finding,) = findings_of(syncs={"predicted_per_step": 1}, predicted_sites=[copy | {"label": "mine"}])
    assert "'mine'" in finding.claim


@pytest.mark.parametrize(("per_step", "severity"), [((1, 0.02), "warning"), ((0.02, 0.1), "info"), ((0.5,), "warning")])
def test_a_sync_of_rare_steps_is_nothing_to_begin_with(per_step, severity):
    """A variant that reads its loss in one of fifty steps was told first to read it once in many steps."""
    sites = [predicted(line=10 + line, count_per_step=count) for line, count in enumerate(per_step)]
    (finding,) = findings_of(syncs={"predicted_per_step": sum(per_step)}, predicted_sites=sites)
    assert finding.severity == severity
    grouped = predicted_findings(fill(PredictedSite, site) for site in sites)
    assert {item.severity for item in grouped} == {severity}
    answer = fill(Finding, {"rule": ANSWER, "severity": "info", "claim": "c"})
    assert [item.rule for item in recommended([answer, finding])][1:] == ["predicted_syncs"] * (severity == "warning")


def trace_finding(rule: str, **changes: Any) -> dict[str, Any]:
    fields = {"rule": rule, "severity": "info", "claim": "c", "cost_ns_per_step": MS, "evidence": ["e"]}
    return fields | changes


def test_findings_of_traces_are_added_under_their_variant(traced):
    findings = find(comparison(traced(trace_finding("host_bound"))))
    assert [(finding.rule, finding.variant, finding.evidence) for finding in findings] == [("host_bound", "v", ("e",))]


def test_what_a_variant_saves_is_of_its_step_over_all_runs_not_of_the_profiled_run():
    """The GPU works 10 of 30 profiled ms: of 20 ms in all runs 10 can be saved, though the profiled run took 25."""
    parts = {"compute": 10 * MS, "exposed_memory": 0, "exposed_comm": 0, "idle_host": 20 * MS}
    overview = {"kind": "gpu", "steps": 1, "window_ns": 30 * MS, "parts_ns": parts}
    trace = {"overview": overview, "unprofiled_step_ns": 25 * MS, "launches": {"device_ns": {"median": 1000.0}}}
    findings = find(comparison(healthy_variant() | {"trace": trace}))
    (finding,) = (found for found in findings if found.rule == "host_bound")
    assert (finding.cost_ns_per_step, finding.cost_share) == (10 * MS, 0.5)


@pytest.mark.parametrize(("workers", "more"), [(1, True), (2, False), (None, True)])
def test_more_workers_are_advised_only_where_cores_are_free(workers, *, more):
    variant = healthy_variant() | {"input": waiting(0.1, workers=workers)}
    (finding,) = find(comparison(variant, environment={"cpu_count": 2}))
    assert ("give the loader more workers" in finding.advice) == more
    assert ("for every core" in finding.advice) != more


def test_a_wait_for_the_loader_is_that_of_unprofiled_steps_everywhere(traced):
    """The trace's own figure is of profiled steps; it stands only where no unprofiled wait was measured."""
    of_trace = trace_finding("input_bound", claim="12 % of the step is waiting for the data loader")
    (finding,) = find(comparison(traced(of_trace, input=waiting(0.1))))
    assert figures_in(finding.claim) == [10]
    assert figures_in(finding.evidence[0]) == [2, 20]
    assert (finding.cost_ns_per_step, finding.cost_share) == (2 * MS, 0.1)
    (finding,) = find(comparison(traced(of_trace, input=waiting(0.1, idle_part=0.5, counted_ms=1.0))))
    assert re.findall(r"[\d.]+ ms", finding.evidence[0]) == ["2 ms", "20 ms", "1 ms"]
    (finding,) = find(comparison(traced(of_trace, input=None)))
    assert finding.claim.startswith("12 %")


def errors_of(finding: Finding) -> list[tuple[str, float | None, float | None]]:
    """The quantities that a finding of `differs` lists: name, relative error, allowed one."""
    return [(row["quantity"], row["relative_error"], row["allowed"]) for row in finding.figures["errors"]]


@pytest.mark.parametrize(("verdict", "marked"), [("faster", True), ("same", False)])
def test_variant_that_differs_and_is_faster_says_so_in_the_claim(verdict, *, marked):
    result = {"status": "differs", "loss_rel_err": 0.25, "tolerance": {"loss": 1e-5, "gradient": 1e-4}}
    (finding,) = findings_of(equivalence=result, ratio={"verdict": verdict})
    assert finding.figures["is_faster"] == marked
    assert finding.severity == "high"
    assert errors_of(finding) == [("loss", 0.25, 1e-5), ("gradient", None, 1e-4)]
    assert len(finding.evidence) == 2


def test_network_that_differs_lists_errors_of_predictions_and_parameters():
    errors = {"loss_rel_err": 0.0, "gradient_rel_err": 0.0, "predictions_rel_err": 0.5}
    tolerance = {"loss": 1e-6, "gradient": 1e-6, "predictions": 1e-5, "parameters": 1e-3}
    result = {"status": "differs", "tolerance": tolerance, **errors}
    (finding,) = findings_of(equivalence=result, ratio={"verdict": "same"})
    assert errors_of(finding)[2:] == [("predictions", 0.5, 1e-5), ("parameters", None, 1e-3)]


def test_noise_above_the_refusal_threshold_is_high():
    notes = [
        {"code": "outliers", "figures": {"outliers": 3, "steps": 40}},
        {"code": "runs_missing", "figures": {"measured": 1, "runs": 2}},
    ]
    (finding,) = findings_of(noise={"iqr_over_median": 0.26, "notes": notes})
    assert (finding.severity, len(finding.evidence)) == ("high", 1)
    assert "3 of 40" in finding.evidence[0]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"exit_code": 1, "error": "E: bad", "log_tail": ["x"]}, "run 1: failed, exit code 1: E: bad"),
        ({"signal": 9, "log_tail": ["step 1", "step 2"]}, "run 1: failed, signal 9: step 2"),
        ({}, "run 1: failed"),
    ],
)
def test_evidence_of_a_failed_run(error, expected):
    (finding,) = findings_of(runs=[run("ok"), run("failed", **error)])
    assert finding.evidence == (expected,)
    assert finding.claim == "1 of 2 runs failed"


def test_out_of_memory_and_failed_runs_are_separate_findings():
    findings = findings_of(runs=[run("out of memory"), run("failed")])
    assert [finding.rule for finding in findings] == ["failed_run", "out_of_memory"]


def test_with_findings_changes_findings_only():
    before = comparison(healthy_variant() | {"profiled_over_unprofiled": 1.5})
    after = with_findings(before)
    assert [finding.rule for finding in after.findings] == ["profiler_overhead"]
    assert replace(after, findings=()) == before


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"op": "aten::nonzero", "code": "rows = torch.nonzero(mask)"}, OPERATORS["aten::nonzero"]),
        ({"op": "aten::nonzero", "code": "kept = target[target != 3]"}, OPERATORS["aten::index"]),
        ({"op": "aten::_unique2", "code": None}, OPERATORS["aten::_unique2"]),
        ({"op": None, "kind": "cudaDeviceSynchronize"}, KINDS["DeviceSynchronize"]),
        ({"op": "aten::my_op", "kind": "h2d_copy"}, OPERATORS["aten::_to_copy"]),
        ({"op": "aten::item", "code": "values = torch.unique(target)"}, OPERATORS["aten::_unique2"]),
        ({"op": "aten::item", "code": "n = unique_count.item()"}, OPERATORS["aten::item"]),
        ({"op": None, "kind": "cudaEventSynchronize"}, KINDS["EventSynchronize"]),
        (
            {"op": None, "kind": "cudaEventSynchronize", "label": "DistributedDataParallel.forward"},
            SPECIAL["ddp_timing"],
        ),
        ({"op": None, "kind": "cudaMemcpy"}, None),
        ({"op": "aten::_to_copy", "kind": "d2h_copy", "code": "n = lengths.cpu()"}, KINDS["d2h_copy"]),
        ({"op": "aten::_to_copy", "kind": "h2d_copy", "code": "x = x.to(device)"}, OPERATORS["aten::_to_copy"]),
        (
            {"op": "aten::_to_copy", "kind": "h2d_copy", "code": "x = x.to(device)", "pinned": True},
            SPECIAL["copy_pinned"],
        ),
        (
            {"op": "aten::_to_copy", "kind": "h2d_copy", "file": None, "label": "data", "pinned": True},
            SPECIAL["batch_copy_pinned"],
        ),
        ({"op": "aten::index", "kind": "h2d_copy", "code": "x[order]"}, SPECIAL["from_host"]),
        ({"op": "aten::index", "kind": "d2h_copy", "code": "x[mask]"}, OPERATORS["aten::index"]),
        (
            {"op": "aten::_local_scalar_dense", "code": "return Categorical(logits=self.pi(h))"},
            SPECIAL["distributions"],
        ),
        ({"op": "aten::_local_scalar_dense", "code": "scaler.step(optimizer)"}, SPECIAL["scaler"]),
        ({"op": "aten::_local_scalar_dense", "code": "self.grad_scaler.step(o)"}, SPECIAL["scaler"]),
        (
            {"op": "aten::_local_scalar_dense", "code": "self.pi = Independent(Normal(m, s), 1)"},
            SPECIAL["distributions"],
        ),
        ({"op": "aten::item", "code": "bar.set_postfix_str(f'loss {loss:.3f}')"}, SPECIAL["formatted"]),
        ({"op": "aten::item", "code": "print('%.3f' % loss)"}, SPECIAL["formatted"]),
        ({"op": "aten::is_nonzero", "code": "assert x.max() < n, f'{x.max()} is too large'"}, SPECIAL["asserted"]),
        ({"op": "aten::is_nonzero", "code": "if x.isnan().any(): raise ValueError(f'{x}')"}, SPECIAL["asserted"]),
        (
            {"op": "aten::_local_scalar_dense", "code": "assert loss.item() < 9, f'{loss}'"},
            OPERATORS["aten::_local_scalar_dense"],
        ),
        (
            {"op": "aten::index", "label": "SyncBatchNorm.forward", "code": "loss = model(x)"},
            SPECIAL["sync_batch_norm"],
        ),
        ({"op": "aten::item", "code": "msg = msg % self.args"}, SPECIAL["formatted"]),  # by `logging`
        ({"op": "aten::_to_copy", "kind": "h2d_copy", "code": "b = obs[indices]"}, SPECIAL["from_host"]),
        ({"op": "aten::_to_copy", "kind": "h2d_copy", "code": "b = batch[0].to(device)"}, OPERATORS["aten::_to_copy"]),
        (
            {"op": "aten::index_put", "kind": "d2h_copy", "phase": "backward", "code": "h = out[train_mask]"},
            SPECIAL["mask_backward"],
        ),
        ({"op": "aten::mm", "kind": "stream", "phase": "forward", "code": "torch.spmm(a, x)"}, SPECIAL["sparse"]),
        ({"op": "aten::mm", "kind": "stream", "phase": "backward", "code": "a @ x"}, SPECIAL["sparse_backward"]),
        (
            {"op": "aten::_local_scalar_dense", "kind": "d2h_copy", "phase": "backward", "code": "w = x.cumprod(-1)"},
            SPECIAL["product_backward"],
        ),
        (
            {"op": "aten::_local_scalar_dense", "kind": "d2h_copy", "phase": "backward", "code": "w = x.product(-1)"},
            OPERATORS["aten::_local_scalar_dense"],
        ),
        (
            {"op": "aten::_to_copy", "kind": "h2d_copy", "code": "d = torch.cat([d, torch.Tensor([1]).expand(d[:1])])"},
            OPERATORS["aten::_to_copy"],
        ),
        (
            {"op": "aten::nonzero", "kind": "d2h_copy", "phase": "backward", "code": "h = out[train_mask]"},
            SPECIAL["mask_backward"],
        ),
        ({"op": "aten::_local_scalar_dense", "code": "loss.item()"}, OPERATORS["aten::_local_scalar_dense"]),
        (
            {"op": "aten::_to_copy", "kind": "h2d_copy", "code": "packed = pack_padded_sequence(embedded, lengths)"},
            SPECIAL["lengths"],
        ),
        *(
            ({"op": op, "kind": "d2h_copy", "code": code}, SPECIAL["saved"])
            for op, code in (
                ("aten::copy_", "torch.save(checkpoint, path)"),
                ("aten::_to_copy", "save_file(model.state_dict(), path)"),
                (None, "model.save_pretrained(folder)"),
            )
        ),
        ({"op": "aten::copy_", "kind": "d2h_copy", "code": "saved.copy_(weight)"}, OPERATORS["aten::copy_"]),
        (
            {"op": "aten::_to_copy", "kind": "h2d_copy", "code": "pack_padded_sequence(words.to(device), lengths)"},
            OPERATORS["aten::_to_copy"],
        ),
    ],
)
def test_every_operation_has_its_usual_replacement(changes, advice):
    assert replacement(fill(PredictedSite, predicted(**changes))) == advice


def test_a_counter_check_says_when_a_replacement_does_not_pay():
    ops = ("aten::nonzero", "aten::_unique2", "aten::item", "aten::copy_", "aten::other")
    checks = {op: counter_check(fill(PredictedSite, predicted(op=op))) for op in ops}
    assert "sparse mask" in checks["aten::nonzero"]
    assert "Sorting" in checks["aten::_unique2"]
    assert "early stop" in checks["aten::item"]
    assert len(set(checks.values())) == len(checks)
    copies = [predicted(op="aten::copy_", kind="h2d_copy", pinned=pinned) for pinned in (True, False)]
    assert ["Pinning" in counter_check(fill(PredictedSite, copy)) for copy in copies] == [False, True]


def test_findings_are_ranked_by_severity_and_cost_and_errors_lead(traced):
    costs = [trace_finding("sync_bound", severity="high", cost_ns_per_step=ns) for ns in (MS, 3 * MS)]
    variant = traced(
        *costs,
        trace_finding("copy_bound", severity="info", cost_ns_per_step=9 * MS),
        equivalence={"status": "differs"},
        profiled_over_unprofiled=1.5,
    )
    findings = find(comparison(variant))
    rules = ["differs", "sync_bound", "sync_bound", "profiler_overhead", "copy_bound"]
    assert [finding.rule for finding in findings] == rules
    assert [finding.cost_ns_per_step for finding in findings][1:3] == [3 * MS, MS]


def test_predicted_syncs_come_before_what_a_cpu_s_step_waits_for(traced):
    waits = {"rule": "input_bound", "severity": "warning", "cost_ns_per_step": 5_000_000}
    syncs = {"syncs": {"predicted_per_step": 1}, "predicted_sites": [predicted()]}
    rules = [item.rule for item in find(comparison(traced(waits, input=None, **syncs)))]
    assert rules == ["predicted_syncs", "input_bound"]
