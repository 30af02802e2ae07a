"""docs/tutorial-program.md, followed to the letter: its commands run as written, in the layout that they make.

The public repository is a local one with the same layout, since tests have no network. git's `insteadOf` leads the
tutorial's address to it. `pip` is a stand-in: the packages are those of the tests.
`python` begins with PyTorch imported.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import forked_python
from mnist_script import write_mnist
from pages import BLOCK, ROOT

PAGE = ROOT / "docs" / "tutorial-program.md"
ADDRESS = "https://github.com/pytorch/examples"


@pytest.mark.workflow
def test_each_command_does_what_the_page_says(tmp_path: Path) -> None:
    upstream = tmp_path / "upstream"
    _publish(upstream)
    work = tmp_path / "work folder"
    work.mkdir()
    script = ["set -euo pipefail"]
    for _, kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "bash":
            script.append(text)
        elif kind == "console":
            command, *_ = text.splitlines()
            script.append(command.removeprefix("$ "))
        elif kind == "python":
            script.append(f"python {tmp_path}/edit.py main.py <<'END'\n{text}END")
        elif kind == "yaml":
            script.append(f"cat > speed/config/study/no_wait.yaml <<'END'\n{text}END")
    (tmp_path / "edit.py").write_text(
        "import sys, pathlib\nfile = pathlib.Path(sys.argv[1])\nlines = file.read_text().splitlines()\n"
        "(place,) = [i for i, line in enumerate(lines) if 'data, target = data.to(' in line]\n"
        "indent = len(lines[place]) - len(lines[place].lstrip())\n"
        "lines[place] = ' ' * indent + sys.stdin.read().strip()\nfile.write_text('\\n'.join(lines) + '\\n')\n"
    )
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=work, env=_environment(tmp_path, upstream), capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (work / "examples" / "mnist" / "steptrace-run" / "report.html").is_file()
    comparison = json.loads((work / "speed" / "results" / "no_wait" / "comparison.json").read_text())
    variants = {variant["name"]: variant for variant in comparison["variants"]}
    assert [variants[name]["status"] for name in ("main", "no_wait")] == ["ok", "ok"]
    # The variants are two programs: only one of them copies with a sync.
    main, no_wait = (variants[name]["syncs"]["predicted_per_step"] for name in ("main", "no_wait"))
    assert main - no_wait == 2
    assert variants["no_wait"]["equivalence"]["status"] == "same"
    assert (work / "speed" / "reports" / "no_wait.html").is_file()


def _publish(folder: Path) -> None:
    """A repository with the layout of pytorch/examples, in which the script lies in a folder of its own."""
    mnist = folder / "mnist"
    mnist.mkdir(parents=True)
    (mnist / "requirements.txt").write_text("torch\n")
    write_mnist(mnist / "main.py")
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "Examples"]):
        subprocess.run(["git", *_AUTHOR, *command], cwd=folder, check=True)


_AUTHOR = ["-c", "user.name=reader", "-c", "user.email=reader@example.org"]


def _environment(tmp_path: Path, upstream: Path) -> dict[str, str]:
    """The reader's environment: `python` and `steptrace` of the tests, and a pip that has nothing to do."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "pip").write_text('#!/bin/sh\ntest "$1 $2" = "install -r" && test -f "$3"\n')
    (tools / "pip").chmod(0o755)
    forked_python.executable(tools / "python")
    settings = {
        f"url.{upstream.as_uri()}.insteadOf": ADDRESS,
        "user.name": "reader",
        "user.email": "reader@example.org",
    }
    git = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        git |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, **git, "PATH": path, "STEPTRACE_FOLDER": str(tmp_path / "locks")}
