"""Runs Snakemake in forks of a process that has imported it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


class Snakemake:
    """Runs Snakemake in forks of one process (snakemake_server.py), which is started with the first call."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def __call__(
        self, *arguments: str, cwd: Path, environment: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[str]":
        """Run it to its end; stdout and stderr come together in `stdout`."""
        if self._server is None:
            command = [sys.executable, str(Path(__file__).with_name("snakemake_server.py"))]
            alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            self._server = subprocess.Popen(
                command, env=alone, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder, "output")
            call = {"arguments": arguments, "cwd": str(cwd), "environment": dict(environment), "output": str(output)}
            try:
                self._server.stdin.write(json.dumps(call) + "\n")
                self._server.stdin.flush()
                answer = self._server.stdout.readline()
            except BaseException:  # such as a timeout: what comes yet is no answer to the next call
                self._server.kill()
                self.close()
                raise
            return subprocess.CompletedProcess(list(arguments), int(answer), output.read_text(), None)

    def close(self) -> None:
        """End the process."""
        server, self._server = self._server, None
        if server is not None:
            server.communicate()


#: This process's.
SNAKEMAKE = Snakemake()
