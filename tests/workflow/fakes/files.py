"""Stands in for steptrace.engine.files: a run's files without its tables, since pandas takes a second to import."""

import json
from pathlib import Path

import pace

RUN = Path(pace.__file__).with_name("run.json")


def trace_fault(_trace):
    return None


def write_files(_ranks, _left, run_dir, labels, **_more):
    (run_dir / "run.json").write_text(json.dumps({**json.loads(RUN.read_text()), "repeat": labels["repeat"]}))
