"""Makes the tables of `steptrace.trace.rows` from sorted and linked columns, and reads a trace's metadata.

PyTorch describes a collective on its kernel, or (older and AMD traces) on the `record_param_comms` operator around its
launch. Without a description, the names of operator and kernel give the kind of collective.

A sync is a host operation that returns only once queued GPU work is complete: a waiting call, a copy to pageable host
memory, or a synchronous copy. A copy followed directly on its thread by a stream sync is one sync with it. A
synchronous copy counts if its GPU record or its argument `kind` (AMD's traces: 1 to the device, 2 to the host) gives a
copy between host and device, or if it has no record. Waits of one stream for another, queries, records and
device-to-device copies are not syncs.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from steptrace.documents.base import columns_of
from steptrace.documents.quality import OptimizerSteps, StepSource
from steptrace.documents.table import names_of
from steptrace.intervals import Ints
from steptrace.trace import names as naming
from steptrace.trace.columns import (
    Columns,
    Mask,
    by_name,
    map_names,
    nearest,
    optional,
    references,
    row_numbers,
    take,
    text,
)
from steptrace.trace.decode import LATEST_NS, MISSING, MOST, CollectiveArgs, integer, plain_values, within
from steptrace.trace.model import TraceMeta
from steptrace.trace.read import RawTrace
from steptrace.trace.records import Records
from steptrace.trace.rows import TABLES

_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,9})(?!\d)", re.IGNORECASE)
_PIN_THREAD = re.compile(r"pt_data_pin|pin_memory", re.IGNORECASE)


def threads_table(raw: RawTrace, keys: list[tuple[Any, Any]], training: Mask) -> pd.DataFrame:
    """The threads, in their fixed order; a thread that pins memory never counts as training."""
    thread_names = [raw.thread_names.get(key) for key in keys]
    pinning = np.array([bool(name and _PIN_THREAD.search(name)) for name in thread_names], dtype=bool)
    return pd.DataFrame(
        {
            "pid": pd.Series([str(pid) for pid, _ in keys], dtype=object),
            "tid": pd.Series([str(tid) for _, tid in keys], dtype=object),
            "name": pd.Series(thread_names, dtype=object),
            "training": training & ~pinning,
        }
    )


def host_table(table: str, rows: Columns, names: pd.Index, **links: Any) -> pd.DataFrame:
    """A table of a kind of host event: its own columns under the declared names, plus the links.

    Arrays of columns that may be null hold `MISSING` for null.
    """
    columns = {**rows, "name": text(rows["name"], names), **links}
    for column in columns_of(TABLES[table]):
        if column.nullable and isinstance(columns[column.name], np.ndarray):
            columns[column.name] = optional(columns[column.name])
    # Not copied: two copies of all columns would be the peak of memory.
    return pd.DataFrame({name: columns[name] for name in names_of(TABLES[table])}, copy=False)


def launches_table(calls: Columns, names: pd.Index, op: Ints, step: Ints) -> pd.DataFrame:
    """The calls into the runtime under their plain names, with their links."""
    plain = pd.Index(list(dict.fromkeys(naming.call_name(name) for name in names)), dtype=object)
    codes = plain.get_indexer(pd.Index([naming.call_name(name) for name in names], dtype=object))
    return host_table(
        "launches",
        {**calls, "name": codes[calls["name"]] if len(codes) else calls["name"]},
        plain,
        op=references(op),
        step=references(step),
    )


def _blocks_per_sm(gpu: Columns, meta: TraceMeta) -> Any:
    """Blocks per multiprocessor as recorded, or else from the launch grid and the GPU's number of them."""
    recorded = gpu["blocks_per_sm"].astype(np.float64)
    device = gpu["device"]
    for index in np.unique(device):
        if count := meta.multiprocessors(int(index)):
            here = np.isnan(recorded) & (device == index)
            recorded[here] = gpu["blocks"][here] / count
    return recorded


