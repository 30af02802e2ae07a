"""Sites of syncs in words."""

from steptrace.documents.syncs import SiteRow, place_of


def site_in_words(site: SiteRow) -> str:
    """A site in one line: `losses.py:38 in forward, torch.unique(target): 1 d2h copy in backward`."""
    function = f" in {site.function}" if site.function else ""
    code = f", `{site.code}`" if site.code else ""
    kind = str(site.kind).replace("_", " ")
    phase = " in backward" if site.phase == "backward" else ""
    return f"{place_of(site)}{function}{code}: {site.counted(f'{kind}{phase}')}"
