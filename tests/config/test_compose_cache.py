"""The cache of composed configurations: never wrong, and quick where nothing changed."""

import os

import pytest

from steptrace.config.cache import ComposeCache, write_if_changed


def cache_of(copy):
    return ComposeCache([copy / "config"], copy / "cache")


def test_second_use_composes_nothing(copy, monkeypatch):
    first = cache_of(copy)
    composed = first.compose(["loss=where"], where="test")
    first.save()
    monkeypatch.setattr("steptrace.config.compose.compose", lambda *_, **__: 1 / 0)
    assert cache_of(copy).compose(["loss=where"], where="test") == composed
    (copy / "config/study/masked_loss.yaml").write_text("a study is no part of a composition")
    (copy / "config/workflow.yaml").write_text("")
    assert cache_of(copy).compose(["loss=where"], where="test") == composed


def test_any_change_of_the_groups_starts_anew(copy):
    cache = cache_of(copy)
    before = cache.compose(["loss=where"], where="test")
    cache.save()
    path = copy / "config/loss/where.yaml"
    path.write_text(path.read_text().replace("-1", "-2"))
    assert cache_of(copy).compose(["loss=where"], where="test").digest != before.digest


def test_a_variable_of_the_environment_is_part_of_the_configuration(copy, monkeypatch):
    path = copy / "config/loss/where.yaml"
    path.write_text(path.read_text().replace("-1", "${oc.decode:${oc.env:STEPTRACE_TEST_INDEX,-1}}"))

    def digest():
        cache = cache_of(copy)
        composed = cache.compose(["loss=where"], where="test")
        cache.save()
        return composed.digest

    unset = digest()
    monkeypatch.setenv("STEPTRACE_TEST_INDEX", "-2")
    assert digest() != unset
    monkeypatch.delenv("STEPTRACE_TEST_INDEX")
    assert digest() == unset


@pytest.mark.parametrize("damage", ["{", "[]", '["", {"a": {"b": 1}}]'])
def test_a_damaged_file_is_no_obstacle(copy, damage):
    cache = cache_of(copy)
    composed = cache.compose([], where="test")
    cache.save()
    (copy / "cache" / "configs.json").write_text(damage)
    assert cache_of(copy).compose([], where="test") == composed


def test_snapshots_are_written_only_if_they_change(tmp_path):
    path = tmp_path / "folder" / "file.txt"
    assert write_if_changed(path, "one")
    os.utime(path, (1, 1))
    assert not write_if_changed(path, "one")
    assert path.stat().st_mtime == 1
    assert write_if_changed(path, "two")
    assert path.read_text() == "two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]  # nothing temporary is left


def test_planning_twice_writes_nothing_the_second_time(plan_of, copy):
    study = "title: T\nbaseline: a\nvariants: {a: [], b: [seed=1]}\n"
    plan_of(study)
    files = [path for path in (copy / "results").rglob("*") if path.is_file()]
    assert len(files) == 7  # study.json, two configurations here and on a GPU, a reference, the cache
    for path in files:
        os.utime(path, (1, 1))
    plan_of(study)
    assert all(path.stat().st_mtime == 1 for path in files)
