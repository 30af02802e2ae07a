"""Forks Snakemake's command line from a process that has imported it, which is most of what a call takes here.

A line of JSON on stdin is a call: `arguments`, `cwd`, `environment`, and the file that gets its `output`. The answer is
its exit code. Nothing of steptrace is imported before the fork: each project has a copy of its own.
"""

import atexit
import importlib
import json
import os
import sys
import threading

#: Snakemake, and what it imports as it goes.
IMPORTED = (
    "snakemake.cli",
    "snakemake.report.html_reporter",
    "docutils.parsers.rst.directives.images",
    "jinja2.ext",
    "jsonschema",
    "msgspec",
    "pandas",  # by Snakemake, to compare the parameters of jobs
    "psutil",
    "smart_open",
    "yte",
)


def call(arguments, cwd, environment, output):
    """Do as `python -m snakemake` would; return its exit code."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:1] = environment["PYTHONPATH"].split(os.pathsep)
    sys.argv = ["snakemake", *arguments]
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), written, written)):
        os.dup2(file, number)
    try:
        sys.modules["snakemake.cli"].main(arguments)
    except SystemExit as ended:
        code = ended.code
    else:
        code = 0
    # What an interpreter does at its end.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def main():
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 70
            try:
                code = call(**json.loads(line))
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