def kernels_table(gpu: Columns, names: pd.Index, launch: Ints, step: Ints, meta: TraceMeta) -> pd.DataFrame:
    """The GPU activities with their kinds and links."""
    kinds = pd.Index(["compute", "comm", "memory"], dtype=object)
    is_kernel = names.to_numpy()[gpu["category"]] == "kernel" if len(gpu["ts"]) else np.empty(0, dtype=bool)
    is_comm = by_name(gpu["name"], names, naming.is_collective_kernel) | (gpu["collective"] >= 0) | gpu["is_collective"]
    return pd.DataFrame(
        {
            "ts": gpu["ts"],
            "dur": gpu["dur"],
            "device": gpu["device"],
            "stream": gpu["stream"],
            "name": text(gpu["name"], names),
            "category": text(gpu["category"], names),
            "kind": text(np.where(is_kernel, is_comm, 2), kinds),
            "correlation": optional(gpu["correlation"]),
            "launch": references(launch),
            "step": references(step),
            "bytes": optional(gpu["bytes"]),
            "blocks_per_sm": _blocks_per_sm(gpu, meta),
            "annotation": text(gpu["annotation"], names),
        },
        copy=False,
    )


def memory_table(rows: Columns) -> pd.DataFrame:
    """The allocations and releases in order of time, at one instant in the file's order."""
    order = np.argsort(rows["ts"], kind="stable")
    c = {name: values[order] for name, values in rows.items()}
    device = np.where(c["device_id"] < 0, MISSING, c["device_id"])
    return pd.DataFrame(
        {
            "ts": c["ts"],
            "thread": c["thread"],
            "device_type": c["device_type"],
            "device": optional(device),
            "address": optional(c["address"]),
            "bytes": c["size"],
            "allocated": optional(c["allocated"]),
            "reserved": optional(c["reserved"]),
        },
        copy=False,
    )


def _whole(value: Any, least: int) -> int | None:
    """A rank or a number of ranks, which some tools write as a text."""
    return within(integer(value) if isinstance(value, str) else value, least, MOST)


def meta_and_rank(
    raw: RawTrace, records: Records, steps_from: StepSource | None, optimizer_steps: OptimizerSteps | None
) -> tuple[TraceMeta, int | None]:
    """The trace's metadata, and its rank if the trace or its file name gives one; `records` are those of the GPU."""
    job = raw.metadata.get("distributedInfo")
    job = job if isinstance(job, dict) else {}
    rank = _whole(job.get("rank"), 0)
    if rank is None:
        match = _RANK_IN_NAME.search(raw.path.name)
        rank = int(match[1]) if match else None
    devices = raw.metadata.get("deviceProperties")
    base = within(raw.metadata.get("baseTimeNanoseconds"), 0, LATEST_NS)
    meta = TraceMeta(
        path=raw.path,
        # Without an own base the times are either epoch times already, or from an unknown start.
        base_ns=raw.base_ns + base if base is not None else raw.base_ns if raw.base_ns > 10**18 else None,
        world_size=_whole(job.get("world_size"), 1),
        devices=tuple(plain_values(d) for d in devices if isinstance(d, dict)) if isinstance(devices, list) else (),
        notes=tuple(raw.notes),
        file_base_ns=raw.base_ns,
        records=records,
        runtimes=raw.runtimes,
        steps_from=steps_from,
        optimizer_steps=optimizer_steps,
    )
    return meta, rank


_UNKNOWN = CollectiveArgs(*[None] * len(CollectiveArgs._fields))


