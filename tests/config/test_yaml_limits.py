"""YAML of every kind of file: what is beyond a limit is refused with file, line and next step, and without delay."""

import os
import re
import tracemalloc
from pathlib import Path

import pytest
import yaml

from steptrace.config.compose import compose
from steptrace.config.digest import Cache
from steptrace.config.groups import check_groups
from steptrace.config.resolved import read_command
from steptrace.config.settings import Project, read_settings
from steptrace.config.study import Composer, load_study
from steptrace.config.yaml_file import MOST_BYTES, MOST_VALUES, line_of, read_yaml
from steptrace.errors import ConfigError
from steptrace.lab.setup import load_config

BOMB = "".join(
    [
        "a0: &a0 [x, x]\n",
        *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 30)),
    ]
)
MERGES = "m0: &m0 {k: 1}\n" + "".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}\n" for n in range(1, 40))
#: What is wrong, and what a message says besides the file.
BROKEN = {
    "a number of 5,000 digits": ("n: " + "9" * 5_000, "a number of 5000 characters"),
    "a number of 60": ("n: " + ":".join(["59"] * 5_000), "a number of"),
    "100,000 brackets": ("n: " + "[" * 100_000, "nested too deeply"),
    "100,000 braces": ("n: " + "{a: " * 100_000, "nested too deeply"),
    "100,000 dashes": ("n:\n" + "- " * 100_000 + "x", "nested too deeply"),
    "200,000 keys": ("".join(f"k{n}: 1\n" for n in range(200_000)), "holds too much|too large"),
    "an anchor bomb": (BOMB, "holds too much"),
    "a bomb of merge keys": (MERGES, "holds too much"),
    "an anchor inside itself": ("a: &a [*a]", "'&a' includes itself"),
    "a mapping inside itself": ("a: &a {b: {c: *a}}", "'&a' includes itself"),
    "a merge with itself": ("a: &a {<<: *a}", "'&a' includes itself"),
    "a large file": ("# " + "x" * MOST_BYTES, "too large"),
    "a date that is none": ("d: 2024-13-45", "line 1: is not valid YAML: '2024-13-45' is no timestamp"),
    "a tag that does not fit": ("x: 1\nn: !!int abc", "line 2: is not valid YAML: 'abc' is no int"),
    "a bool that is none": ("n: !!bool maybe", "'maybe' is no bool"),
    "an object": ("n: !!python/object/apply:os.system [ls]", "line 1"),
    "a key twice": ("a: 1\nb: 2\na: 3", "line 3: duplicate key 'a'"),
    "a key that is a list": ("? [a]\n: 1", "line 1"),
    "bytes that are no UTF-8": (b"a: \xff\xfe\xfd", "is not valid YAML"),
    "a control character": (b"a: \x07", "is not valid YAML"),
    "a lone surrogate": ('a: "\\ud800"', "line 1"),
    "two documents": ("a: 1\n---\nb: 2", "is not valid YAML"),
    "an alias of nothing": ("a: *b", "line 1"),
    "interpolations in interpolations": ("a: " + "${" * 10_000 + "}" * 10_000, "line 1"),
    "a tab": ("a:\n\t- b", "line 2"),
}


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def settings_file(folder: Path, text: str | bytes) -> None:
    write(folder / "config/workflow.yaml", text)
    read_settings(Project(folder, folder), {})


def study_file(folder: Path, text: str | bytes) -> None:
    write(folder / "config/study/tiny.yaml", text)
    settings = read_settings(Project(folder, folder), {"studies": ["tiny"], "scale": "cpu"})
    load_study("tiny", Composer(Project(folder, folder), settings, Cache(folder / "cache")))


def group_file(folder: Path, text: str | bytes) -> None:
    write(folder / "config/loss/where.yaml", text)
    compose([folder / "config"], ["loss=where"], where="test")


def other_group_file(folder: Path, text: str | bytes) -> None:
    write(folder / "config/loss/unused.yaml", text)
    compose([folder / "config"], [], where="test")


def resolved_config(folder: Path, text: str | bytes) -> None:
    load_config(write(folder / "config.yaml", text))


def config_of_a_command(folder: Path, text: str | bytes) -> None:
    read_command(write(folder / "config.yaml", text))


