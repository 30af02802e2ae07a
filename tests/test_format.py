import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptrace import format as fmt

UNITS = {"s": 1e9, "ms": 1e6, "µs": 1e3, "ns": 1.0}
nanoseconds = st.integers(min_value=0, max_value=10**15)
positive = st.floats(min_value=1e-6, max_value=1e9, allow_nan=False)


def in_ns(text: str) -> float:
    number, unit = text.split(" ")
    return float(number) * UNITS[unit]


@given(nanoseconds, nanoseconds)
def test_a_duration_reads_back_within_its_three_digits_and_a_longer_one_never_shorter(a: int, b: int) -> None:
    for ns in (a, b):
        assert in_ns(fmt.duration_ns(ns)) == pytest.approx(ns, rel=0.005)
    low, high = sorted((a, b))
    assert in_ns(fmt.duration_ns(low)) <= in_ns(fmt.duration_ns(high))


@given(st.integers(min_value=1, max_value=10**12))
def test_a_duration_stands_between_1_and_1000_of_its_unit(ns: int) -> None:
    number, unit = fmt.duration_ns(ns).split(" ")
    assert 1 <= float(number) < 1000 or unit == "s"
    assert "e" not in number


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (7, "7.00 ns"), (999_950, "1.00 ms"), (1_234_567, "1.23 ms"), (2_000_000_000, "2.00 s")],
)
def test_durations_as_a_page_says_them(ns: int, text: str) -> None:
    assert fmt.duration_ns(ns) == text


@given(
    st.floats(min_value=0.01, max_value=50),
    st.floats(min_value=0, max_value=0.5),
    st.floats(min_value=0, max_value=0.5),
)
def test_an_interval_of_ratios_keeps_its_order_and_the_digits_of_its_width(
    value: float, below: float, above: float
) -> None:
    low, high = value * (1 - below), value * (1 + above)
    middle = fmt.ratio(value, low, high).removesuffix("×")
    first, last = fmt.ratio_interval(low, high).split(" to ")
    assert float(first) <= float(middle) <= float(last)
    of_first, of_middle, of_last = (len(text.partition(".")[2]) for text in (first, middle, last))
    of_width = fmt.decimals_for_width(high - low, most=2)
    if of_width == 2:
        assert of_first == of_middle == of_last
    else:  # the end that hides what it excludes has more digits, and the ratio where it would be outside
        assert of_width <= of_middle <= max(of_first, of_last)
        assert of_last == of_width or round(high, of_last - 1) == 1
        assert of_first == of_width or round(low, of_first - 1) in (0, 1)


@given(positive, positive)
def test_rounding_moves_the_end_of_an_interval_by_a_small_part_of_its_width(width: float, end: float) -> None:
    rounded = float(f"{end:.{fmt.decimals_for_width(width)}f}")
    if width < 1e5:  # beyond, whole numbers are shown, more exact than needed
        assert abs(rounded - end) <= 0.25 * width + 1e-6


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (12.3712, 12.31, 12.62, ("12.4 ms", "12.3 to 12.6 ms")),
        (0.0123, 0.0121, 0.0127, ("12.3 µs", "12.1 to 12.7 µs")),
        (1302.0, 1289.0, 1333.0, ("1.30 s", "1.29 to 1.33 s")),
        (1.0784, 0.14386, 8.084, ("1.08 ms", "0.144 to 8.08 ms")),  # three digits each, never "0 ms"
        (10.0011, 9.99871, 10.0032, ("10.001 ms", "9.999 to 10.003 ms")),
        (3.2, 0.0000254, 419628.0, ("3.20 ms", "too noisy to compare")),
        (12.3712, None, None, ("12.37 ms", None)),  # of one run
        (None, None, None, (fmt.NOT_MEASURED, None)),
    ],
)
def test_a_step_time_and_its_interval_share_one_unit(
    value: float | None, low: float | None, high: float | None, expected: tuple[str, str | None]
) -> None:
    assert fmt.step_time(value, low, high) == expected


@pytest.mark.parametrize(
    "function",
    [
        fmt.duration_ns, fmt.duration_ms, fmt.ratio, fmt.percent, fmt.share, fmt.setting, fmt.count,
        fmt.size_bytes, fmt.relative_error,
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [None, math.nan])
def test_null_reads_not_measured(function: Callable[[object], str], value: float | None) -> None:
    assert function(value) == fmt.NOT_MEASURED


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(None, None, fmt.NOT_MEASURED), (0.00001, 201692.81, "too noisy to compare"), (0.1, 9.0, "0.1 to 9")],
)
def test_an_interval_that_says_nothing_is_called_so(low: float | None, high: float | None, text: str) -> None:
    assert fmt.ratio_interval(low, high) == text