def collectives_table(
    described: list[CollectiveArgs],
    kernels: pd.DataFrame,
    known_rows: Ints,
    ops: Columns,
    op_of: tuple[Ints, pd.Index],
    launches: pd.DataFrame,
) -> pd.DataFrame:
    """The `collectives` table: one row per GPU activity of kind `comm`.

    Args:
        described: the descriptions in the trace.
        kernels: the `kernels` table.
        known_rows: for each kernel the index of its own description in `described`, -1 for none.
        ops: the operators' columns, `collective` (as `known_rows`), `name` and `parent` among them.
        op_of: for each launch the row of its operator, -1 for none; and the text of each operator name's number.
        launches: the `launches` table.
    """
    rows = np.flatnonzero((kernels["kind"] == "comm").to_numpy())
    launch_op, names = op_of
    launch = row_numbers(kernels["launch"])[rows]
    op = take(launch_op, launch)
    around = _inherited(op, ops["parent"], ops["collective"] >= 0, ops["collective"])
    is_call = by_name(
        ops["name"], names, lambda n: naming.is_collective_op(n) and naming.collective_name(n) is not None
    )
    call = _inherited(op, ops["parent"], is_call, ops["name"])
    exact = known_rows[rows]
    place = np.where(exact >= 0, exact, around)
    kernel_names = kernels["name"].to_numpy(dtype=object)[rows]
    args_of = [described[i] if i >= 0 else _UNKNOWN for i in place]
    exchanges = by_name(kernels["name"].cat.codes.to_numpy()[rows], kernels["name"].cat.categories, _is_exchange)
    for number, batch in _batches(described, launch, exchanges & (place < 0), ops, launches):
        args_of[number] = batch
    values: dict[str, list[Any]] = {name: [getattr(args, name) for args in args_of] for name in CollectiveArgs._fields}
    values["name"] = [
        _name(args.name, names[c] if c >= 0 else None, str(kernel))
        for args, c, kernel in zip(args_of, call, kernel_names, strict=True)
    ]
    kinds: dict[str, Any] = {"string": object, "int64": "Int64"}
    columns = {
        column.name: pd.array(values[column.name], dtype=kinds[column.dtype])
        for column in columns_of(TABLES["collectives"])
        if column.name != "kernel"
    }
    return pd.DataFrame({"kernel": rows.astype(np.int64), **columns})


def _is_exchange(name: str) -> bool:
    """Whether a kernel by its name sends and receives, as batches do."""
    return naming.collective_name(name) == "send_recv"


def _batches(
    described: list[CollectiveArgs], launch: Ints, wanted: Mask, ops: Columns, launches: pd.DataFrame
) -> Iterator[tuple[int, CollectiveArgs]]:
    """The descriptions of batches of sends and receives (`batch_isend_irecv`), which PyTorch does not write.

    PyTorch describes each part on an operator of its own, and launches the batch's kernel after the last of them on the
    same thread. So the parts of a batch are those since the thread's last kernel of a collective.

    Args:
        described: the descriptions in the trace.
        launch: for each kernel of a collective the row of its launch, -1 for none.
        wanted: which of them may be batches.
        ops: the operators' columns.
        launches: the `launches` table.

    Returns:
        Positions among the kernels, and descriptions.
    """
    if not wanted.any():
        return
    parts = np.flatnonzero(ops["collective"] >= 0)
    is_part = np.array([_part_name(args) is not None for args in described], dtype=bool)
    parts = parts[is_part[ops["collective"][parts]]]
    parts = parts[np.lexsort((ops["ts"][parts], ops["thread"][parts]))]
    ts = launches["ts"].to_numpy()
    thread = launches["thread"].to_numpy()
    order = np.flatnonzero(launch >= 0)
    order = order[np.lexsort((ts[launch[order]], thread[launch[order]]))]
    place = 0
    for number in order.tolist():
        row = launch[number]
        batch: list[CollectiveArgs] = []
        while place < len(parts):
            part = parts[place]
            if (ops["thread"][part], ops["ts"][part]) > (thread[row], ts[row]):
                break
            if ops["thread"][part] == thread[row] and ops["end"][part] <= ts[row]:
                batch.append(described[ops["collective"][part]])
            place += 1
        if wanted[number] and batch:
            yield number, _batch(batch)


def _part_name(args: CollectiveArgs) -> str | None:
    """`send` or `recv`; None for another collective."""
    name = None if args.name is None else naming.collective_name(args.name)
    return name if name in ("send", "recv") else None


