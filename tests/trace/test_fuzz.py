"""Traces changed at random (bench/fuzz/traces.py): figures and a page, or an error that names the file."""

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import hostile
from steptrace.errors import TraceError

BENCH = Path(__file__).parents[2] / "bench" / "fuzz" / "traces.py"


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_traces", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_corpus_has_every_small_hostile_case_and_can_be_analysed(fuzz: ModuleType, tmp_path: Path) -> None:
    assert len(fuzz.SMALL) > 0.8 * len(hostile.CASES)
    fuzz.check(fuzz.every_kind().text(), tmp_path)
    assert (tmp_path / "out" / "summary.json").is_file()


@pytest.mark.parametrize("code", [0, 2])
def test_a_fault_would_be_found(fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
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
def test_a_fault_of_the_reader_would_be_found(fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    def read(_path: Path) -> SimpleNamespace:
        if wrong == "another file":
            raise TraceError("it is no trace", where="elsewhere.json")
        return SimpleNamespace(**{name: pd.DataFrame({"a": [1.0, np.inf]}) for name in fuzz.TABLES})

    monkeypatch.setattr(fuzz, "read_trace", read)
    with pytest.raises(AssertionError, match="names no file" if wrong == "another file" else r"\.a"):
        fuzz.run(3, analyze_each=10**9)


def test_150_inputs(fuzz: ModuleType) -> None:
    fuzz.run(150, analyze_each=10)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_10_000_inputs(fuzz: ModuleType) -> None:
    fuzz.run(10_000, number=random.SystemRandom().getrandbits(32))
