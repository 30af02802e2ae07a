"""config/workflow.yaml: defaults, the command line's overrides, and what a person can get wrong."""

import pytest

from steptrace.config.settings import Project, read_settings
from steptrace.errors import ConfigError


@pytest.fixture
def settings_of(copy):
    def read(text, **overrides):
        (copy / "config/workflow.yaml").write_text(text)
        return read_settings(Project(copy, copy), overrides)

    return read


def test_defaults(settings_of):
    settings = settings_of("scale: cpu\n")
    assert "masked_loss" in settings.studies
    assert (settings.repeats, settings.gates, settings.traces) == (3, {}, {})


def test_command_line_goes_before_the_file(settings_of):
    text = "studies: [masked_loss]\nrepeats: 5\nscale: gpu\n"
    settings = settings_of(text, repeats=1, scale="cpu", studies="masked_loss")
    assert (settings.studies, settings.repeats, settings.scale) == (["masked_loss"], 1, "cpu")


def test_auto_scale_is_that_of_the_machine(settings_of, monkeypatch):
    monkeypatch.setattr("steptrace.machine.torch_has_gpu_support", lambda: True)
    monkeypatch.setattr("steptrace.machine.gpus_here", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert settings_of("scale: auto\n").scale == "gpu"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("studys: [masked_loss]", ["unknown field `studys`", "did you mean 'studies'?"]),
        ("studies: [masked_los]", ["there is no study 'masked_los'", "did you mean 'masked_loss'?"]),
        ("studies: []", ["no studies and no traces to run"]),
        ("repeats: three", ["Expected `int`, got `str` - at `repeats`"]),
        ("repeats: 0", ["Expected `int` >= 1 - at `repeats`"]),
        ("timeout_minutes: .nan", ["at `timeout_minutes`"]),
        ("studies: masked_loss", ["Expected `array`, got `str` - at `studies`"]),
        ("traces: {lost: missing.json}", ["there is no trace 'missing.json'"]),
        (f"traces: {{long: {'x' * 300}}}", ["there is no trace 'xxx"]),
        (
            "gates: {masked_loss: {where: {ratio.value: {atleast: 1}}}}",
            ["where.ratio.value: ", "`atleast`", "did you mean 'at_least'?"],
        ),
        ("gates: {masked_loss: {where: {ratio.value: 2}}}", ["gates.masked_loss.where.ratio.value: Expected `object`"]),
        ("gates: {masked_loss: {where: {step_ms.median: {at_most_ratio: 1.1}}}}", ["at_most_ratio and baseline"]),
        ("gates: {masked_loss: {where: {syncs.per_step: {allow: []}}}}", ["a gate has no limit"]),
        ("gates: {masked_loss: {where: {a: {at_least: .nan}}}}", ["line 1, gates.masked_loss.where.a", "finite"]),
        ("gates: {masked_loss: {where: {a: {at_most: .inf}}}}", ["line 1, gates.masked_loss.where.a", "finite"]),
        ("gates: {masked_loss: {where: {a: {equals: -.inf}}}}", ["line 1, gates.masked_loss.where.a", "finite"]),
        ("gates: {masked_loss: {where: 3}}", ["line 1: Expected `object`", "at `gates.masked_loss.where`"]),
        ("gates:\n  a: {b: {c: 1}}\n  d: 2", ["line 3: Expected `object`", "at `gates.d`"]),
        (f"traces: {{{'t' * 201}: config}}", ["is not a valid name - in `traces`", "at most 200"]),
        ("allow_targets: ['no such']", ["allow_targets"]),
        ('traces: {"t\\n": config}', ["traces"]),
        ("repeats: 2\nrepeats: 3", ["line 2", "duplicate key 'repeats'"]),
        ("- masked_loss", ["is not a mapping"]),
    ],
)
def test_mistakes(settings_of, text, parts):
    with pytest.raises(ConfigError) as caught:
        settings_of(text)
    assert "workflow.yaml" in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_a_mistake_on_the_command_line_is_reported_as_one_there(settings_of):
    with pytest.raises(ConfigError, match="--config: Expected `int`"):
        settings_of("repeats: 2", repeats="many")
    with pytest.raises(ConfigError, match=r"--config: there is no trace 'missing\.json'"):
        settings_of("repeats: 2", traces={"lost": "missing.json"})


def test_gates_on_what_does_not_exist(plan_of):
    study = "title: T\nbaseline: a\nvariants: {a: [], b: [seed=1]}\n"
    plan_of(study, gates={"tiny": {"b": {"ratio.low": {"at_least": 1}}}})
    plan_of(study, gates={"tiny": {"*": {"ratio.low": {"at_least": 1}}}})
    plan_of(f"{study}matrix: {{seed: [0, 1]}}\n", gates={"tiny": {"b": {"ratio.low": {"at_least": 1}}}})
    with pytest.raises(ConfigError, match=r"no variant 'bb'"):
        plan_of(study, gates={"tiny": {"bb": {"ratio.low": {"at_least": 1}}}})
    with pytest.raises(ConfigError, match=r"did you mean 'tiny'\?"):
        plan_of(study, gates={"tny": {"b": {"ratio.low": {"at_least": 1}}}})
    with pytest.raises(ConfigError, match=r"gates\.tiny\.b: a variant has no figure 'ratio\.lowest'"):
        plan_of(study, gates={"tiny": {"b": {"ratio.lowest": {"at_least": 1}}}})
    with pytest.raises(ConfigError, match=r"gates\.tiny\.b\.ratio\.low: there is no scale 'gpus'\n.*mean 'gpu'"):
        plan_of(study, gates={"tiny": {"b": {"ratio.low": {"at_least": 1, "scale": "gpus"}}}})


def test_a_working_directory_may_bring_its_own(copy, tmp_path):
    own = tmp_path / "elsewhere"
    (own / "config/study").mkdir(parents=True)
    (own / "config/workflow.yaml").write_text("studies: [mine]\nscale: cpu\n")
    (own / "config/study/mine.yaml").write_text("title: Mine\nbaseline: a\nvariants: {a: []}\n")
    project = Project(copy, own)
    assert read_settings(project, {}).studies == ["mine"]
    assert project.config_folders == [copy / "config", own / "config"]
    (own / "config/config.yaml").write_text("")
    assert project.config_folders == [own / "config", copy / "config"]
    assert {"mine", "masked_loss"} <= set(project.study_files)


@pytest.mark.parametrize("name", ["index", "traces", "my study", "it's", ".hidden", "a.b"])
def test_a_study_whose_name_cannot_be_a_folder_a_page_and_a_word_is_refused(settings_of, copy, name):
    (copy / f"config/study/{name}.yaml").write_text("")
    with pytest.raises(ConfigError, match="is not a valid study name") as caught:
        settings_of("scale: cpu", studies=[name])
    assert f"{name}.yaml" in str(caught.value)
    assert name not in settings_of("studies: [masked_loss]").studies  # as long as it is not chosen it does no harm
