"""The compiled code gives what the Python code gives, for whatever a file holds."""

import gzip
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hostile
from builders import TraceBuilder, training_step
from recorded import NAMES, TRACES, needs_traces
from steptrace import intervals
from steptrace.analysis import program as flame
from steptrace.analysis.common import call_tree
from steptrace.analysis.critical_path import graph
from steptrace.analysis.critical_path import graph as found_edges
from steptrace.analysis.critical_path.measure import critical_paths
from steptrace.compiled import compiled as installed
from steptrace.errors import TraceError
from steptrace.trace import columns, decode, scan
from steptrace.trace.kinds import KINDS
from steptrace.trace.read import RawTrace, read_raw

SOURCES = Path(__file__).parents[2] / "ext" / "compiled"


@pytest.mark.skipif(not os.environ.get("STEPTRACE_EXPECT_COMPILED"), reason="only asked for by make test")
def test_installation_has_built_it_where_there_is_a_compiler() -> None:
    assert installed is not None, "pip install -e . has not built steptrace._compiled; see its output with -v"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The compiled module as it is installed, or else built for this test."""
    if installed is not None:
        return installed
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("compiled") / "_compiled.so"
    include = f"-I{sysconfig.get_path('include')}"
    sources = sorted(map(str, SOURCES.glob("*.c")))
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", include, *sources, "-o", str(library), "-lm"], check=True)
    spec = importlib.util.spec_from_file_location("steptrace._compiled", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _plain(raw: RawTrace) -> dict[str, Any]:
    """All that a reader has found, its own numbers replaced by what they stand for, the rows of a kind in one order."""
    columns = {kind: {name: values.tolist() for name, values in c.items()} for kind, c in raw.columns.items()}
    for kind in columns.values():
        kind["thread"] = [raw.threads[i] for i in kind["thread"]]
        for name in {"collective"} & kind.keys():
            kind[name] = [raw.collectives[i] if i >= 0 else None for i in kind[name]]
    rows = {kind: sorted(map(repr, zip(*c.values(), strict=True))) for kind, c in columns.items() if kind != "memory"}
    about = (raw.names, raw.thread_names, raw.metadata, raw.events, raw.base_ns, raw.notes)
    return {
        "columns": rows,
        "memory": columns["memory"],
        "about": repr(about),
    }  # NaN is not equal to itself, its text is


def _outcome(path: Path, module: ModuleType | None, chunk: int) -> dict[str, Any] | str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "compiled", module)
        try:
            return _plain(read_raw(path, chunk=chunk))
        except TraceError as error:
            return str(error)


def _same(path: Path, module: ModuleType, chunk: int = 1 << 20) -> dict[str, Any] | str:
    found = _outcome(path, module, chunk)
    assert found == _outcome(path, None, chunk)
    return found


@pytest.mark.parametrize("name", hostile.CASES)
def test_hostile_traces(tmp_path: Path, name: str, compiled: ModuleType) -> None:
    (tmp_path / "trace.json").write_bytes(hostile.CASES[name])
    _same(tmp_path / "trace.json", compiled)


@needs_traces
@pytest.mark.parametrize("name", NAMES)
def test_real_traces(name: str, compiled: ModuleType) -> None:
    assert isinstance(_same(TRACES / name, compiled), dict)


def _trace() -> TraceBuilder:
    builder = TraceBuilder()
    for step in range(3):
        training_step(builder, step, step * 1_100_000)
    builder.add("cpu_op", "record_param_comms", 1, 2, args={"Collective name": "allreduce", "Seq": 3, "Group size": 2})
    types = {"Input Dims": [[2, 3], []], "Input type": ["float", ""]}
    builder.op("aten::mm", 5, 9, **types)
    builder.add("user_annotation", "gloo:all_reduce", 1, 2, args={"Input Dims": [[2, 3]], "Input type": ["float"]})
    kernel = {"device": 0, "stream": 7, "correlation": 9, "grid": [4, 2, 1], "blocks per SM": 0.25}
    builder.add("kernel", "gemm", 10, 20, args=kernel)
    builder.add("kernel", "gemm", 10, 20, args=kernel | {"blocks per SM": None})
    memory = {"Device Type": 1, "Device Id": 0, "Addr": 1 << 46, "Bytes": -512, "Total Allocated": 9}
    builder.events.append(builder.add("cpu_instant_event", "[memory]", 3, 0, args=memory) | {"ph": "i"})
    name = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 100, "args": {"name": "thread 1 (python)"}}
    builder.events.append(name)
    return builder


@pytest.mark.parametrize("chunk", [300, 5_000, 1 << 20])
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("keys_sorted", [True, False])
def test_what_profilers_write_needs_no_python_decoder(
    tmp_path: Path,
    chunk: int,
    indent: int | None,
    keys_sorted: bool,  # noqa: FBT001
    compiled: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "trace.json"
    text = json.dumps({"traceEvents": _trace().events}, indent=indent, sort_keys=keys_sorted, ensure_ascii=False)
    path.write_text(text.replace('"stream": 7', '"stream": 7, "est. achieved occupancy %": -nan'))
    found = _same(path, compiled, chunk)
    assert isinstance(found, dict)
    monkeypatch.setattr(decode.EventDecoder, "decode", None)
    assert _outcome(path, compiled, chunk) == found


_KEYS = ["External id", "correlation", "stream", "grid", "blocks per SM", "Input type", "Input Dims", "Bytes", "Seq"]
_TIMES = st.one_of(
    st.floats(allow_nan=True),
    st.integers(-(1 << 70), 1 << 70),
    st.decimals(-(10**16), 10**16, places=3).map(float),
    st.sampled_from([1712345678901234.567, 8796093022207.9995, 8796093022208.25, 0.0005, 1e-7, 1e300]),
)
_ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 66), 1 << 66),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["7", "0x1f", "nan", "caf\u00e9", 'a\\"b\n', "\ud800", "\x7f"]),
    st.lists(st.one_of(st.integers(0, 9), st.text(max_size=3), st.none(), st.lists(st.integers(0, 3))), max_size=4),
    st.dictionaries(st.sampled_from(_KEYS), st.integers(0, 9), max_size=2),
)
_EVENTS = st.fixed_dictionaries(
    {"ph": st.one_of(st.sampled_from("XXXXiMs"), _ODD), "cat": st.one_of(st.sampled_from(sorted(KINDS)), _ODD)},
    optional={
        "name": st.one_of(st.sampled_from(["aten::mm", "thread_name", "[memory]", "gloo:all_reduce", "\u00e9"]), _ODD),
        "pid": st.one_of(st.integers(0, 3), _ODD),
        "tid": st.one_of(st.integers(0, 3), _ODD),
        "ts": st.one_of(st.integers(0, 10**6), _TIMES, _ODD),
        "dur": st.one_of(st.integers(0, 10**6), _TIMES),
        "args": st.one_of(
            _ODD, st.dictionaries(st.one_of(st.sampled_from(_KEYS), st.text(max_size=2)), _ODD, max_size=5)
        ),
    },
)


@given(st.lists(_EVENTS, max_size=4), st.sampled_from([None, 1]))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_events_with_values_of_every_kind(
    tmp_path: Path, compiled: ModuleType, events: list[dict[str, Any]], indent: int | None
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([hostile.BASE, *events], indent=indent))
    _same(path, compiled)


@given(st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_text_that_was_damaged(tmp_path: Path, compiled: ModuleType, data: st.DataObject) -> None:
    text = bytearray(json.dumps(data.draw(st.lists(st.sampled_from(_trace().events), min_size=1, max_size=3))).encode())
    bits = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"nan", b"-inf", b"1e5", b"\xff", b"\0", b"0", b"\\u00e9"]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(1, len(text) - 2))
        new = data.draw(st.one_of(st.sampled_from(bits), st.binary(max_size=2)))
        text[at : at + data.draw(st.integers(0, 3))] = new
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    _same(path, compiled)


_SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 9)), max_size=30)


def _both(compiled: ModuleType, home: ModuleType, compute: Callable[[], Any]) -> list[Any]:
    """What a function of a module gives with compiled code and without."""
    found = []
    for module in (compiled, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(home, "compiled", module)
            found.append(compute())
    return found


@given(_SPANS)
@settings(max_examples=200, deadline=None)
def test_nestings(compiled: ModuleType, spans: list[tuple[int, int, int]]) -> None:
    rows = np.array(sorted((g, a, -(a + n)) for g, a, n in spans), dtype=np.int64).reshape(-1, 3)
    group, start, end = rows[:, 0].copy(), rows[:, 1].copy(), -rows[:, 2]
    with_it, without = _both(compiled, intervals, lambda: intervals.nesting_parents(group, start, end).tolist())
    assert with_it == without


@given(_SPANS, st.lists(st.tuples(st.integers(-1, 3), st.integers(-2, 35)), max_size=20))
@settings(max_examples=200, deadline=None)
def test_instants_in_a_nesting(
    compiled: ModuleType, spans: list[tuple[int, int, int]], instants: list[tuple[int, int]]
) -> None:
    rows = np.array(sorted((g, a, -(a + n)) for g, a, n in spans), dtype=np.int64).reshape(-1, 3).T
    of, time = np.array(instants, dtype=np.int64).reshape(-1, 2).T
    with_it, without = _both(
        compiled, intervals, lambda: intervals.enclosing(rows[0], rows[1], -rows[2], of, time).tolist()
    )
    assert with_it == without


@given(st.lists(st.tuples(st.integers(-1, 60), st.booleans()), max_size=60))
@settings(max_examples=200, deadline=None)
def test_nearest_ancestors(compiled: ModuleType, rows: list[tuple[int, bool]]) -> None:
    parent = np.array([min(above, row - 1) for row, (above, _) in enumerate(rows)], dtype=np.int64)
    wanted = np.array([its for _, its in rows], dtype=bool)
    with_it, without = _both(compiled, columns, lambda: columns.nearest(parent, wanted).tolist())
    assert with_it == without


def test_ancestors_that_stand_after_their_children(compiled: ModuleType) -> None:
    parent, wanted = np.array([1, 2, -1]), np.array([False, False, True])
    assert _both(compiled, columns, lambda: columns.nearest(parent, wanted).tolist()) == [[2, 2, 2]] * 2


@given(st.lists(_SPANS, min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_trees(compiled: ModuleType, tables: list[list[tuple[int, int, int]]]) -> None:
    frames = []
    for spans in tables:
        rows = np.array(sorted((g, a, -n) for g, a, n in spans), dtype=np.int64).reshape(-1, 3)
        frames.append(pd.DataFrame({"thread": rows[:, 0], "ts": rows[:, 1], "dur": -rows[:, 2]}))
    with_it, without = _both(compiled, call_tree, lambda: call_tree.tree_of(frames))
    assert {name: column.tolist() for name, column in with_it.items()} == {
        name: column.tolist() for name, column in without.items()
    }
    key = (7 * with_it["row"] + with_it["kind"]) % 3
    same, alike = _both(compiled, call_tree, lambda: call_tree.inside_same(key, with_it["size"]).tolist())
    assert same == alike


@given(st.lists(st.tuples(st.integers(-1, 100), st.integers(0, 3), st.integers(0, 2)), max_size=60), st.randoms())
@settings(max_examples=200, deadline=None)
def test_boxes(compiled: ModuleType, rows: list[tuple[int, int, int]], shuffled: random.Random) -> None:
    # A forest in any order: each row's parent is one before it in another order than the rows'.
    place = list(range(len(rows)))
    shuffled.shuffle(place)
    parent, key, own = np.zeros((3, len(rows)), dtype=np.int64)
    for number, (above, name, width) in enumerate(rows):
        parent[place[number]] = -1 if above < 0 or number == 0 else place[above % number]
        key[place[number]], own[place[number]] = name, width
    with_it, without = _both(
        compiled,
        flame,
        lambda: [column.tolist() for column in flame.merged(parent.astype(np.int32), key.astype(np.int32), own)],
    )
    assert with_it == without


@given(st.lists(st.tuples(*(st.integers(0, 3) for _ in range(4))), max_size=40))
@settings(max_examples=200, deadline=None)
def test_orders_of_edges(compiled: ModuleType, rows: list[tuple[int, int, int, int]]) -> None:
    values = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    dtypes = {"source": np.int32, "target": np.int32, "at": np.int64, "priority": np.int8}
    edges = {
        name: np.ascontiguousarray(column, dtype) for (name, dtype), column in zip(dtypes.items(), values, strict=True)
    }
    with_it, without = _both(compiled, found_edges, lambda: found_edges.edge_order(edges, 4))
    target = edges["target"]
    last = np.append(np.diff(target[without]) != 0, True)[: len(rows)]
    assert sorted(with_it.tolist()) == list(range(len(rows)))
    assert target[with_it].tolist() == target[without].tolist()
    assert with_it[last].tolist() == without[last].tolist()


@pytest.mark.parametrize("count", [1, 3])
def test_paths(compiled: ModuleType, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = TraceBuilder()
    for step in range(count):
        training_step(builder, step, step * 1_100_000)
    trace = builder.trace()
    left = []
    for module in (compiled, None):
        monkeypatch.setattr(graph, "compiled", module)
        tables = critical_paths(trace)
        left.append(tables["critical_classes"].to_dict("list"))
    assert left[0] == left[1]


def test_packed_traces(tmp_path: Path, compiled: ModuleType) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(_trace().text()))
    assert isinstance(_same(path, compiled, 700), dict)


def test_a_scanner_takes_nothing_that_is_no_text(compiled: ModuleType) -> None:
    scanner = compiled.Scanner(1, [(b"cpu_op\0X", 0)])
    assert scanner.scan(b"", False) is False
    assert scanner.scan(b"[]", False)[0][0] == [b""] * 9
    with pytest.raises(TypeError):
        scanner.scan("text", False)
    with pytest.raises(ValueError, match="known kind"):
        compiled.Scanner(1, [(b"cpu_op\0X", 9)])
    with pytest.raises(RuntimeError):
        scanner.__init__(1, [])
    unmade = compiled.Scanner.__new__(compiled.Scanner)
    with pytest.raises(RuntimeError):
        unmade.scan(b"[]", False)


def test_recurrences_take_no_rows_that_are_not_there(compiled: ModuleType) -> None:
    def rows(count: int, value: int = 0, dtype: type = np.int32) -> Any:
        return np.full(count, value, dtype)

    with pytest.raises(ValueError, match="one length"):
        compiled.nesting_parents(*(rows(count, 0, np.int64) for count in (2, 2, 1, 2)))
    with pytest.raises(ValueError, match="one length"):
        compiled.enclosing(*(rows(count, 0, np.int64) for count in (2, 2, 2, 1, 1, 2)))
    with pytest.raises(ValueError, match="one length"):
        compiled.nearest(rows(2), rows(2, 0, np.int8), rows(1))
    with pytest.raises(ValueError, match="known nodes"):
        compiled.longest_paths(rows(1, 5), rows(1, 5), rows(1, 5, np.int64), rows(2, 0, np.int64))
    with pytest.raises(ValueError, match="known nodes"):
        compiled.path(rows(2, 7), rows(1), rows(2, 9, np.int64), rows(2), 0, 1)
    with pytest.raises(ValueError, match="known nodes"):
        compiled.order_edges(rows(1), rows(1, 5), rows(1, 0, np.int64), rows(1, 0, np.int8), rows(1), 2)
    with pytest.raises(ValueError, match="keys below"):
        compiled.inside_same(rows(1, 3), rows(1, 1), rows(1, 0, np.int8), 2)
    with pytest.raises(ValueError, match="forest"):
        compiled.merge_boxes(rows(2, 1), rows(2), rows(2, 1, np.int64), rows(2))  # row 1 stands on itself
    with pytest.raises(ValueError, match="forest"):
        compiled.merge_boxes(rows(2, 2), rows(2), rows(2, 1, np.int64), rows(2))
    events = [rows(1, 0, np.int64)] * 12
    with pytest.raises(ValueError, match="one length"):
        compiled.call_tree(*events, rows(3, 0, np.int8), *[rows(3)] * 5, *[rows(3, 0, np.int64)] * 3)
    with pytest.raises(TypeError, match="4 bytes"):
        compiled.inside_same(b"abc", b"abc", bytearray(3), 1)
    with pytest.raises(TypeError, match="arrays are expected"):
        compiled.call_tree(*events)
