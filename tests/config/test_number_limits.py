"""Every number in a configuration has a least and a most; whatever lies beyond is refused at planning, by name."""

import copy as copies
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from steptrace.config.compose import Composer
from steptrace.config.keys import check_config, keys
from steptrace.errors import ConfigError

ROOT = Path(__file__).parents[2]
HUGE = (10**10, 10**18)


def is_number(kind: Any) -> bool:
    return bool({int, float} & {kind, *get_args(kind)})


NUMBERS = [name for name, key in keys().items() if is_number(key.field.type)]


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    config = Composer([ROOT / "config"]).compose([], where="here")
    check_config(config, where="here")
    return config


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_of_the_schema_out_of_its_range(composed: dict[str, Any], name: str) -> None:
    key = keys()[name]
    low = key.field.metadata["at_least"]
    assert low is not None
    for value in (low - 1, -(10**18), *HUGE):
        config = copies.deepcopy(composed)
        *sections, last = name.split(".")
        holder = config
        for section in sections:
            holder = holder[section]
        in_list = isinstance(holder[last], list)
        holder[last] = [value] if in_list else value
        with pytest.raises(ConfigError) as caught:
            check_config(config, where="here")
        message = str(caught.value)
        assert f"{name}{'[0]' * in_list} is {value}" in message
        assert ("at most" if value > 0 else "at least") in message


def numbers_in(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """The numeric keys of a JSON schema that may hold nothing but a number."""
    if isinstance(schema, dict):
        kinds = schema.get("type", [])
        if kinds and ({kinds} if isinstance(kinds, str) else set(kinds)) <= {"integer", "number", "null"}:
            yield ".".join(path), schema
        for key, value in schema.items():
            yield from numbers_in(value, path if key == "properties" else (*path, key))
    elif isinstance(schema, list):
        for each in schema:
            yield from numbers_in(each, path)


def test_counts_in_the_files_of_workflow_and_study_have_both_limits() -> None:
    """A gate's own limits may be any number."""
    found = {}
    for name in ("workflow", "study"):
        schema = json.loads((ROOT / "workflow" / "schemas" / f"{name}.schema.json").read_text())
        found |= {key: one for key, one in numbers_in(schema) if not key.startswith("gates.")}
    assert set(found) >= {"repeats", "timeout_minutes", "program.ranks", "program.steps", "program.seed"}
    for key, one in found.items():
        assert "maximum" in one, key
        assert "minimum" in one or "exclusiveMinimum" in one, key


@pytest.mark.parametrize("value", [-1, *HUGE])
@pytest.mark.parametrize("key", ["ranks", "seed", "warmup", "steps", "profile", "predicted_steps", "compared_steps"])
def test_a_number_of_a_program_out_of_its_range(plan_of, key: str, value: int) -> None:
    study = {
        "title": "t",
        "baseline": "a",
        "program": {"command": [sys.executable, "train.py"], key: value},
        "variants": {"a": []},
    }
    with pytest.raises(ConfigError, match=rf"'program\.{key}' is {value}\n.*expected"):
        plan_of(yaml.safe_dump(study))
