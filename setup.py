"""Builds the package with what the checkout holds besides `src/`: the workflow, the studies, the extension's sources.

An installed steptrace then runs studies without a checkout. `steptrace.root` says where these files are.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CARRIED = ("Snakefile", "workflow", "config", "profiles", "ext/giou")


class BuildWithWorkflow(build_py):
    """Copies `CARRIED` to `steptrace/project`, except into an editable install, which uses the checkout's own."""

    def run(self) -> None:
        """Build the package, then add what it carries."""
        if not self.editable_mode:  # what an earlier build left there may be modules that are gone
            shutil.rmtree(Path(self.build_lib, "steptrace"), ignore_errors=True)
        super().run()
        if self.editable_mode:
            return
        project = Path(self.build_lib, "steptrace", "project")
        for name in CARRIED:
            if Path(name).is_dir():
                shutil.copytree(name, project / name, ignore=shutil.ignore_patterns("__pycache__", "build", "*.so"))
            else:
                project.mkdir(exist_ok=True)
                shutil.copy(name, project)


# The compiled module keeps to the limited API of Python 3.11, so its wheel is tagged cp311-abi3.
setup(cmdclass={"build_py": BuildWithWorkflow}, options={"bdist_wheel": {"py_limited_api": "cp311"}})
