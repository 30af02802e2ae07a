"""Traces changed at random (bench/fuzz/traces.py): figures and a page, or an error that names the file."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hostile
from benches import bench_module
from steptrace.errors import TraceError


@pytest.fixture(scope="module")
def fuzz() -> Any:
    return bench_module("fuzz/traces")


def test_the_corpus_has_every_small_hostile_case_and_can_be_analysed(fuzz: Any, tmp_path: Path) -> None:
    assert len(fuzz.SMALL) > 0.8 * len(hostile.CASES)
    fuzz.check(fuzz.every_kind().text(), tmp_path)
    assert (tmp_path / "out" / "summary.json").is_file()


@pytest.mark.parametrize("code", [0, 2])
def test_a_fault_would_be_found(fuzz: Any, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Neither an error that names no file passes, nor figures that are no numbers."""

    def analyze(arguments: list[str]) -> int:
        out = Path(arguments[3])
        out.mkdir()
        (out / "summary.json").write_text('{"a": [1, 9223372036854775808]}')
        return code

    monkeypatch.setattr(fuzz.cli, "main", analyze)
    with pytest.raises(AssertionError, match="names no file" if code else "beyond int64"):
        fuzz.run(1)


@pytest.mark.parametrize("wrong", ["another file", "infinite"])
def test_a_fault_of_the_reader_would_be_found(fuzz: Any, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    def read(_path: Path) -> SimpleNamespace:
        if wrong == "another file":
            raise TraceError("it is no trace", where="elsewhere.json")
        return SimpleNamespace(**{name: pd.DataFrame({"a": [1.0, np.inf]}) for name in fuzz.TABLES})

    monkeypatch.setattr(fuzz, "read_trace", read)
    with pytest.raises(AssertionError, match="names no file" if wrong == "another file" else r"\.a"):
        fuzz.run(3, analyze_each=10**9)


def test_150_inputs(fuzz: Any) -> None:
    fuzz.run(150, analyze_each=10)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_10_000_inputs(fuzz: Any) -> None:
    fuzz.run(10_000, number=random.SystemRandom().getrandbits(32))
