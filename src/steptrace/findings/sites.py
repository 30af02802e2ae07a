"""Sites of syncs, for the rules on syncs."""

from steptrace.documents.finding import Source
from steptrace.documents.syncs import SiteRow


def source_of(site: SiteRow) -> Source | None:
    """The line of a site; for a predicted site in a library the program's line that leads to it."""
    file, line = site.program or (site.file, site.line)
    return None if file is None or line is None else Source(file=file, line=line)
