"""The profiles: keys that Snakemake and its plugins know."""

import importlib.util
from pathlib import Path

import pytest
import yaml
from snakemake.cli import get_argument_parser

ROOT = Path(__file__).parents[2]
PROFILES = sorted(path.parent.name for path in ROOT.glob("profiles/*/config.yaml"))
#: What profiles use of snakemake-executor-plugin-slurm 2.8.
PLUGINS = {
    "slurm": {"slurm-no-account", "slurm-status-command"},
    None: set(),
}


def profile(name: str) -> dict[str, object]:
    return dict(yaml.safe_load((ROOT / "profiles" / name / "config.yaml").read_text()))


@pytest.mark.parametrize("name", PROFILES)
def test_every_key_is_known_and_all_have_what_the_default_one_has(name: str) -> None:
    settings = profile(name)
    options = {
        option.removeprefix("--") for action in get_argument_parser()._actions for option in action.option_strings
    }
    executor = settings.get("executor")
    assert set(settings) <= options | PLUGINS[executor]
    assert {key: settings[key] for key in profile("default")} == profile("default")
    if executor and importlib.util.find_spec(f"snakemake_executor_plugin_{str(executor).replace('-', '_')}"):
        assert set(settings) <= options