@pytest.mark.parametrize(
    "read", [settings_file, study_file, group_file, other_group_file, resolved_config, config_of_a_command]
)
@pytest.mark.parametrize("name", BROKEN)
def test_each_kind_of_file_is_refused_with_its_name_and_place(copy: Path, read, name: str) -> None:
    text, expected = BROKEN[name]
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError) as caught:
            read(copy, text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert re.search(r"\w+\.yaml(, line \d+)?: ", message), message
    assert re.search(expected, message), message
    assert len(message) < 1_000
    assert peak < 200 << 20


def test_valid_yaml_is_accepted(copy: Path) -> None:
    merged = "base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\nboth: {<<: [*base, {c: 4}], a: 0}\n"
    assert read_yaml(write(copy / "m.yaml", merged)) == yaml.safe_load(merged)
    reused = "a: &a [1, {x: 2}]\nb: *a\nc: {d: *a, e: *a}\ndate: 2024-12-05\nhash: 00ff12\nempty:\n"
    assert read_yaml(write(copy / "r.yaml", reused)) == yaml.safe_load(reused)
    assert read_yaml(write(copy / "e.yaml", "")) == {}
    many = "".join(f"k{n}: [a, b]\n" for n in range(MOST_VALUES // 4 - 1))
    assert len(read_yaml(write(copy / "l.yaml", many))) == MOST_VALUES // 4 - 1


def test_a_file_that_is_no_regular_file_is_not_waited_for(copy: Path) -> None:
    os.mkfifo(copy / "config/loss/pipe.yaml")
    for path in (copy / "config/loss/pipe.yaml", copy / "config/loss", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="cannot be read") as raised:
            read_yaml(path)
        assert str(raised.value).startswith(f"{path}: ")
    with pytest.raises(ConfigError, match=r"pipe\.yaml: cannot be read"):
        check_groups([copy / "config"])


@pytest.mark.parametrize(
    "files",
    [
        {"loss/where": "defaults: [where]"},
        {"loss/where": "defaults: [/loss/a]", "loss/a": "defaults: [b]", "loss/b": "defaults: [where, _self_]"},
        {"loss/where": "defaults: [{/loss: where}]"},
        {"loss/where": "defaults: [{/model@x: a}]", "model/a": "defaults: [{optional /loss@y: where}]"},
    ],
)
def test_a_group_that_includes_itself_is_named(copy: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        write(copy / f"config/{name}.yaml", text)
    with pytest.raises(ConfigError, match=r"\.yaml, line 1: .*includes itself: .*loss/where") as caught:
        compose([copy / "config"], ["loss=where"], where="test")
    assert "next: remove" in str(caught.value)


def test_groups_that_include_two_of_each_other_at_many_levels_are_refused(copy: Path) -> None:
    for number in range(40):
        lines = [f"- /deep/f{number + 1}@{side}" for side in "ab"]
        (copy / "config/deep").mkdir(exist_ok=True)
        write(copy / f"config/deep/f{number}.yaml", "\n".join(["defaults:", *lines]))
    write(copy / "config/deep/f40.yaml", "x: 1")
    with pytest.raises(ConfigError, match="includes too many files"):
        compose([copy / "config"], ["+deep=f0"], where="test")


def test_an_interpolation_that_refers_to_itself_is_one_message(copy: Path) -> None:
    with pytest.raises(ConfigError, match="test"):
        compose([copy / "config"], ["+model.a=${model.b}", "+model.b=${model.a}"], where="test")


THOUSAND = ", ".join(map(str, range(1000)))


@pytest.mark.parametrize(
    "matrix", [f"{{a: [{THOUSAND}], b: [{THOUSAND}], c: [{THOUSAND}]}}", f"{{seed: [{', '.join(['1'] * 20_000)}]}}"]
)
def test_a_product_of_many_cells_is_counted_and_not_made(copy: Path, matrix: str) -> None:
    text = f"title: T\nbaseline: a\nvariants: {{a: [], b: []}}\nmatrix: {matrix}\n"
    with pytest.raises(ConfigError, match=r"line 4: makes \d+ variants\n  expected: at most"):
        study_file(copy, text)


def test_the_line_of_a_key(tmp_path: Path) -> None:
    path = write(
        tmp_path / "f.yaml", "a: 1\nb:\n  c: [x, y]\n  d:\n    - e: 1\n      f: 2\n    - g\n? [k]\n: v\nz: 0\n"
    )
    expected = {("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "d", 0, "f"): 6, ("b", "d", 1): 7, ("z",): 10}
    assert {keys: line_of(path, keys) for keys in expected} == expected
    assert line_of(path, ("b", "missing", "deeper")) == 2
    assert line_of(path, ("missing",)) is None
