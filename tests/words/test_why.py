"""Why a variant is faster, in words: the largest part leads, with its figures."""

import pytest

from steptrace.documents.answer import Fewer, WhyFaster
from steptrace.documents.why import KernelSaving, Saving, Why
from steptrace.words.why import why_in_words

FEWER = (Fewer(what="kernels", before=9000, now=40), Fewer(what="syncs", before=6, now=0))


def reason(why: Why | None) -> WhyFaster:
    return WhyFaster(name="fast", baseline="base", why=why, fewer=FEWER)


def words(*shorter: tuple[str, float], syncs_ns: float | None = None, saved: float | None = None) -> str:
    parts = tuple(Saving(part, ms * 1e6, ()) for part, ms in shorter)
    return why_in_words(reason(Why(saved or parts[0].ns, parts, (), syncs_ns)))


@pytest.mark.parametrize(
    ("part", "figures"),
    [
        ("compute", ["27.0 ms"]),
        ("idle_host", ["27.0 ms", "40 kernels", "9,000"]),
        ("idle_sync", ["27.0 ms", "0 syncs", "6"]),
        ("idle_loader", ["27.0 ms"]),
        ("exposed_memory", ["27.0 ms"]),
        ("forward", ["27.0 ms"]),
    ],
)
def test_each_part_is_named_with_what_it_saves_and_what_there_is_less_of(part, figures):
    text = words((part, 27.0), ("idle_unknown", 2.0))
    assert all(figure in text for figure in figures)
    assert "2.00 ms" not in text  # the largest part alone


def test_a_part_that_is_not_nearly_all_of_the_difference_has_its_share_and_syncs_that_cost_little_are_said_to():
    text = words(("compute", 20.0), syncs_ns=1e6, saved=40e6)
    assert "50 %" in text
    assert "6 syncs" in text
    assert "1.00 ms" in text
    assert "syncs" not in words(("compute", 20.0), syncs_ns=None)
    assert "%" not in words(("compute", 20.0))


def test_kernels_that_account_for_it_are_named():
    kernels = tuple(KernelSaving(name, ns) for name, ns in (("a", 9e6), ("b", 3e6), ("c", 2e6)))
    text = why_in_words(reason(Why(14e6, (Saving("compute", 14e6, kernels),), (), None)))
    assert ["`a` 9.00 ms" in text, "`b` 3.00 ms" in text, "`c`" in text] == [True, True, False]


def test_without_a_part_that_is_shorter_there_are_no_words():
    assert why_in_words(reason(Why(1e6, (), (), None))) == ""
    assert why_in_words(reason(None)) == ""
