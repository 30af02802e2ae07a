"""Sentences on findings that do not depend on their rule: what acting on one saves, and what bounds its cost."""

from steptrace import format as fmt
from steptrace.documents.finding import Finding


def gain_text(finding: Finding) -> str:
    """What acting on a finding saves at most; empty where that is not known."""
    cost = finding.cost_ns_per_step
    share = finding.cost_share
    if cost is None:
        return "" if share is None else f"saves at most {fmt.share(share)} of the analysed time"
    saved = f"saves at most {fmt.duration_ns(cost)} per step"
    return saved if share is None else f"{saved} ({fmt.share(share)})"


def ranks_of_finding_text(finding: Finding, count: int) -> str:
    """The rank whose figures a finding has, and how many of the other ranks have it; `count` is of all ranks."""
    rank = None if finding.source is None else finding.source.rank
    other_ranks = len(finding.ranks) - 1
    if other_ranks <= 0:
        return f"Rank {rank}"
    more = fmt.plural(other_ranks, "other")
    if other_ranks == count - 1:
        more = "the other one" if other_ranks == 1 else f"all {more}"
    return f"Rank {rank} (and {more})"


def claim_of_slow_profile(claim: str, slower: float) -> str:
    """A claim with the reason why it has no cost."""
    times = fmt.significant(slower)
    return f"{claim} (in a profile that takes {times} times as long as the step itself, so no cost is given)"


def evidence_of_path(on_path_ns: float) -> str:
    """What bounds the cost of GPU work where the host sets the step time."""
    return f"the host sets the step time: {fmt.duration(on_path_ns)} of GPU work is on the critical path"
