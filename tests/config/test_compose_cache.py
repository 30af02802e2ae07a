"""The cache of composed configurations: never wrong, and quick where nothing changed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from steptrace.config.digest import Cache
from steptrace.config.plan import Plan

STUDY = "title: T\nbaseline: a\nvariants: {a: [loss=where], b: [seed=1]}\n"


def digests(plan: Plan) -> list[str]:
    return [plan.variant(*pair).digest for pair in plan.pairs]


def test_second_plan_composes_nothing(
    plan_of: Callable[..., Plan], copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = digests(plan_of(STUDY))
    monkeypatch.setattr("steptrace.config.study.compose", lambda *_, **__: 1 / 0)
    assert digests(plan_of(STUDY)) == first
    (copy / "config/study/masked_loss.yaml").write_text("a study is no part of a composition")
    (copy / "config/workflow.yaml").write_text("")
    assert digests(plan_of(STUDY)) == first


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
    file = tmp_path / "plan.json"
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
