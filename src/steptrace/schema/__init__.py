"""Every table that steptrace writes or passes on, declared once.

A column has a name, a dtype, a unit, whether it may be null, and one sentence on what it means. Names ending in `_ns`
are int64 nanoseconds. `frame_of` makes a DataFrame of a table, `validate` checks one against its declaration. The
tables are grouped by origin: `run`, `trace`, and one module for each group of metrics.
"""

from steptrace.schema.run import INPUT_OF_RUN, OP_LINES, SECTIONS_OF_RUN, STEPS_OF_RUN
from steptrace.schema.table import (
    Column,
    Table,
    check_table_version,
    frame_of,
    is_versioned,
    read_table,
    validate,
    with_version,
    write_table,
)
from steptrace.schema.trace import TABLES