@pytest.mark.parametrize(
    ("value", "low", "high", "texts"),
    [
        (1.1024, 1.1016, 1.1031, ("1.10×", "1.10 to 1.10")),
        (21.27, 19.34, 23.40, ("21×", "19 to 23")),
        (3.4, 2.4, 4.6, ("3.4×", "2.4 to 4.6")),
        (1.0152, 1.0042, 1.0263, ("1.015×", "1.004 to 1.026")),  # it excludes 1, and says so
        (1.0015, 1.0009, 1.0022, ("1.002×", "1.001 to 1.002")),
        (1.332, 1.005, 1.765, ("1.3×", "1.005 to 1.8")),  # wide: only the end beside 1 has more digits
        (1.02, 1.005, 1.765, ("1.02×", "1.005 to 1.8")),  # 1.0 would be outside
        (0.97, 0.3, 0.996, ("0.97×", "0.3 to 0.996")),
        (0.4, 0.04, 3.0, ("0.4×", "0.04 to 3.0")),
        (1.18, None, None, ("1.18×", fmt.NOT_MEASURED)),
    ],
)
def test_a_ratio_has_the_digits_that_its_interval_supports(
    value: float, low: float | None, high: float | None, texts: tuple[str, str]
) -> None:
    assert (fmt.ratio(value, low, high), fmt.ratio_interval(low, high)) == texts


def test_an_interval_whose_ends_read_the_same_is_narrow() -> None:
    assert fmt.is_narrow(1.1016, 1.1031)
    assert not fmt.is_narrow(1.0009, 1.0022)  # it excludes 1, and says so
    assert not fmt.is_narrow(1.1, 1.2)


@given(st.floats(min_value=-1e-9, max_value=0))
def test_zero_carries_no_sign(value: float) -> None:
    for text in (fmt.percent(value), fmt.ratio(value)):
        assert not text.startswith("-")


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (fmt.count, 6.0, "6"),
        (fmt.count, 5.6667, "5.67"),
        (fmt.count, 0.004, "0.004"),
        (fmt.count, 12345, "12,345"),
        (fmt.count, 2282.5, "2,282"),
        (fmt.count, 120.25, "120.2"),
        (fmt.relative_error, 1.234e-7, "1.2e-07"),
        (fmt.relative_error, 0.0, "0"),
        (fmt.relative_error, math.inf, "infinite"),
        (fmt.size_bytes, 21_400_000_000, "19.9 GiB"),
        (fmt.setting, 0.0125, "1.25 %"),
        (fmt.enumeration, ["a", "b", "c"], "a, b and c"),
        (fmt.signed_ns, 0, "0"),
        (fmt.signed_ns, 1.2e6, "+1.20 ms"),
        (fmt.signed_ns, -0.31e6, "−310 µs"),
        (fmt.duration, 3.6e3, "3.6 µs"),  # in a sentence, without needless zeros
        (fmt.duration, 2e5, "200 µs"),
        (fmt.duration, 1.5e9, "1.5 s"),
        (fmt.duration, 42, "42 ns"),
        (fmt.percent, 0.0, "0 %"),
        (fmt.percent, 0.01, "under 0.1 %"),
        (fmt.share, 0.0, "0 %"),
        (fmt.share, 0.9978, "99.8 %"),  # beside idle time of 0.2 %
        (fmt.share, 0.9996, "over 99.9 %"),
        (fmt.share, 0.994, "99 %"),
        (fmt.share, 1.0, "100 %"),
        (fmt.percent, -12.0, "−12 %"),
        (fmt.duration_ns, -235e3, "−235 µs"),
    ],
)
def test_figures_as_a_page_says_them(function: Callable[[object], str], value: object, text: str) -> None:
    assert function(value) == text


@pytest.mark.parametrize(("low", "high", "text"), [(11.6, 34.2, "12 to 34 %"), (97.6, 98.4, "98 %")])
def test_a_band_of_shares_is_one_figure_where_its_ends_look_alike(low: float, high: float, text: str) -> None:
    assert fmt.band_percent(low, high) == text


def test_a_clipped_name_keeps_both_of_its_ends() -> None:
    assert fmt.clipped("short", 5) == "short"
    assert fmt.clipped("<class 'one.very.long.module.Name'>", 20) == "<class 'on…le.Name'>"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1, "1 kernel"),
        (1.001, "1 kernel"),
        (1429.0, "1,429 kernels"),
        (1_332_060.0, "1,332,060 kernels"),
        (0.5, "0.5 kernels"),
    ],
)
def test_a_number_with_its_noun_is_written_as_a_count(number: float, text: str) -> None:
    assert fmt.plural(number, "kernel") == text


@pytest.mark.parametrize(
    ("seconds", "rough", "in_tens"),
    [
        (12.4, "12 s", "12 s"),
        (60, "1 min", "1 min"),
        (109, "2 min", "1 min 50 s"),
        (119, "2 min", "2 min"),
        (594, "10 min", "9 min 50 s"),
        (597, "10 min", "10 min"),
        (3900, "1 h 5 min", "1 h 5 min"),
    ],
)
def test_a_time_to_wait_is_rough(seconds: float, rough: str, in_tens: str) -> None:
    assert fmt.rough_duration(seconds) == rough
    assert fmt.rough_duration(seconds, in_tens=True) == in_tens


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("padding", "padding"),
        ("loop__batch-64", "loop (batch=64)"),
        ("loop__data.batch_size-64__precision-bf16", "loop (data.batch_size=64, precision=bf16)"),
        ("loop__lr-1e-05", "loop (lr=1e-05)"),
        ("loop__lr--1", "loop (lr=-1)"),
        ("two__words", "two__words"),  # no cell of a matrix: a person's name
        ("__batch-64", "__batch-64"),
        ("python train.py --name run__lr-1", "python train.py --name run__lr-1"),  # a command
    ],
)
def test_a_variant_of_a_matrix_is_shown_by_its_values(name, shown):
    assert fmt.variant(name) == shown
