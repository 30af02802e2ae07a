"""Names that a profiler wrote without escaping them, and numbers of any length, are read as they are."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recorded import NAMES, TRACES, case_trace, needs_traces
from steptrace.documents.note import note
from steptrace.errors import TraceError
from steptrace.trace.decode import MISSING, to_ns
from steptrace.trace.link import read_trace
from steptrace.trace.mend import mend
from steptrace.trace.read import read_raw
from steptrace.trace.salvage import _MOST_ENDS, _is_json, salvage_events
from steptrace.trace.unpack import opened


def _of(events: list[str]) -> str:
    """The text of a trace."""
    return f'{{"traceEvents": [{",".join(events)}]}}'


_OP = '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":10,"dur":500,"args":{"External id":1}}'
#: Events that hold a name, its key first, in the middle, or last.
_SHAPES = (
    '{"ph":"X","cat":"python_function","name":"%s","pid":1,"tid":1,"ts":1,"dur":900,"args":{"Python id":1,"a":"b"}}',
    '{"name": "%s", "ph": "X", "cat": "python_function", "pid": 1, "tid": 1, "ts": 1, "dur": 900}',
    '{\n"ph": "X", "cat": "python_function", "pid": 1, "tid": 1, "ts": 1, "dur": 900,\n"args": {}, "name": "%s"\n}',
)
#: As the name is, and as it is written where these differ.
_NAMES: dict[str, str] = {
    name: name
    for name in (
        'lib = Library("ns", "IMPL")\n(1): <module>',
        '{"device": "cpu", "dtype": "float32"}(12): run',
        '{"a": {"b": "c"}}(1): f',
        '{"pid": 1}(1): f',
        'print("]")(3): f',
        'f("}")(3): f',
        'say"(1): f',
        '"(1): "',
        'd["x"], "y"',
        "tab\tand bell\x07 and line\r\nbreak",
        r"torch\cuda\__init__.py(219): _lazy_init",
        r"C:\users\me\train.py(20): main",
        r"D:\new\table\utils.py(7): run",
        r"torch\nn\functional.py(5): relu",
        "trailing\\",
    )
} | {
    "\\\\server\\share\\x.py(1): f": r"\\\\server\share\x.py(1): f",
    'proper "quotes" and \\': r"proper \"quotes\" and \\",
    'caf\u00e9 "x".py(1): f': r"caf\u00e9 \"x\".py(1): f",
}


@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("chunk", [150, 1 << 20])
def test_names_that_were_not_escaped(tmp_path: Path, name: str, shape: str, chunk: int) -> None:
    frame = shape % _NAMES[name]
    path = tmp_path / "trace.json"
    path.write_text(_of([_OP, frame, _OP, frame, frame]), newline="")
    raw = read_raw(path, chunk=chunk)
    frames = [raw.names[code] for code in raw.columns["frame"]["name"]]
    shown = "".join(c if c in "\t\n" or c >= " " else "\ufffd" for c in name)
    assert frames == [shown] * 3
    assert raw.columns["frame"]["dur"].tolist() == [900_000] * 3
    assert len(raw.columns["op"]["ts"]) == 2


@pytest.mark.parametrize("where", ['{"traceName": "C:\\my\\trace.json", %s}', '{%s, "traceName": "log\\2.json"}'])
def test_a_path_of_windows_in_the_metadata(tmp_path: Path, where: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(where % f'"traceEvents": [{_OP}]')
    assert str(read_raw(path).metadata["traceName"]).count("\\") >= 1


def test_many_damaged_names_are_mended_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counting(text: bytes, **options: Any) -> tuple[bytes, int]:
        calls.append(len(text))
        return mend(text, **options)

    monkeypatch.setattr("steptrace.trace.event_stream.mend", counting)
    path = tmp_path / "trace.json"
    path.write_text(_of([_OP, _SHAPES[0] % r"lib\cuda\x.py(1): f"] * 4_000))
    raw = read_raw(path, chunk=1 << 16)
    assert len(raw.columns["frame"]["ts"]) == 4_000
    assert note("texts_repaired", texts=4_000) in raw.notes
    assert sum(calls) < 3 * path.stat().st_size


@needs_traces
@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith(("alexnet", "h100_vit", "mi250", "triton"))])
def test_valid_json_stays_as_it_is(name: str) -> None:
    with opened(TRACES / name) as file:
        text = file.read()
    assert mend(text) == (text, 0)


_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3), max_leaves=4
)


@given(st.lists(st.dictionaries(st.sampled_from(["ph", "name", "cat", "pid", 'a"b', "x}"]), _JSON), max_size=3))
def test_whatever_is_valid_stays_as_it_is(events: list[dict[str, Any]]) -> None:
    text = json.dumps({"traceEvents": events}).encode()
    assert mend(text) == (text, 0)


def test_what_cannot_be_mended_names_the_likely_cause(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(_of([_OP, "{'ph': 'X', 'name': 'a', 'pid': 1}", _OP, _OP]))
    with pytest.raises(TraceError) as error:
        read_raw(path)
    assert "with_stack=False" in str(error.value.next_step)


@pytest.mark.parametrize(
    ("case", "file", "frame"),
    [
        ("windows_backslash", "trace.json", r"torch\cuda\__init__.py(219): _lazy_init"),
        ("windows_backslash", "u.json", r"C:\users\me\train.py(20): main"),
        ("quotes_in_name", "trace.json", 'lib = Library("ns", "IMPL")\n(1): <module>'),
        ("quotes_in_name", "json_name.json", '{"device": "cpu", "dtype": "float32"}(12): run'),
    ],
)
def test_public_reports(case: str, file: str, frame: str) -> None:
    trace = case_trace(case, file)
    assert trace.frames["name"].tolist() == [frame]
    assert trace.ops["name"].tolist() == ["aten::mm"]


def _read_times(path: Path, first: str, second: str) -> tuple[int, int]:
    """The times, in ns, of two events that are written so."""
    events = [_OP.replace('"ts":10', f'"ts":{text}').replace("External id", "id") for text in (first, second)]
    path.write_text(_of(events))
    raw = read_raw(path)
    one, two = (raw.columns["op"]["ts"] + raw.base_ns).tolist()
    return int(one), int(two)


_INTEGERS = st.integers(0, 4_000_000_000_000_000)
_DIGITS = st.text("0123456789", min_size=1, max_size=40)


@given(_INTEGERS, _DIGITS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_times_with_any_number_of_digits(tmp_path: Path, whole: int, fraction: str) -> None:
    text = f"{whole}.{fraction}"
    units = len(fraction)
    scaled = int(f"{whole}{fraction}") * 1000
    exact, rest = divmod(scaled, 10**units)
    exact += 2 * rest > 10**units or (2 * rest == 10**units and exact % 2)
    assert _read_times(tmp_path / "trace.json", text, text) == (exact, exact)
    assert to_ns(Decimal(text)) == exact


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1712345678901234.500000", 1712345678901234500),
        ("1712345678901234500000e-6", 1712345678901234500),
        ("1712345678901234.50050000000000000000000001", 1712345678901234501),
        ("1.712345678901234500000000000000000E+15", 1712345678901234500),
        ("17123456789012345678901234567890e-16", 1712345678901234568),
        ("0." + "0" * 60 + "1", 0),
        ("0.0005", 0),
        ("0.00050000000000000000000000000000000000001", 1),
        ("0.0015", 2),
        ('"1712345678901234.500000"', 1712345678901234500),
        ("5E0", 5000),
        ("500000000000000000000000000e-23", 5_000_000),
    ],
)
def test_numbers_as_json_allows_them(tmp_path: Path, text: str, ns: int) -> None:
    assert _read_times(tmp_path / "trace.json", text, text) == (ns, ns)
    assert to_ns(Decimal(text.strip('"'))) == ns


def test_whole_numbers_written_as_floats(tmp_path: Path) -> None:
    """Tools that read a trace as a table write each number as a float."""
    path = tmp_path / "trace.json"
    call = '{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":7.0,"tid":1e2,"ts":1.0,"dur":2.0,"args":%s}'
    work = '{"ph":"X","cat":"kernel","name":"k","pid":0.0,"tid":7.0,"ts":5.000000000000000000000,"dur":9.0,"args":%s}'
    args = '{"correlation": 12.0000000000000000000000, "device": 0.0, "stream": 70e-1, "blocks per SM": 1.25e-30}'
    path.write_text(_of([call % args, work % args]))
    trace = read_trace(path)
    assert trace.kernels["launch"].tolist() == [0]
    assert trace.kernels["stream"].tolist() == [7]
    assert trace.kernels["blocks_per_sm"].tolist() == [1.25e-30]
    assert (trace.threads["pid"].tolist(), trace.threads["tid"].tolist()) == (["7"], ["100"])


_IDS = '"External id": 5'


@pytest.mark.parametrize(
    "args",
    [
        '{"Ex"tra": 1, %s}',
        r'{"C:\path\x": 1, %s}',
        '{"a\nb": 1, %s}',
        '{"a\x01b": 1, %s}',
        r'{"\users": 1, %s}',
        '{"Concrete Inputs": [foo, bar], %s}',
        '{"a": None, "b": True, %s}',
        '{"a": , %s}',
        '{%s, "a": }',
        "{%s, }",
        '{%s,, "a": 3}',
        '{%s "a": 3}',
        '{"a": (1, 2), %s}',
        '{"a": 0x7f00, %s}',
        '{"a": {"b": {"c": d}}, %s}',
        '{"Process Group Ranks": [0, 1, 2, ...], %s}',
    ],
)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("chunk", [150, 1 << 20])
def test_an_argument_that_is_no_json_costs_neither_the_event_nor_the_trace(
    tmp_path: Path, args: str, chunk: int, *, last: bool
) -> None:
    event = '{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 7, "dur": 5, "args": %s}'
    event = event % (args % _IDS)
    path = tmp_path / "trace.json"
    path.write_text(_of([_OP, event] if last else [_OP, event, _OP, _OP]), newline="")
    raw = read_raw(path, chunk=chunk)
    ops = raw.columns["op"]
    at = [raw.names[code] for code in ops["name"]].index("a")
    assert (ops["ts"][at] + raw.base_ns, ops["dur"][at]) == (7_000, 5_000)
    assert ops["external_id"][at] == (5 if '%s "a"' not in args else MISSING)
    assert len(ops["ts"]) == (2 if last else 4)
    assert note("parts_left_out", events=1) in raw.notes


def test_the_rest_of_a_file_is_read_again_only_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(text: bytes) -> bool:
        read.append(len(text))
        return _is_json(text)

    monkeypatch.setattr("steptrace.trace.salvage._is_json", counted)
    event = b'{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 7, "args": {"b"ad": 1, "a": [{}]}}'
    further = b', "more": [{}]' * 1_000
    assert salvage_events(event + b"]" + further + b"}", whole=True)[1] == 1
    read.clear()
    salvage_events(event + b"]" + further + b', "b"ad": 1}', whole=True)
    assert len(read) <= 2 * _MOST_ENDS


def test_bare_words_stay_as_texts(tmp_path: Path) -> None:
    args = '{"Collective name": allreduce, "Process Group Ranks": [0, 1, ...], "Group size": 64, "dtype": Float}'
    kernel = '{"ph":"X","cat":"kernel","name":"ncclDevKernel","pid":0,"tid":7,"ts":20,"dur":9,"args":' + args + "}"
    path = tmp_path / "trace.json"
    path.write_text(_of([_OP, kernel, _OP]))
    (row,) = read_trace(path).collectives.itertuples()
    assert (row.name, row.group_ranks, row.group_size, row.dtype) == ("all_reduce", "[0, 1, ...]", 64, "Float")


@pytest.mark.parametrize("between", ["", "\n", ",,", ", ,"])
def test_events_without_one_comma_between_them(tmp_path: Path, between: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [' + between.join([_OP] * 4) + "]}")
    assert len(read_raw(path).columns["op"]["ts"]) == 4


@pytest.mark.parametrize("where", ['{"C:\\users": 1, "a": 2, %s}', '{"a": 2, %s, "b\\q": 1}', '{"a": 2, %s, "x": y}'])
def test_metadata_that_is_no_json_costs_that_alone(tmp_path: Path, where: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(where % f'"traceEvents": [{_OP}]')
    raw = read_raw(path)
    assert (raw.metadata["a"], len(raw.columns["op"]["ts"])) == (2, 1)
    assert note("parts_left_out", events=1) in raw.notes


@pytest.mark.parametrize(
    ("written", "name"),
    [(r"a\ud800b", "a\ufffdb"), (r"\udc80.py(1): f", "\ufffd.py(1): f"), (r"\ud83d\ude00", "\U0001f600")],
)
def test_halves_of_characters(tmp_path: Path, written: str, name: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(_of([_OP, _OP.replace("aten::mm", written)]))
    raw = read_raw(path)
    assert name in raw.names
