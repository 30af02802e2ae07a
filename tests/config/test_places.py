"""Where a wrong value of a composed configuration stands: the file of the group and its line, or the override."""

from pathlib import Path

import pytest

from steptrace.config.compose import compose
from steptrace.errors import ConfigError

DATA = "config/data/random_masks.yaml"
ROOT = "config/config.yaml"


def _refused(folder: Path, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        compose([folder / "config"], [*overrides], where="study.yaml, variant 'a'")
    return caught.value


def _line(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (DATA, "batch_size:", "batch_size: many #"),
        (DATA, "shuffle:", "shuffle: ${no.such} #"),
        (DATA, "shuffle:", "shuffle: '${' #"),
        (DATA, "num_workers:", "num_workers: -1 #"),
        (ROOT, "seed:", "seed: [1] #"),
        (ROOT, "  - optimizer: sgd", "  - optimizer: sgdd"),
        (ROOT, "  - optimizer: sgd", "  - loss: where"),
        (ROOT, "  - optimizer: sgd", "  - optimizer: {a: b}"),
        (ROOT, "  - optimizer: sgd", '  - optimizer: "a\\0b"'),
    ],
)
def test_a_value_in_a_file_of_a_group_is_named_by_file_and_line(copy: Path, name: str, old: str, new: str) -> None:
    file = copy / name
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    error = _refused(copy)
    assert f"{file}, line {_line(file.read_text(), new)}" in (error.where or "")


def test_a_value_that_a_file_lacks_is_named_with_the_file(copy: Path) -> None:
    file = copy / DATA
    file.write_text("\n".join(line for line in file.read_text().splitlines() if "batch_size" not in line))
    error = _refused(copy)
    assert str(file) in (error.where or "")
    assert "data.batch_size" in error.what


def test_the_chosen_option_s_file_is_named_and_no_file_where_an_override_sets_the_value(copy: Path) -> None:
    other = copy / "config" / "data" / "mine.yaml"
    other.write_text((copy / DATA).read_text().replace("num_workers:", "num_workers: -1 #"))
    assert str(other) in (_refused(copy, "data=mine").where or "")
    error = _refused(copy, "data.num_workers=-1")
    assert ".yaml, line" not in (error.where or "")


@pytest.mark.parametrize("override", ["seed=[1", "seed={", "=", "loss=a,,b]", "data.x='"])
def test_an_override_that_cannot_be_read_is_named_with_what_to_do(copy: Path, override: str) -> None:
    error = _refused(copy, "precision=fp32", override)
    assert f"'{override}'" in error.what
    assert error.expected
    assert error.next_step
    assert "Lexer" not in str(error)


def test_defaults_without_self_are_warned_of_with_the_file(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = copy / ROOT
    file.write_text(file.read_text().replace("  - _self_\n", ""))
    for _ in range(2):
        assert compose([copy / "config"], [], where="study.yaml")["loss"]
    assert capsys.readouterr().err.count(f"{file}: warning:") == 1
