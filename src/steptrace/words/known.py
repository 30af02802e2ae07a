"""The known advantages of a variant whose step time is not known: fewer syncs and launches, less memory."""

from steptrace import format as fmt
from steptrace.documents.answer import Known


def known_in_words(known: Known) -> str:
    """A sentence; empty where nothing differs."""
    counts = []
    if known.syncs is not None:
        counts.append(f"{fmt.plural(known.syncs.now, 'sync')} instead of {fmt.count(known.syncs.before)}")
    if known.launches is not None:
        launches = "launch" if known.launches.now == 1 else "launches"
        counts.append(f"{fmt.count(known.launches.now)} {launches} instead of {fmt.count(known.launches.before)}")
    parts = [f"{fmt.enumeration(counts)} per step"] if counts else []
    if known.memory_bytes is not None:
        now, before = (fmt.size_bytes(size) for size in (known.memory_bytes.now, known.memory_bytes.before))
        parts.append(f"a memory peak of {now} instead of {before}")
    return f"`{known.name}` has {fmt.enumeration(parts)}." if parts else ""
