"""The documents hold together: links lead somewhere, commands and code in them are ones that exist."""

import importlib.util
import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from snakemake.cli import get_argument_parser

from pages import BLOCK, DOCUMENTS, PAGES, ROOT, blocks
from steptrace import cli
from steptrace.analysis import TABLES as COMPUTED
from steptrace.trace.rows import TABLES

LINK = re.compile(r"(?<!`)\[[^\]`]*(?:`[^`]*`[^\]`]*)*\]\(([^)\s]+)\)")
CONFIGURATION = sorted((ROOT / "config").rglob("*.yaml"))
#: Programs that a reader has, and that take what is written there.
COMMON = {"pip", "git", "cd", ".", "eval", "gh", "cat", "source", "kill"}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if target.startswith(("http://", "https://")):
            continue
        file, _, heading = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), f"{target} is not there"
        if heading:
            assert heading in _anchors(linked), f"{target}: no such heading"


@cache
def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_python_in_documents_is_python(path: Path) -> None:
    for text in blocks(path, "python"):
        # A piece of a method stands indented, as it does in its file.
        body = text if not text.startswith(" ") else "def method(self):\n    if True:\n" + text
        compile(body, str(path), "exec")


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_yaml_in_documents_is_yaml(path: Path) -> None:
    for text in blocks(path, "yaml"):
        assert isinstance(yaml.safe_load(text), dict)


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "ext/giou/README.md", *CONFIGURATION], ids=_name)
def test_brackets_in_commands_are_quoted(path: Path) -> None:
    """Some shells take them for a pattern of file names."""
    commands = re.findall(r"--config [^`\n]*", path.read_text())
    assert not [command for command in commands if "[" in re.sub(r"'[^']*'|\"[^\"]*\"", "", command)]


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_scripts_in_documents_are_bash(path: Path) -> None:
    for text in blocks(path, "sh", "bash", ""):
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def _commands(path: Path) -> Iterator[list[str]]:
    for text in blocks(path, "bash", ""):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            parts: list[list[str]] = [[]]
            for word in words:
                if word in ("&&", "|", ">", ">>"):
                    parts.append([])
                else:
                    parts[-1].append(word)
            yield from (part for part in map(_without_variables, parts) if part)


def _without_variables(words: list[str]) -> list[str]:
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    return words


COMMANDS = [
    pytest.param(words, id=f"{path.name}: {' '.join(words)}") for path in DOCUMENTS for words in _commands(path)
]


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_in_documents_exist(words: list[str]) -> None:
    program, *arguments = words
    if program == "steptrace":
        cli.parser(arguments).parse_args(arguments)
    elif program == "snakemake":
        get_argument_parser().parse_args(arguments)
    elif program == "make":
        targets = [word for word in arguments if "=" not in word]
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE) for target in targets)
    elif program == "python":
        module = arguments[1] if arguments[0] == "-m" else None
        assert importlib.util.find_spec(module) if module else (ROOT / arguments[0]).is_file()
    else:
        assert program in COMMON or (ROOT / program).is_file() or program.startswith("docs/"), f"unknown: {program}"


def test_tables_and_modules_that_the_metrics_name_are_there() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    of_ranks = {"rank_waits", "matched_collectives", "rank_kernels"}
    named = {name for names in re.findall(r"tables? ((?:`\w+`(?:, )?)+)", text) for name in re.findall(r"\w+", names)}
    assert len(named) > 20
    assert named - {*COMPUTED, *TABLES, *of_ranks, "memory_blocks"} == set()
    modules = set(re.findall(r"`((?:analysis|findings)/[\w/]*(?:\.py)?)`", text))
    assert len(modules) > 10
    assert [module for module in sorted(modules) if not (ROOT / "src" / "steptrace" / module).exists()] == []


def test_every_page_is_in_the_list_of_contents() -> None:
    listed = re.findall(r"^- \[.+\]\((.+)\.md\)$", _index(), re.MULTILINE)
    pages = [_name(path).removeprefix("docs/").removesuffix(".md") for path in PAGES]
    assert sorted(listed) == sorted(set(pages) - {"index"})


def test_the_lists_of_links_are_the_contents_of_the_built_docs() -> None:
    source = [_index()]
    runpy.run_path(str(ROOT / "docs" / "conf.py"))["add_contents"](None, "index", source)
    trees = re.findall(r"^```\{toctree\}\n:hidden:\n:caption: [^\n]+\n\n(.*?)^```", source[0], re.DOTALL | re.MULTILINE)
    assert len(trees) == len(re.findall(r"^## ", _index(), re.MULTILINE))
    assert [f"{name}.md" for name in "".join(trees).split()] == re.findall(r"\((.+\.md)\)", _index())


def _index() -> str:
    return (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def test_the_readme_s_output_is_that_of_the_tutorial() -> None:
    (output,) = blocks("README.md", "console")
    assert output in (ROOT / "docs" / "tutorial-program.md").read_text(encoding="utf-8")  # which a test runs


def test_the_first_words_of_run_and_capture_say_what_they_need() -> None:
    """A program that `run` ends early writes no last checkpoint, and `capture` needs `run --capture`."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first_run = readme[readme.index("`steptrace run -- ") :]
    assert "checkpoint" in first_run[: first_run.index("\n## ")]
    assert "run --capture" in readme[: readme.index("steptrace capture")]
