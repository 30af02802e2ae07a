"""`queues`, `copies`: what waited in front of each stream, and how fast copies moved bytes."""

from typing import Any

import pandas as pd

from steptrace.metrics import copies, queues
from steptrace.summary.analysis import Analysis, records


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """The series `queue_lengths` and `copy_rates`, and what they come to: `queues` and `copies`."""
    lengths, rates = queues.queue_lengths(analysis.trace), copies.copy_rates(analysis.trace)
    return {
        "queue_lengths": lengths,
        "queues": queues.queues(analysis.trace, lengths),
        "copy_rates": rates,
        "copies": copies.copies(analysis.trace, rates),
    }


def record(analysis: Analysis) -> dict[str, Any]:
    """Each stream's queue and each kind of copy; empty without a GPU."""
    return {name: records(analysis.tables[name]) for name in ("queues", "copies")}
