"""The short cut that makes a thousand variants cheap gives what `hydra.compose` gives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from steptrace.config.cache import ComposeCache
from steptrace.config.compose import Composer
from steptrace.config.settings import Project, read_settings
from steptrace.config.study import load_study

ROOT = Path(__file__).parents[2]
STUDIES = sorted(path.stem for path in (ROOT / "config" / "study").glob("*.yaml"))


def by_hydra(overrides: Sequence[str]) -> Any:
    with initialize_config_dir(str(ROOT / "config"), version_base="1.3"):
        return OmegaConf.to_container(compose("config", overrides=list(overrides)), resolve=True)


@pytest.mark.parametrize("study", STUDIES)
def test_every_variant_and_reference_of_every_study(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[tuple[str, ...], Any] = {}
    shortened = Composer.compose

    def recording(self: Composer, overrides: Sequence[str], **named: Any) -> dict[str, Any]:
        made[tuple(overrides)] = shortened(self, overrides, **named)
        return made[tuple(overrides)]

    monkeypatch.setattr(Composer, "compose", recording)
    project = Project(ROOT, tmp_path)
    settings = read_settings(project, {"studies": [study], "scale": "cpu"})
    loaded = load_study(study, project, settings, ComposeCache(project.config_folders, tmp_path))
    assert len(made) > 2 * len(loaded.variants)  # each variant at both scales, and the references
    for overrides, config in list(made.items())[::3]:  # both scales in turn, and references
        assert config == by_hydra(overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["loss=sort", "data.batch_size=8", "model.hidden=20", "python_path=[a,b]", "scale.threads=null"],
        ["precision=bf16", "data.dataset={_target_:torch.Data,length:3}", "optimizer.lr=1e-4"],
        ["scale=gpu", "seed=7", "equivalence.seeds=[5]"],
        ["loss=where", "loss=sort", "model.hidden=3", "scale=gpu", "+model.bias=true", "~optimizer.momentum"],
        ["data.dataset.length=${data.batch_size}", "data.batch_size=5"],
        ["model.classes='a,b'", "+optimizer.betas=[0.5,0.25]"],
    ],
)
def test_other_overrides(overrides: list[str]) -> None:
    composer = Composer([ROOT / "config"])
    expected = by_hydra(overrides)
    assert composer.compose(overrides, where="test") == expected
    assert composer.compose(overrides, where="test") == expected  # the first changed nothing that is remembered
