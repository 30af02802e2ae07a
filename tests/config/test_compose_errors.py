"""Whatever is wrong in a configuration gives one short message with the file, the culprit and the near name."""

import functools
from pathlib import Path

import pytest

from steptrace.config.compose import check_allowed, compose
from steptrace.document_schemas import keys
from steptrace.errors import ConfigError

ROOT = Path(__file__).parents[2]


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
        ("data.batch_size", ["missing EQUAL"]),
        ("device=gpu", ["Invalid enum value 'gpu' - at `device`", "next: choose cpu or cuda"]),
        ("precision.autocast=fp8", ["Invalid enum value 'fp8' - at `precision.autocast`", "next: choose bf16 or fp16"]),
        ("precision.grad_scaler=true", ["precision.grad_scaler is true without fp16 autocast", "precision=fp16"]),
        ("data.num_workers=0", ["with data.num_workers 0 set data.prefetch_factor=null", "they are 2 and true"]),
        ("model.classes=${nothing}", ["nothing"]),
        ("~loss._target_", ["loss has no _target_"]),
        ("loss._target_=os.system", ["loss._target_ is 'os.system'", "torch.nn, torch.optim", "allow_targets: [os]"]),
        ("data.dataset._target_=mine.Data", ["data.dataset._target_ is 'mine.Data'", "allow_targets: [mine]"]),
        ("loss._target_=torch.hub.load", ["loss._target_ is 'torch.hub.load'", "allow_targets: [torch.hub]"]),
        ("loss._target_=steptrace.train.main.main", ["not in an allowed package", "[steptrace.train.main]"]),
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
            "data/random_masks.yaml, line 9: is not valid YAML: expected ',' or ']'",
        ),
        ("data/random_masks", "batch_size: 3\n#", "full_key: data.dataset"),
    ],
)
def test_a_mistake_in_a_group_s_file(copy, file, text, message):
    path = copy / "config" / f"{file}.yaml"
    kept = "" if text.endswith("#") else path.read_text().split("batch_size")[0]
    path.write_text(kept + text)
    with pytest.raises(ConfigError) as caught:
        compose([copy / "config"], [], where="study.yaml")
    assert message in str(caught.value)


def test_a_later_choice_of_a_group_replaces_an_earlier_one(composed):
    config = composed(["loss=where", "seed=1", "loss=sort", "seed=2"])
    assert config["loss"]["_target_"].endswith("SortLoss")
    assert config["seed"] == 2


def test_additions_and_deletions(composed):
    config = composed(["+model.bias=true", "~optimizer.momentum", "loss=where"])
    assert config["model"]["bias"] is True
    assert "momentum" not in config["optimizer"]
    assert config["loss"]["_target_"].endswith("WhereLoss")


@pytest.mark.parametrize("name", ["Größe", "it's", "a, b", "a[1]", 'say "x"', "back\\slash", "${x}"])
def test_a_second_folder_may_have_any_name(copy, tmp_path, name):
    (tmp_path / name / "loss").mkdir(parents=True)
    (tmp_path / name / "loss" / "mine.yaml").write_text("_target_: mine.Loss\nscale: 2\n")
    config = compose([copy / "config", tmp_path / name], ["loss=mine", "loss.scale=3"], where="test")
    assert config["loss"] == {"_target_": "mine.Loss", "scale": 3}
