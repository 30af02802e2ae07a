"""Private names of PyTorch: supported releases have each, and a missing one costs its feature alone."""

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import steptrace
from steptrace import torch_names
from steptrace.predict import Syncs, predict_syncs
from steptrace.predict.features import FEATURES
from steptrace.predict.patches import Feature, applied

PREDICT = Path(steptrace.__file__).parent / "predict"


@pytest.mark.parametrize("row", torch_names.NAMES, ids=lambda row: row.path)
def test_the_installed_pytorch_has_the_name(row: torch_names.PrivateName) -> None:
    if not row.is_expected_in(torch.__version__):
        pytest.skip(f"PyTorch has it from {row.since} to {row.until}")
    if row.area == "cuda" and not torch.backends.cuda.is_built():
        pytest.skip("of a build for CUDA")
    assert torch_names.has(row.path)


def test_each_name_has_one_row_that_says_what_is_lost() -> None:
    assert [path for path, count in Counter(row.path for row in torch_names.NAMES).items() if count > 1] == []
    assert all(row.reason and row.lost for row in torch_names.NAMES)


def test_a_name_without_a_row_cannot_be_used() -> None:
    with pytest.raises(KeyError):
        torch_names.private("torch._C._no_row_has_this")


def test_an_unknown_later_release_is_expected_to_have_what_the_newest_has() -> None:
    row = torch_names.PrivateName("torch", "x", "for", "lost", until=(2, 12))
    assert [row.is_expected_in(version) for version in ("2.12.1+cu130", "2.13.0")] == [True, False]
    assert torch_names.NAMES[0].is_expected_in("2.99.0a0+git123")


#: Follows a step once for each name, without it, in a process of its own: a fork, as PyTorch takes long to import.
ABSENT = """
import json, os, sys, torch, torch._dynamo, torch.distributed
from torch import nn
from steptrace import torch_names

def step(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = model(torch.randn(4, 8).cuda()).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()

def followed(path):
    look_up = torch_names._look_up
    torch_names._look_up = lambda asked, **how: torch_names._ABSENT if asked == path else look_up(asked, **how)
    from steptrace.errors import PredictError
    from steptrace.predict import predict_syncs
    try:
        with predict_syncs() as syncs:
            model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).cuda()
            syncs.reset()
            step(model)
    except PredictError as error:
        return {"refused": str(error)}
    return {"total": syncs.total, "told": [place.reason for place in syncs.unknown],
            "lines": sorted({site.line for site in syncs.sites})}

for path in [None, *(row.path for row in torch_names.NAMES if row.area in ("predict", "ranks"))]:
    read, write = os.pipe()
    if not os.fork():
        try:
            answer = followed(path)
        except BaseException as error:
            answer = {"failed": repr(error)}
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        print(json.dumps({"path": path, **json.loads(pipe.read() or '{"failed": "ended"}')}), flush=True)
    os.wait()
"""


def test_a_missing_name_costs_its_feature_and_not_the_prediction() -> None:
    code = [sys.executable, "-W", "ignore", "-c", ABSENT]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    whole, *answers = map(json.loads, done.stdout.splitlines())
    assert whole["total"] > 0
    assert not whole["told"]
    rows = [row for row in torch_names.NAMES if row.area in ("predict", "ranks")]
    assert [answer["path"] for answer in answers] == [row.path for row in rows]
    for row, answer in zip(rows, answers, strict=True):
        if row.needed:
            assert row.path in answer.get("refused", ""), answer
        else:
            assert "total" in answer, answer
            assert any(row.path in text for text in answer["told"]), answer
            assert answer["lines"] == whole["lines"], answer
            assert answer["total"] == whole["total"], answer


def test_a_feature_that_cannot_be_set_up_is_left_out_and_told() -> None:
    owner = ModuleType("owner")
    owner.name = "before"
    before = dict(vars(owner))

    def lacking(_recorder: Syncs) -> dict[tuple[object, str], object]:
        return {(owner, "name"): torch._C._no_release_has_this}  # type: ignore[attr-defined]

    recorder = Syncs()
    features = (
        Feature("lacking", "a reason", "its figures", lacking),
        Feature("there", "a reason", "nothing", lambda _: {(owner, "other"): "set"}),
    )
    with applied(features, recorder):
        assert vars(owner) == {**before, "other": "set"}
    assert vars(owner) == before
    (remark,) = recorder.unknown
    assert "its figures" in remark.reason
    recorder.reset()
    assert recorder.unknown == [remark]


def test_no_two_features_replace_the_same_attribute() -> None:
    with predict_syncs() as recorder:
        pass
    replaced: Counter[tuple[int, str]] = Counter()
    for feature in FEATURES:
        prepared = feature.set_up(recorder)
        if isinstance(prepared, dict):
            replaced.update((id(owner), name) for owner, name in prepared)
        else:
            with prepared as replacements:
                replaced.update((id(owner), name) for owner, name in replacements)
    assert [key for key, count in replaced.items() if count > 1] == []
    assert len(replaced) > 100


def names_past_the_registry(tree: ast.AST) -> Iterator[str]:
    """What a module takes of PyTorch by an undocumented name, without the registry."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from (ast.unparse(node) for part in parts if part.startswith("_"))
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("torch.", "Tensor.", "nn.")):
            private = [part for part in ast.unparse(node).split(".") if part.startswith("_") and part[:2] != "__"]
            if private and ast.unparse(node) != "torch._C":  # the module, whose attributes are in the registry
                yield ast.unparse(node)


@pytest.mark.parametrize("module", sorted(PREDICT.glob("*.py")), ids=lambda path: path.stem)
def test_modules_take_private_names_from_the_registry(module: Path) -> None:
    assert list(names_past_the_registry(ast.parse(module.read_text(encoding="utf-8")))) == []


def test_no_module_needs_a_private_name_to_be_imported() -> None:
    package = PREDICT.parent
    needed = [
        (file.relative_to(package).as_posix(), ast.unparse(node))
        for file in package.rglob("*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch"
        if any(part.startswith("_") for part in [*(node.module or "").split("."), *(name.name for name in node.names)])
    ]
    assert needed == []
