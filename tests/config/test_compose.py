"""Composing: one short message with file, culprit and near name for whatever is wrong; a cache that is never wrong."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import pytest

from steptrace.config.compose import Bases, check_allowed, compose
from steptrace.config.digest import Cache
from steptrace.config.plan import Plan
from steptrace.document_schemas import keys
from steptrace.errors import ConfigError

ROOT = Path(__file__).parents[2]
STUDY = "title: T\nbaseline: a\nvariants: {a: [loss=where], b: [seed=1]}\n"


@pytest.fixture(scope="module")
def composed():
    return functools.partial(compose, [ROOT / "config"], where="study.yaml, variant 'v'")


def error_of(composed, *overrides, allow=()):
    with pytest.raises(ConfigError) as caught:
        check_allowed(composed(overrides), allow=allow, where="study.yaml")
    assert all(len(line) < 400 for line in str(caught.value).splitlines())
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        (
            "loss=wher",
            ["variant 'v'", "Could not find 'loss/wher'", "Available options in 'loss'", "did you mean 'loss/where'?"],
        ),
        ("los=where", ["Could not override 'los'", "did you mean 'loss'?"]),
        ("data.batchsize=8", ["Could not override 'data.batchsize'", "next: did you mean 'data.batch_size'?"]),
        ("+data.batchsize=8", ["unknown field `batchsize` - at `data`", "did you mean 'batch_size'?"]),
        ("+typo=1", ["unknown field `typo`"]),
        ("data.batch_size=four", ["Expected `int`, got `str` - at `data.batch_size`"]),
        ("data.batch_size=0", ["Expected `int` >= 1 - at `data.batch_size`"]),
        ("data.pool=many", ["Expected `int | null`, got `str` - at `data.pool`"]),
        ("precision.tolerance.loss=nan", ["at `precision.tolerance.loss`"]),
        ("equivalence.seeds=[]", ["length >= 1 - at `equivalence.seeds`"]),
        ("data=4", ["must be a string"]),
        ("data.batch_size=4,8", ["Ambiguous value", "use key=[value1,value2]"]),
        ("data.batch_size", ["cannot be read"]),
        ("device=gpu", ["Invalid enum value 'gpu' - at `device`", "next: choose cpu or cuda"]),
        ("precision.autocast=fp8", ["Invalid enum value 'fp8' - at `precision.autocast`", "next: choose bf16 or fp16"]),
        ("precision.grad_scaler=true", ["precision.grad_scaler is true without fp16 autocast", "precision=fp16"]),
        ("data.num_workers=0", ["with data.num_workers 0 set data.prefetch_factor=null", "they are 2 and true"]),
        ("model.classes=${nothing}", ["nothing"]),
        ("~loss._target_", ["loss has no _target_"]),
        ("loss._target_=os.system", ["loss._target_ is 'os.system'", "torch.nn, torch.optim", "allow_targets: [os]"]),
        ("data.dataset._target_=mine.Data", ["data.dataset._target_ is 'mine.Data'", "allow_targets: [mine]"]),
        ("loss._target_=torch.hub.load", ["loss._target_ is 'torch.hub.load'", "allow_targets: [torch.hub]"]),
        ("loss._target_=steptrace.lab.main.main", ["not in an allowed package", "[steptrace.lab.main]"]),
    ],
)
def test_one_wrong_override(composed, override, parts):
    message = error_of(composed, override)
    for part in parts:
        assert part in message


def test_no_name_is_suggested_that_is_not_near(composed):
    assert "did you mean" not in error_of(composed, "model.widht=3")
    assert "did you mean" not in error_of(composed, "optimizer.lrr=0.1")


def test_a_target_must_begin_with_a_whole_name(composed):
    assert "torchvision" in error_of(composed, "loss._target_=torchvision.ops.Loss")
    assert "minefield" in error_of(composed, "loss._target_=minefield.Loss", allow=["mine"])
    assert "deep" in error_of(composed, "+model.inner.list=[{_target_:deep.Net}]")
    check_allowed(composed(["loss._target_=mine.Loss"]), allow=["mine"], where="test")


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        ("torch.nm.Linear", "torch.nn.Linear"),
        ("torch.optm.SGD", "torch.optim.SGD"),
        ("lossess.Product", "losses.Product"),
        ("my.lossess.masked.Product", "my.losses.masked.Product"),
        ("yours.masked.Product", None),
        ("torch.hub.load", None),
    ],
)
def test_a_package_that_may_be_misspelt_is_named_before_it_is_allowed(composed, target, meant):
    message = error_of(composed, f"loss._target_={target}", allow=["losses", "my.losses"])
    assert "allow_targets: [" in message
    assert ("did you mean" in message) == (meant is not None)
    assert meant is None or f"'{meant}'" in message


@pytest.mark.parametrize("target", ["losses", "torch.nn", "torch", "''"])
def test_a_module_is_no_target(composed, target):
    message = error_of(composed, f"loss._target_={target}", allow=["losses"])
    assert "expected: the dotted name of a class or function" in message
    assert "allow_targets" not in message


def test_every_number_of_the_schema_has_both_limits():
    kinds = {name: kind for name, key in keys() for kind in key.get("anyOf", [key]) if "type" in kind}
    numbers = {name: kind for name, kind in kinds.items() if kind.get("type") in ("integer", "number")}
    assert {"seed", "data.batch_size", "scale.at_most_s"} <= set(numbers)
    for name, kind in numbers.items():
        assert {"minimum", "exclusiveMinimum"} & set(kind), name
        assert "maximum" in kind, name


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("data/random_masks", "batch_size: many\n", "at `data.batch_size`"),
        ("data/random_masks", "batch_size: 3\nbatchsize: 3\n", "unknown field `batchsize` - at `data`"),
        (
            "data/random_masks",
            "batch_size: [3\n",
            "data/random_masks.yaml, line 10: is not valid YAML: expected ',' or ']'",
        ),
        ("data/random_masks", "batch_size: 3\n#", "data.dataset has no value"),
    ],
)
def test_a_mistake_in_a_group_s_file(copy, file, text, message):
    path = copy / "config" / f"{file}.yaml"
    kept = "" if text.endswith("#") else path.read_text().split("batch_size")[0]
    path.write_text(kept + text)
    with pytest.raises(ConfigError) as caught:
        compose([copy / "config"], [], where="study.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["Größe", "it's", "a, b", "a[1]", 'say "x"', "back\\slash", "${x}"])
def test_a_second_folder_may_have_any_name(copy, tmp_path, name):
    (tmp_path / name / "loss").mkdir(parents=True)
    (tmp_path / name / "loss" / "mine.yaml").write_text("_target_: mine.Loss\nscale: 2\n")
    config = compose([copy / "config", tmp_path / name], ["loss=mine", "loss.scale=3"], where="test")
    assert config["loss"] == {"_target_": "mine.Loss", "scale": 3}


def digests(plan: Plan) -> list[str]:
    return [variant.digest for variant in plan.variants.values()]


def test_second_plan_composes_nothing(
    plan_of: Callable[..., Plan], copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = STUDY.replace("seed=1", "optimizer.lr=.inf")  # JSON would make null of it
    first = digests(plan_of(study))
    monkeypatch.setattr("steptrace.config.study.compose", lambda *_, **__: 1 / 0)
    assert digests(plan_of(study)) == first
    (copy / "config/study/masked_loss.yaml").write_text("a study is no part of a composition")
    (copy / "config/workflow.yaml").write_text("")
    assert digests(plan_of(study)) == first


def test_any_change_of_the_groups_counts(plan_of: Callable[..., Plan], copy: Path) -> None:
    before = digests(plan_of(STUDY))
    path = copy / "config/loss/where.yaml"
    path.write_text(path.read_text().replace("-1", "-2"))
    after = digests(plan_of(STUDY))
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_a_variable_of_the_environment_is_part_of_the_configuration(
    plan_of: Callable[..., Plan], copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy / "config/loss/where.yaml"
    path.write_text(path.read_text().replace("-1", "${oc.decode:${oc.env:STEPTRACE_TEST_INDEX,-1}}"))
    unset = digests(plan_of(STUDY))
    monkeypatch.setenv("STEPTRACE_TEST_INDEX", "-2")
    assert digests(plan_of(STUDY)) != unset
    monkeypatch.delenv("STEPTRACE_TEST_INDEX")
    assert digests(plan_of(STUDY)) == unset


@pytest.mark.parametrize("damage", ["", "{", "[]", "1"])
def test_a_damaged_file_is_no_obstacle(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "plan.cache"
    file.write_text(damage)
    cache = Cache(file)
    assert cache.get(b"a", lambda: [1]) == [1]
    cache.save()
    assert Cache(file).get(b"a", lambda: [2]) == [1]
    assert Cache(file).get(b"b", lambda: [2]) == [2]


def test_planning_twice_writes_nothing_the_second_time(plan_of: Callable[..., Plan], copy: Path) -> None:
    plan_of(STUDY)
    files = [path for path in (copy / "results").rglob("*") if path.is_file()]
    assert len(files) == 7  # study.json, two configurations here and on a GPU, a reference, the cache
    for path in files:
        os.utime(path, (1, 1))
    plan_of(STUDY)
    assert all(path.stat().st_mtime == 1 for path in files)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["loss=where", "data.batch_size=3", "optimizer.lr=1e-3"],
        ["data.batch_size=3", "loss=where", "data.batch_size=4"],  # options first, then values in their order
        ["+model.bias=true", "data.batch_size=3"],
        ["data.batch_size=3", "+model.more=1", "model.more=2"],
        ["~data.prefetch_factor", "data.num_workers=0", "data.persistent_workers=false"],
        ["equivalence.seeds=[4,5]", "model={_target_: torch.nn.Linear, in_features: 3}"],
        ["scale=gpu", "precision=bf16", "precision.name='a, b'"],
        ["data.batch_size=${seed}", "seed=7"],
        ["python_path=[src]", "model.width=null"],
    ],
)
def test_values_set_in_a_remembered_choice_are_as_hydra_sets_them(overrides: list[str]) -> None:
    bases: Bases = {}
    folders = [ROOT / "config"]
    compose(folders, [o for o in overrides if o.startswith(("loss=", "scale="))], where="", bases=bases)
    assert _outcome(folders, overrides, bases) == _outcome(folders, overrides, None)


@pytest.mark.parametrize("wrong", ["data.batchsize=3", "loss=were", "los=where", "data.batch_size=x", "seed=1,2", "a="])
def test_a_mistake_is_the_same_message_with_a_remembered_choice(wrong: str) -> None:
    folders = [ROOT / "config"]
    outcome = _outcome(folders, [wrong], {})
    assert outcome == _outcome(folders, [wrong], None)
    assert isinstance(outcome, str)


def _outcome(folders: list[Path], overrides: list[str], bases: Bases | None) -> dict[str, Any] | str:
    try:
        return compose(folders, overrides, where="here", bases=bases)
    except ConfigError as error:
        return str(error)


def test_variants_that_differ_in_values_are_composed_by_hydra_once_for_each_choice(monkeypatch) -> None:
    calls: list[list[str]] = []
    by_hydra = hydra.compose
    monkeypatch.setattr(hydra, "compose", lambda name, overrides: calls.append(overrides) or by_hydra(name, overrides))
    bases: Bases = {}
    for number in range(20):
        options = [f"loss={('where', 'sort')[number % 2]}", f"data.batch_size={number + 1}"]
        assert compose([ROOT / "config"], options, where="", bases=bases)["data"]["batch_size"] == number + 1
    assert len(calls) == 2
