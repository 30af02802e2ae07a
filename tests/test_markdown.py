"""Markdown of names that somebody else chose."""

from steptrace.markdown import clean, table


def test_no_part_of_a_name_becomes_html() -> None:
    assert clean("`a<b>` is <i> faster") == "`a<b>` is &lt;i> faster"
    # The last backtick begins no code, since none follows it.
    assert clean("`a` or ` <script>") == "`a` or ` &lt;script>"


def test_a_name_ends_no_cell_of_a_table_and_of_its_head() -> None:
    written = table(["Step, old|new", "<b>"], [["a|b", None]])
    assert written.splitlines() == ["| Step, old/new | &lt;b> |", "| --- | --- |", "| a/b | not measured |"]
