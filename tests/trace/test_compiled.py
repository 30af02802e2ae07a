"""The compiled code against short slow models, and what it reads of odd text against another decoder."""

import gzip
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hostile
from builders import TraceBuilder, training_step
from recorded import NAMES, TRACES, needs_traces
from steptrace.analysis.common import call_tree
from steptrace.compiled import compiled
from steptrace.errors import TraceError
from steptrace.trace import columns
from steptrace.trace.decode import repair
from steptrace.trace.read import RawTrace, read_raw
from steptrace.trace.scan import KINDS


def _content(raw: RawTrace) -> dict[str, Any]:
    """All that a reader has of a file, its own numbers replaced by what they stand for."""
    columns = {kind: {name: values.tolist() for name, values in c.items()} for kind, c in raw.columns.items()}
    for kind in columns.values():
        kind["thread"] = [raw.threads[i] for i in kind["thread"]]
        if "collective" in kind:
            kind["collective"] = [raw.collectives[i] if i >= 0 else None for i in kind["collective"]]
    notes = [note for note in raw.notes if note.code != "texts_repaired"]  # which `repair` does without a word
    return {"columns": columns, "names": raw.names, "thread names": raw.thread_names, "notes": notes}


def _outcome(path: Path, chunk: int = 1 << 20) -> dict[str, Any] | str:
    """What is read of a file, or why it cannot be."""
    try:
        return json.loads(json.dumps(_content(read_raw(path, chunk=chunk)), default=str, skipkeys=True))
    except TraceError as error:
        return str(error)


def _same(path: Path, chunk: int = 1 << 20) -> dict[str, Any] | str:
    """What is read of a file: the same as once json has decoded and written it, which knows nothing of the scanner."""
    read = _outcome(path, chunk)
    # Of what is salvaged, and of stray commas, `json` cannot say anything.
    if isinstance(read, dict) and not any("parts_left_out" in str(note) for note in read["notes"]):
        text = path.read_bytes()
        text = gzip.decompress(text) if path.suffix == ".gz" else text
        try:
            decoded = json.loads(repair(text))
        except ValueError:
            assert re.search(rb"[,\[]\s*,|,\s*\]", text)
            return read
        with TemporaryDirectory() as folder:
            anew = Path(folder) / "trace.json"
            anew.write_text(json.dumps(decoded))
            assert read == _outcome(anew)
    return read


@pytest.mark.parametrize("name", hostile.CASES)
def test_hostile_traces(tmp_path: Path, name: str) -> None:
    (tmp_path / "trace.json").write_bytes(hostile.CASES[name])
    _same(tmp_path / "trace.json")


@needs_traces
@pytest.mark.parametrize(
    "name", [name for name in NAMES if not name.startswith(("diff", "nccl", "h100_qwen", "two_ranks_1"))]
)  # large, or as others
def test_real_traces(name: str) -> None:
    assert isinstance(_same(TRACES / name), dict)


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
def test_what_profilers_write_is_scanned_as_it_is(
    tmp_path: Path,
    chunk: int,
    indent: int | None,
    keys_sorted: bool,  # noqa: FBT001
) -> None:
    path = tmp_path / "trace.json"
    text = json.dumps({"traceEvents": _trace().events}, indent=indent, sort_keys=keys_sorted, ensure_ascii=False)
    path.write_text(text.replace('"stream": 7', '"stream": 7, "est. achieved occupancy %": -nan'))
    assert isinstance(_same(path, chunk), dict)


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
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_events_with_values_of_every_kind(tmp_path: Path, events: list[dict[str, Any]], indent: int | None) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([hostile.BASE, *events], indent=indent))
    _same(path)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_text_that_was_damaged(tmp_path: Path, data: st.DataObject) -> None:
    text = bytearray(json.dumps(data.draw(st.lists(st.sampled_from(_trace().events), min_size=1, max_size=3))).encode())
    bits = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"nan", b"-inf", b"1e5", b"\xff", b"\0", b"0", b"\\u00e9"]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(1, len(text) - 2))
        new = data.draw(st.one_of(st.sampled_from(bits), st.binary(max_size=2)))
        text[at : at + data.draw(st.integers(0, 3))] = new
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    _same(path)


_SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 9)), max_size=30)


def _forest(rows: list[int], shuffled: random.Random) -> list[int]:
    """Parents in a forest of any order: each row's stands before it in another order than the rows'."""
    place = list(range(len(rows)))
    shuffled.shuffle(place)
    parent = [-1] * len(rows)
    for number, above in enumerate(rows):
        parent[place[number]] = -1 if above < 0 or number == 0 else place[above % number]
    return parent


@given(st.lists(st.tuples(st.integers(-1, 60), st.booleans()), max_size=60), st.randoms())
def test_nearest_ancestors(rows: list[tuple[int, bool]], shuffled: random.Random) -> None:
    parent = _forest([above for above, _ in rows], shuffled)
    wanted = [its for _, its in rows]

    def model(row: int) -> int:
        while row >= 0 and not wanted[row]:
            row = parent[row]
        return row

    nearest = columns.nearest(np.array(parent, dtype=np.int64), np.array(wanted, dtype=bool))
    assert nearest.tolist() == [model(row) for row in range(len(rows))]


_ITEMS = st.lists(st.integers(0, 3), max_size=20)


@given(
    _ITEMS, st.randoms(), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(-1, 3)), max_size=20)
)
def test_latest_items(group: list[int], shuffled: random.Random, queries: list[tuple[int, int, int]]) -> None:
    rank = list(range(len(group)))
    shuffled.shuffle(rank)
    asked = sorted((min(place, len(group)), min(limit, len(group)), not_of) for place, limit, not_of in queries)
    expected = [
        max((k for k in range(place) if rank[k] < limit and group[k] != not_of), default=-1)
        for place, limit, not_of in asked
    ]
    found = np.empty(len(asked), dtype=np.int64)
    columns = np.array(asked, dtype=np.int64).reshape(-1, 3).T
    given = [np.ascontiguousarray(values, dtype=np.int64) for values in (rank, group, *columns)]
    compiled.latest(*given, found)
    assert found.tolist() == expected


@given(st.lists(_SPANS, min_size=1, max_size=4))
def test_trees(tables: list[list[tuple[int, int, int]]]) -> None:
    frames = []
    events = []
    for kind, spans in enumerate(tables):
        rows = sorted((g, a, -n) for g, a, n in spans)
        events += [(thread, ts, less, kind, row) for row, (thread, ts, less) in enumerate(rows)]
        array = np.array(rows, dtype=np.int64).reshape(-1, 3)
        frames.append(pd.DataFrame({"thread": array[:, 0], "ts": array[:, 1], "dur": -array[:, 2]}))
    tree = call_tree.tree_of(frames)
    parents: list[int] = []
    ends: list[int] = []
    events.sort()
    for thread, ts, less, _, _ in events:
        holding = [row for row, (of, *_) in enumerate(events[: len(parents)]) if of == thread and ends[row] > ts]
        parents.append(max(holding, default=-1))
        ends.append(min(ts - less, *(ends[row] for row in holding)) if holding else ts - less)
    host = [end - ts for (_, ts, *_), end in zip(events, ends, strict=True)]
    children = [[row for row, above in enumerate(parents) if above == at] for at in range(len(parents))]

    def size(row: int) -> int:
        return 1 + sum(map(size, children[row]))

    assert tree["kind"].tolist() == [event[3] for event in events]
    assert tree["row"].tolist() == [event[4] for event in events]
    assert tree["parent"].tolist() == parents
    assert tree["host"].tolist() == host
    assert tree["own"].tolist() == [host[at] - sum(host[row] for row in rows) for at, rows in enumerate(children)]
    assert tree["size"].tolist() == [size(row) for row in range(len(parents))]
    key = (7 * tree["row"] + tree["kind"]) % 3

    def ancestors(row: int) -> list[int]:
        return [] if parents[row] < 0 else [parents[row], *ancestors(parents[row])]

    assert tree["depth"].tolist() == [len(ancestors(row)) for row in range(len(parents))]
    expected = [any(key[above] == key[row] for above in ancestors(row)) for row in range(len(parents))]
    assert call_tree.inside_same(key, tree["size"]).tolist() == expected


