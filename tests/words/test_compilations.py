"""Words on what was compiled while a program was measured."""

from typing import get_args

import pytest

from steptrace.documents.compilations import BrokenGraph, Compilations, GuardKind, Recompiled
from steptrace.words.compilations import compilation_lines
from steptrace.words.compiled import change_in_words


def test_long_texts_of_a_program_are_short_and_on_one_line() -> None:
    text = "n == 'a\n" + "prompt " * 10_000
    broken = BrokenGraph(file="train.py", line=7, function="f", kind="a reason", code=text, hints=(), compilations=1)
    failed = Recompiled(
        file="train.py",
        line=8,
        function="f",
        code=text,
        compiled_file="train.py",
        compiled_line=7,
        kind="value",
        value="n",
        dimension=None,
        guard=text,
        recompilations=1,
    )
    lines = compilation_lines(
        Compilations(graphs=1, compile_ns=5, functions=(), breaks=(broken,), recompilations=(failed,))
    )
    assert [("train.py:7" in line, "train.py:8" in line) for line in lines[1:]] == [(True, False), (False, True)]
    assert max(map(len, lines)) < 400
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize("kind", get_args(GuardKind))
def test_a_predicted_change_names_the_object_and_both_values(kind: GuardKind) -> None:
    words = change_in_words(kind, "self.width", 7, "31", "32")
    assert "self.width" in words
    assert words.index("31") < words.index("32")
    assert ("7" in words) == (kind in ("size", "stride"))
    assert "31" not in change_in_words(kind, "self.width", 7, None, "32")
