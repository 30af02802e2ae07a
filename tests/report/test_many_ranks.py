"""A page of very many ranks stays small, and shows those that matter by a stated rule."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from findings.jobs import MS, job
from recorded import needs_traces
from steptrace.documents.finding import Source
from steptrace.documents.summary import Summary
from steptrace.findings import with_trace_findings
from steptrace.report.trace.page import MOST_BYTES, page_html
from steptrace.report.trace.sample import MOST_TRACES, sample
from steptrace.report.trace.view import trace_views

STRAGGLER = 137
NAMED = 201


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """Two ranks' analysis as that of 256: one is the straggler, and a finding names another one."""
    of_two = job(Path(tmp_path_factory.mktemp("job")), [[2 * MS, 8 * MS]] * 3)
    assert of_two.ranks is not None
    traces = tuple(
        replace(of_two.traces[rank == STRAGGLER], rank=rank, path=f"job/rank{rank}.json") for rank in range(256)
    )
    (finding, *_) = of_two.ranks.findings
    waits = tuple(replace(of_two.ranks.waits[rank == STRAGGLER], rank=rank) for rank in range(256))
    assert of_two.ranks.straggler is not None
    ranks = replace(of_two.ranks, count=256, waits=waits, straggler=replace(of_two.ranks.straggler, rank=STRAGGLER))
    summary = with_trace_findings(Summary(warnings=(), traces=traces, ranks=ranks))
    assert summary.ranks is not None
    named = replace(finding, source=Source(rank=NAMED), ranks=(NAMED,))
    return replace(summary, ranks=replace(summary.ranks, in_single_ranks=(named,)))


def test_a_sample_holds_the_first_the_straggler_and_what_findings_name(many: Summary) -> None:
    places = sample(trace_views(many), many.ranks)
    assert len(places) == len(set(places)) == MOST_TRACES
    assert {0, STRAGGLER, NAMED, 255} <= set(places)
    assert places[:2] == [STRAGGLER, 0]  # where a page has room for one section, it is the straggler's


@pytest.mark.parametrize("count", [2, MOST_TRACES])
def test_of_few_traces_all_are_shown(many: Summary, count: int) -> None:
    assert sample(trace_views(many)[:count], many.ranks) == list(range(count))


def test_a_page_of_256_ranks_is_small_and_says_what_it_shows(many: Summary) -> None:
    page = page_html("256 ranks", trace_views(many), many.ranks)
    assert len(page) < 400_000
    for rank in (0, STRAGGLER, NAMED):
        assert f"Rank {rank}<" in page
    assert f"{MOST_TRACES} of 256 traces" in page
    ids = {part.split('"')[0] for part in page.split('href="#')[1:]}
    assert all(f'id="{id_}"' in page for id_ in ids if id_.startswith("trace-"))


def test_all_of_a_hundred_ranks_have_a_bar_at_the_top(many: Summary) -> None:
    page = page_html("100 ranks", trace_views(many)[:100], many.ranks)
    picture = page[page.index('class="wide strip"') :].partition("</svg>")[0]
    assert {f"Rank {rank}:" in picture for rank in range(100)} == {True}
    assert len(page) < 400_000


@needs_traces
def test_a_page_of_a_hundred_real_traces_is_small_and_has_a_section_and_all_bars(
    recorded_summary: Callable[[str], Summary],
) -> None:
    two = [recorded_summary(f"two_ranks_{rank}").traces[0] for rank in range(2)]
    traces = tuple(replace(two[rank % 2], rank=rank, path=f"job/rank{rank}.json") for rank in range(100))
    summary = with_trace_findings(Summary(warnings=(), traces=traces, ranks=None))
    page = page_html("100 ranks", trace_views(summary), None)
    assert len(page.encode()) < MOST_BYTES
    assert 'id="trace-0"' in page
    picture = page[page.index('class="wide strip"') :].partition("</svg>")[0]
    assert all(f"Rank {rank}:" in picture for rank in range(100))


def test_without_ranks_the_sample_is_spaced_evenly(many: Summary) -> None:
    places = sorted(sample(trace_views(many), None))
    assert len(places) == MOST_TRACES
    assert max(np.diff(places)) < 40