def test_a_scanner_takes_nothing_that_is_no_text() -> None:
    kinds = [([("start", b"", 8), ("name", b"", 4), ("integer", b"size", 8)], [b"cpu_op\0X"], [b"_op"])]
    scanner = compiled.Scanner(1, kinds)
    assert scanner.scan(b"")[3:] == (bytes(8), [[], [], [], [b"cpu_op\0X"]], 0, False)
    text = b'{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1.5, "args": {"size": 7}}, {"ph": "X"}, {"ph"'
    columns, *_, taken, ended = scanner.scan(text)
    assert [np.frombuffer(data, dtype) for data, dtype in zip(columns[0], "qiq", strict=True)] == [1500, 0, 7]
    assert (text[taken:], ended) == (b', {"ph"', False)
    assert scanner.scan(b', {"ph": "X"}] and more')[5:] == (14, True)
    with pytest.raises(TypeError):
        scanner.scan("text")
    with pytest.raises(ValueError, match="no such form"):
        compiled.Scanner(1, [([("time", b"", 8)], [b"cpu_op\0X"], [])])
    with pytest.raises(ValueError, match="no room"):
        compiled.Scanner(1, [([("start", b"", 8)] * 15, [], [])])
    with pytest.raises(ValueError, match="endings"):
        compiled.Scanner(1, [([], [], [b"_op"] * 9)])
    with pytest.raises(ValueError, match="distinct"):
        compiled.Scanner(1, kinds * 2)
    with pytest.raises(RuntimeError):
        scanner.__init__(1, [])
    unmade = compiled.Scanner.__new__(compiled.Scanner)
    with pytest.raises(RuntimeError):
        unmade.scan(b"[]")


def test_without_the_module_an_import_says_how_to_build_it() -> None:
    program = "import sys; sys.modules['steptrace._compiled'] = None; import steptrace.intervals"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0
    assert "build it with a C compiler: `python -m pip install --no-deps -e .`" in done.stderr.splitlines()[-1]


def test_recurrences_take_no_rows_that_are_not_there() -> None:
    def rows(count: int, value: int = 0, dtype: type = np.int32) -> Any:
        return np.full(count, value, dtype)

    with pytest.raises(ValueError, match="one length"):
        compiled.nesting_parents(*(rows(count, 0, np.int64) for count in (2, 2, 1, 2)))
    with pytest.raises(ValueError, match="one length"):
        compiled.enclosing(*(rows(count, 0, np.int64) for count in (2, 2, 2, 1, 1, 2)))
    for parent in (rows(2), rows(2, 7)):  # row 0 stands on itself; there is no row 7
        with pytest.raises(ValueError, match="forest"):
            compiled.nearest(parent, rows(2, 0, np.int8), rows(2))
    item = rows(1, 0, np.int64)
    for place, limit, rank in ((2, 0, 0), (0, 2, 0), (1, 1, 1), (1, 1, -1)):
        with pytest.raises(ValueError, match="ranks below"):
            compiled.latest(item + rank, item, item + place, item + limit, item, rows(1, 0, np.int64))
    with pytest.raises(ValueError, match="keys below"):
        compiled.inside_same(rows(1, 3), rows(1, 1), rows(1, 0, np.int8), 2)
    events = [rows(1, 0, np.int64)] * 12
    with pytest.raises(ValueError, match="one length"):
        compiled.call_tree(*events, rows(3, 0, np.int8), *[rows(3)] * 5, *[rows(3, 0, np.int64)] * 3)
    with pytest.raises(TypeError, match="4 bytes"):
        compiled.inside_same(b"abc", b"abc", bytearray(3), 1)
    with pytest.raises(TypeError, match="arrays are expected"):
        compiled.call_tree(*events)