def _batch(parts: list[CollectiveArgs]) -> CollectiveArgs:
    """One description for the parts of a batch."""
    receives = [part for part in parts if _part_name(part) == "recv"]
    sends = [part for part in parts if _part_name(part) == "send"]
    sources = [part.from_rank for part in receives]
    return parts[0]._replace(
        name="batch_isend_irecv" if sends and receives else "recv" if receives else "send",
        in_elements=_sum(part.in_elements for part in sends),
        out_elements=_sum(part.out_elements for part in receives),
        from_rank=sources[0] if len(sources) == 1 else None,
        from_ranks=",".join(map(str, sources)) if sources and None not in sources else None,
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _name(*texts: str | None) -> str | None:
    return next((name for text in texts if text and (name := naming.collective_name(text))), None)


def _inherited(op: Ints, parent: Ints, wanted: Mask, values: Ints) -> Ints:
    """The value of each operator itself, or of its nearest wanted ancestor; -1 for none."""
    return take(values, take(nearest(parent, wanted), op))


#: `hipMemcpyHostToDevice` and `hipMemcpyDeviceToHost`, as in CUDA.
_ACROSS = (1, 2)


def find_syncs(
    launches: pd.DataFrame, copy_kinds: Ints, kernels: pd.DataFrame, steps: pd.DataFrame, threads: pd.DataFrame
) -> pd.DataFrame:
    """The `syncs` table of a trace, in order of time; `launches` must be in order of thread and time.

    `copy_kinds` is the argument `kind` of each launch.
    """
    direction, to_pageable = _copies(launches, kernels)
    name = launches["name"]
    waits = map_names(name, lambda call: naming.wait_scope(call) is not None)
    stream_waits = map_names(name, lambda call: naming.wait_scope(call) == "stream")
    queued_copy = map_names(name, naming.is_async_copy)
    across = (direction == "HtoD") | (direction == "DtoH")

    thread = launches["thread"].to_numpy()
    follows = np.zeros(len(launches), dtype=bool)  # whether the next call waits for the stream, on the same thread
    follows[:-1] = stream_waits[1:] & (thread[1:] == thread[:-1])
    merged = queued_copy & across & follows
    absorbed = np.zeros(len(launches), dtype=bool)
    absorbed[1:] = merged[:-1]

    copies = merged | (queued_copy & to_pageable)
    sync_copies = map_names(name, naming.is_sync_copy) & (across | (direction == "") | np.isin(copy_kinds, _ACROSS))
    start = launches["ts"].to_numpy()
    first = np.flatnonzero(copies | sync_copies | (waits & ~absorbed))
    first = first[np.argsort(start[first], kind="stable")]
    last = first + merged[first]

    length = launches["dur"].to_numpy()
    by_direction = np.where(direction[first] == "DtoH", "d2h_copy", "h2d_copy")
    kind = np.where(copies[first], by_direction, launches["name"].to_numpy(dtype=object)[first])
    step = row_numbers(launches["step"])[first]
    return pd.DataFrame(
        {
            "ts": start[first],
            "dur": start[last] + length[last] - start[first],
            "thread": thread[first],
            "kind": pd.Series(kind, dtype=object),
            "blocked_ns": length[first] + np.where(merged[first], length[last], 0),
            "launch": first.astype(np.int64),
            "op": references(row_numbers(launches["op"])[first]),
            "step": references(step),
            "counted": threads["training"].to_numpy()[thread[first]] & ((step >= 0) | (len(steps) == 0)),
        }
    )


def _copies(launches: pd.DataFrame, kernels: pd.DataFrame) -> tuple[Any, Mask]:
    """For each call the direction of its copy ("" without one), and whether it went to pageable memory."""
    direction = np.full(len(launches), "", dtype=object)
    to_pageable = np.zeros(len(launches), dtype=bool)
    of_calls = (kernels["category"] == "memcpy").to_numpy() & kernels["launch"].notna().to_numpy()
    copies = kernels.loc[of_calls, ["launch", "name"]]
    owner: Ints = copies["launch"].to_numpy(dtype=np.int64)
    recorded = copies["name"].to_numpy(dtype=object)
    direction[owner] = [naming.copy_direction(name) or "?" for name in recorded]
    to_pageable[owner] = [naming.is_pageable_copy(name) for name in recorded]
    return direction, to_pageable
