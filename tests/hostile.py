"""Traces as a stranger could write them: each breaks one assumption. `CASES` is the corpus, by what is odd."""

import json
from typing import Any

BASE: dict[str, Any] = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
KERNEL: dict[str, Any] = BASE | {"cat": "kernel", "args": {"correlation": 1, "device": 0, "stream": 7}}
CALL: dict[str, Any] = BASE | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": 1}}


def events(*given: dict[str, Any], **metadata: Any) -> bytes:
    """A trace of these events after `BASE`."""
    return json.dumps({**metadata, "traceEvents": [BASE, *given]}).encode()


def _step(name: str) -> dict[str, Any]:
    return BASE | {"cat": "user_annotation", "name": name, "dur": 5}


def _frame(name: str) -> list[dict[str, Any]]:
    """A wait inside a frame of that name: somebody looks for the frame's source line."""
    frame = BASE | {"cat": "python_function", "name": name, "ts": 0.5, "dur": 9, "args": {"Python id": 1}}
    return [frame, CALL | {"name": "cudaDeviceSynchronize", "ts": 2, "dur": 3}, KERNEL | {"ts": 2, "dur": 2}]


def _with(key: str, value: bytes) -> bytes:
    """A trace whose second event has `value`, as text, under a key."""
    event = json.dumps({k: v for k, v in KERNEL.items() if k != key})[:-1].encode()
    return (
        b'{"traceEvents": [' + json.dumps(BASE).encode() + b", " + event + b', "%b": ' % key.encode() + value + b"}]}"
    )


_DEEP = b"[" * 1000 + b"]" * 1000
_DEEPER = b"[" * 100_000 + b"]" * 100_000  # a thousand levels are read from Python 3.12 on
_ZERO = [kind | {"dur": 0, "ts": ts} for ts in (1, 5) for kind in (BASE, KERNEL, CALL)]

CASES: dict[str, bytes] = {
    "all lengths 0": json.dumps({"traceEvents": _ZERO}).encode(),
    "all lengths and times 0": json.dumps({"traceEvents": [e | {"ts": 0} for e in _ZERO]}).encode(),
    "lengths 0 in a step": json.dumps({"traceEvents": [*_ZERO, _step("ProfilerStep#1") | {"dur": 0}]}).encode(),
    "args nested 1,000 deep": _with("args", b'{"grid": ' + _DEEP + b"}"),
    "args nested 100,000 deep": _with("args", b'{"grid": ' + _DEEPER + b"}"),
    "a key nobody needs nested 1,000 deep": _with("odd", _DEEP),
    "a key nobody needs nested 900 deep": _with("odd", b"[" * 900 + b"]" * 900),
    "types nested 950 deep": _with("args", b'{"Input type": ' + b"[" * 950 + b"]" * 950 + b"}"),
    "metadata nested 1,000 deep": b'{"odd": ' + _DEEP + b', "traceEvents": [' + json.dumps(BASE).encode() + b"]}",
    "tail nested 1,000 deep": b'{"traceEvents": [' + json.dumps(BASE).encode() + b'], "odd": ' + _DEEP + b"}",
    "tail nested 100,000 deep": b'{"traceEvents": [' + json.dumps(BASE).encode() + b'], "odd": ' + _DEEPER + b"}",
    **{
        f"{k} of {v:.0e}": events(KERNEL | {k: v}) for k, v in (("pid", 1 << 63), ("tid", -(1 << 70)), ("tid", 10**300))
    },
    "rank of 2^63": events(KERNEL, distributedInfo={"rank": 1 << 63, "world_size": 1 << 64, "backend": "\x1b[2J"}),
    "base time of 2^63": events(KERNEL, baseTimeNanoseconds=1 << 63),
    "multiprocessors of 2^70": events(KERNEL, deviceProperties=[{"id": 0, "numSms": 1 << 70, "name": ["x"]}]),
    "times near 9e15": events(KERNEL | {"ts": 9e15}, CALL | {"ts": 9.2e15, "dur": 9e15}),
    "all times near 9e15": json.dumps({"traceEvents": [BASE | {"ts": 9e15}, CALL | {"ts": 9e15 + 8}]}).encode(),
    "times of 1e300": events(KERNEL | {"ts": 1e300}, CALL | {"dur": -1e300}),
    "times of an endless exponent": _with("ts", b"1e99999999"),
    "times without end, as text": _with("ts", b'"Infinity"'),
    "a copy at 0 and calls at 1.7e15": events(
        *(CALL | {"ts": 1.7e15 + k} for k in range(4)), CALL | {"ts": 1e16}, KERNEL | {"cat": "gpu_memcpy", "ts": 0}
    ),
    "a step of 1e15 without time": events(
        {k: v for k, v in (_step("ProfilerStep#1") | {"dur": 1e15}).items() if k != "ts"},
        _step("gloo:all_reduce") | {"dur": 9e14},
        KERNEL,
    ),
    "a thousand lengths of a day": events(*[KERNEL | {"dur": 8.64e10, "tid": k} for k in range(1000)]),
    "a frame with a NUL byte": events(*_frame("/tmp/a\0b.py(2): f")),
    **{f"a frame's line of {n} digits": events(*_frame(f"/a.py({'9' * n}): f")) for n in (30, 5000)},
    **{f"a step of {n} digits": events(_step(f"ProfilerStep#{'9' * n}"), KERNEL) for n in (30, 5000)},
    "an id of 5,000 digits": _with("pid", b"9" * 5000),
    "sizes beyond all memory": events(
        *(KERNEL | {"cat": "gpu_memcpy", "args": {"bytes": (1 << 63) - 1, "device": 1 << 62}} for _ in range(4))
    ),
    "allocations without size, or of 2^62": events(
        *(
            BASE | {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "args": args}
            for args in ({"Addr": 1}, {"Bytes": 1 << 62, "Addr": 2}, {"Bytes": 1 << 62, "Total Allocated": -5})
        )
    ),
    "a grid without end": events(KERNEL | {"args": {"grid": [10**200] * 3, "blocks per SM": 10**400}}),
    "arguments of every type": events(
        *(KERNEL | {"args": dict.fromkeys(KERNEL["args"], value)} for value in ("x" * 9, [1], {}, None, 1.5, True))
    ),
    "names that command a terminal": events(KERNEL | {"name": "\x1b]0;x\x07\0"}, KERNEL | {"name": "\x1b]0;x\x07\1"}),
    "a name of a million characters": events(KERNEL | {"name": "a" * 1_000_000}),
    "hundreds of categories": events(*(BASE | {"cat": f"cat{k}"} for k in range(300))),
    "the key of the events in the metadata": b'{"a": [%b], "traceEvents": [%b]}'
    % (b",".join([b'{"traceEvents": 1}'] * 20_000), json.dumps(BASE).encode()),
    "escaped quotation marks without end": b'{"a": "' + b'\\"' * 200_000,
}
