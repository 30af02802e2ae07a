"""Whatever is wrong in a configuration gives one short message with the file, the culprit and the near name."""

from pathlib import Path

import pytest

from steptrace.config.compose import Composer
from steptrace.config.documents import read_yaml
from steptrace.config.keys import check_config
from steptrace.errors import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def composer():
    return Composer([ROOT / "config"])


def error_of(composer, *overrides, allow=()):
    with pytest.raises(ConfigError) as caught:
        check_config(composer.compose(overrides, where="study.yaml, variant 'v'"), allow=allow, where="study.yaml")
    assert all(len(line) < 250 for line in str(caught.value).splitlines())
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("loss=wher", ["variant 'v'", "there is no 'wher' in the group 'loss'", "did you mean 'where'?"]),
        ("los=where", ["override 'los=where'", "unknown key 'los'", "did you mean 'loss'?"]),
        ("data.batchsize=8", ["unknown key 'data.batchsize'", "did you mean 'batch_size'?"]),
        ("+data.batchsize=8", ["unknown key 'data.batchsize'", "did you mean 'batch_size'?"]),
        ("+typo=1", ["unknown key 'typo'"]),
        ("data.batch_size=four", ["data.batch_size is 'four'\n  expected: a whole number"]),
        ("data.batch_size=1.5", ["data.batch_size is '1.5'", "a whole number"]),
        ("data.batch_size=null", ["data.batch_size is null", "a whole number"]),
        ("data.pool=many", ["data.pool is 'many'", "a whole number of at least 1 or null"]),
        ("precision.tf32=perhaps", ["precision.tf32 is 'perhaps'", "true or false"]),
        ("precision.tolerance.loss=low", ["precision.tolerance.loss is 'low'", "expected: a number"]),
        ("equivalence.seeds=[a]", ["equivalence.seeds[0] is 'a'", "expected: a whole number"]),
        ("equivalence.seeds=3", ["equivalence.seeds: ", "a list of whole numbers"]),
        ("data=4", ["override 'data=4'", "must be a string"]),
        ("model.hiden=20", ["unknown key 'model.hiden'", "did you mean 'hidden'?; a key", "`+model.hiden=...`"]),
        ("data.batch_size=0", ["data.batch_size is 0", "at least 1"]),
        ("data.batch_size=4,8", ["gives several values", "`matrix:`"]),
        ("data.batch_size", ["override 'data.batch_size'", "missing EQUAL"]),
        ("device=gpu", ["device is 'gpu'", "cpu or cuda"]),
        ("precision.autocast=fp8", ["precision.autocast is 'fp8'", "bf16 or fp16"]),
        ("precision.grad_scaler=true", ["precision.grad_scaler is true without fp16 autocast", "precision=fp16"]),
        ("distributed.backend=nccl", ["distributed.backend is nccl but device is cpu", "null"]),
        ("data.num_workers=0", ["data.prefetch_factor is 2 but data.num_workers is 0", "data.prefetch_factor=null"]),
        ("equivalence.seeds=[]", ["equivalence.seeds is empty"]),
        (
            "loss._target_=os.system",
            ["loss._target_ is 'os.system'", "torch.nn, torch.optim, torch.utils", "allow_targets: [os]"],
        ),
        ("data.dataset._target_=mine.Data", ["data.dataset._target_ is 'mine.Data'", "allow_targets: [mine]"]),
        ("loss._target_=torch.hub.load", ["loss._target_ is 'torch.hub.load'", "allow_targets: [torch.hub]"]),
        ("loss._target_=torch.utils.collect_env.run", ["none of the allowed", "[torch.utils.collect_env]"]),
        ("loss._target_=torch.os.system", ["none of the allowed", "[torch.os]"]),
        ("loss._target_=torch.load", ["none of the allowed", "[torch]"]),
        ("loss._target_=steptrace.train.main.main", ["none of the allowed", "[steptrace.train.main]"]),
        ("~loss._target_", ["loss has no _target_"]),
        ("optimizer.lr=nan", ["optimizer.lr is nan", "a finite number"]),
        ("+model.scales=[1,-inf]", ["model.scales.1 is -inf", "a finite number"]),
        ("precision.tolerance.loss=inf", ["precision.tolerance.loss is inf", "a finite number"]),
        ("precision.tolerance.loss=-1", ["precision.tolerance.loss is -1.0", "a number of at least 0"]),
        ("data.batch_size=1" + "0" * 30, ["data.batch_size is 1e+30", "64 bits"]),
        ("data.batch_size[0]=3", ["data.batch_size"]),
        ("model.classes=${nothing}", ["nothing"]),
    ],
)
def test_one_wrong_override(composer, override, parts):
    message = error_of(composer, override)
    for part in parts:
        assert part in message


