"""What a study prepares: names filled in, what counts as a change, and mistakes that are told before anything runs."""

from pathlib import Path

import pytest

from steptrace.config.plan import Plan
from steptrace.config.prepare import Preparation, prepared, together
from steptrace.errors import ConfigError

STUDY = """
title: Tiny
baseline: plain
prepare:
  weights:
    command: ["{python}", plugins/make.py, "{out}/weights.bin"]
    inputs: [plugins]
    result: weights.bin
    gives: {WEIGHTS: "{out}/weights.bin"}
variants:
  plain: [loss=boolean_mask]
  needy: {overrides: [loss=where], needs: [weights]}
"""


@pytest.fixture
def planned(plan_of, copy: Path):
    """A function that plans the study, with changes of its text."""
    (copy / "plugins").mkdir()
    (copy / "plugins" / "make.py").write_text("print(1)")

    def plan(old: str = "", new: str = "") -> Plan:
        assert old in STUDY
        return plan_of(STUDY.replace(old, new) if old else STUDY)

    return plan


def keys(plan: Plan) -> dict[str, str]:
    return {variant: plan.key("training", study, variant) for study, variant in plan.variants}


def test_only_what_needs_it_changes_with_it(planned, copy: Path) -> None:
    before = keys(planned())
    (copy / "plugins" / "make.py").write_text("print(2)")
    after = keys(planned())
    assert before["plain"] == after["plain"]
    assert before["needy"] != after["needy"]
    assert keys(planned("gives: {WEIGHTS", "gives: {BIASES"))["needy"] != after["needy"]


def test_names_are_filled_in(planned) -> None:
    weights = planned().preparations["weights"]
    assert Path(weights.command[-1]).is_absolute()
    assert weights.command[-1] == weights.gives["WEIGHTS"]
    assert weights.command[-1].endswith(f"{weights.folder}/{weights.result}")


def test_what_no_variant_needs_is_not_prepared(planned) -> None:
    assert planned(", needs: [weights]", "").preparations == {}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("needs: [weights]", "needs: [weigths]", "does not prepare"),
        ("inputs: [plugins]", "inputs: [plugs]", "no file or folder 'plugs'"),
        ("result: weights.bin", "result: ../weights.bin", "not inside"),
        ("    result: weights.bin\n", "", "result"),
        ("inputs:", "input:", "input"),
    ],
)
def test_mistakes(planned, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(old, new)


def test_studies_share_what_they_declare_alike_and_nothing_else(tmp_path: Path) -> None:
    def one(name: str, **keys) -> object:
        written = Preparation(**{"command": ["make"], "result": "a", **keys})
        return prepared(name, written, root=tmp_path, workdir=tmp_path, where="study.yaml")

    assert list(together([("a", one("x")), ("b", one("x"))])) == ["x"]
    with pytest.raises(ConfigError, match="in different ways"):
        together([("a", one("x")), ("b", one("x", result="b"))])
    with pytest.raises(ConfigError, match="different values"):
        together([("a", one("x", gives={"V": "{out}"})), ("b", one("y", gives={"V": "{out}"}))])
