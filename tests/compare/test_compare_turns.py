"""Runs that did not take turns with the baseline's are told of: the machine may have changed in between."""

from typing import Any

import pytest

from documents import compare

#: When the runs of the baseline and of a variant began, how many minutes each took, and the warning.
CASES = [
    (("10:00", "10:10", "10:20"), ("10:05", "10:15", "10:25"), 4, None),
    (("10:00", "10:10", "10:20"), ("10:05", "10:15", "18:00"), 4, None),  # one run that failed and was repeated
    (("10:00", "10:00", "10:01"), ("10:02", "10:02", "10:03"), 4, None),  # jobs of a cluster, side by side
    (("10:00", "10:01", "10:02"), ("10:04", "10:05", "10:06"), 0.1, "2 min after the baseline's"),  # added soon after
    (("10:00", "10:10", "10:20"), ("10:54", "11:04", "11:14"), 4, "30 min after the baseline's"),
    (("18:00", "18:10", "18:20"), ("10:00", "10:10", "10:20"), 4, "7 h 36 min before the baseline's"),
    (("10:00",), ("18:00",), 4, None),  # no verdict in any case
]


@pytest.mark.parametrize(("base", "other", "minutes", "expected"), CASES)
def test_runs_that_were_not_interleaved_give_a_warning(
    folder: Any, base: tuple[str, ...], other: tuple[str, ...], minutes: float, expected: str | None
) -> None:
    folder.make_study([{"name": "base"}, {"name": "a"}], repeats=len(base))
    for name, times in (("base", base), ("a", other)):
        for repeat, time in enumerate(times):
            began = {"started_at": f"2026-01-01T{time}:00+00:00", "wall_s": 60 * minutes}
            folder.add_run(name, repeat, [10.0, 10.1, 9.9, 10.0], **began)
    first, second = compare(folder.path)["variants"]
    warnings = [warning for warning in second["noise"]["warnings"] if "part of the difference" in warning]
    assert len(warnings) == (expected is not None)
    assert expected is None or expected in warnings[0]
    assert not any("part of the difference" in warning for warning in first["noise"]["warnings"])