def test_a_target_must_begin_with_a_whole_name(composer):
    assert "torchvision" in error_of(composer, "loss._target_=torchvision.ops.Loss")
    assert "minefield" in error_of(composer, "loss._target_=minefield.Loss", allow=["mine"])
    assert "deep" in error_of(composer, "+model.inner.list=[{_target_:deep.Net}]")


def test_an_allowed_target_is_accepted(composer):
    config = composer.compose(["loss._target_=mine.Loss"], where="test")
    check_config(config, allow=["mine"], where="test")


def test_errors_inside_a_group_file_name_the_file(copy):
    (copy / "config/data/random_masks.yaml").write_text("batch_size: many\n")
    assert "data/random_masks.yaml" in error_of(Composer([copy / "config"]))
    (copy / "config/data/random_masks.yaml").write_text("batchsize: 3\n")
    message = error_of(Composer([copy / "config"]))
    assert "batchsize" in message
    (copy / "config/data/random_masks.yaml").write_text("batch_size: [3\n")
    message = error_of(Composer([copy / "config"]))
    assert "data/random_masks.yaml, line 2: is not valid YAML: expected ',' or ']'" in message
    (copy / "config/data/random_masks.yaml").write_text("batch_size: 3\n")
    assert "data.dataset has no" in error_of(Composer([copy / "config"]))
    (copy / "config/loss/boolean_mask.yaml").write_text("- ignore_index: 3\n")
    message = error_of(Composer([copy / "config"]))
    assert "loss/boolean_mask.yaml: Invalid type assigned: list is not a subclass of Dict" in message


def test_a_later_choice_of_a_group_replaces_an_earlier_one(composer):
    config = composer.compose(["loss=where", "seed=1", "loss=sort", "seed=2"], where="test")
    assert config["loss"]["_target_"].endswith("SortLoss")
    assert config["seed"] == 2


def test_additions_and_deletions(composer):
    config = composer.compose(["+model.bias=true", "~optimizer.momentum", "loss=where"], where="test")
    assert config["model"]["bias"] is True
    assert "momentum" not in config["optimizer"]
    assert config["loss"]["_target_"].endswith("WhereLoss")


@pytest.mark.parametrize(
    "name", ["Größe", "it's", "a (copy)", "a, b", "a[1]", 'say "x"', "back\\slash", "a=b {c}", "$x", "${x}"]
)
def test_a_second_folder_may_have_any_name(copy, tmp_path, name):
    (tmp_path / name / "loss").mkdir(parents=True)
    (tmp_path / name / "loss" / "mine.yaml").write_text("_target_: mine.Loss\n")
    renamed = copy.rename(copy.with_name(f"{name} too"))
    for folders in ([renamed / "config", tmp_path / name], [copy.parent / f"{name} too" / "config"]):
        option = "mine" if len(folders) > 1 else "where"
        assert Composer(folders).compose([f"loss={option}"], where="test")["loss"]["_target_"]


def test_a_second_folder_adds_options(copy, tmp_path):
    (tmp_path / "own" / "loss").mkdir(parents=True)
    (tmp_path / "own" / "loss" / "mine.yaml").write_text("_target_: mine.Loss\nscale: 2\n")
    composer = Composer([copy / "config", tmp_path / "own"])
    composer.compose(["loss=where"], where="test")
    config = composer.compose(["loss=mine", "loss.scale=3"], where="test")
    assert config["loss"] == {"_target_": "mine.Loss", "scale": 3}
    for overrides in (["loss.scal=3"], ["+loss.more=1", "loss.scal=3"]):
        with pytest.raises(ConfigError, match=r"unknown key 'loss\.scal'\n  next: did you mean 'scale'\?; a key"):
            composer.compose(["loss=mine", *overrides], where="test")


@pytest.mark.parametrize("text", ["x: " + "[" * 3000 + "]" * 3000, "x: " + "[" * 200_000, "\n" + "- " * 3000 + "a"])
def test_what_is_nested_too_deep_is_refused_with_its_line(tmp_path, text):
    path = tmp_path / "deep.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"deep.yaml, line {1 + text.count(chr(10))}: is nested more than 50 deep"):
        read_yaml(path)


def test_an_override_nested_too_deep_is_an_error(composer):
    assert "nested too deep" in error_of(composer, f"data.dataset={'[' * 3000 + ']' * 3000}")
