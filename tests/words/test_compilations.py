"""Words on what was compiled while a program was measured."""

from steptrace.documents.compilations import BrokenGraph, Compilations, Recompiled
from steptrace.words.compilations import compilation_lines


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
