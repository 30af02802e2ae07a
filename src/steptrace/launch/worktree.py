"""The folder that a variant's program runs in: the study's, or a git worktree of its own for a ref or a patch."""

import fcntl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from steptrace.errors import LaunchError

#: Where the worktrees lie, relative to the workflow's working directory.
WORKTREES: Final = Path("results/.cache/worktrees")


def folder_of(program: Mapping[str, Any]) -> Path:
    """The working directory of a program as its configuration names it; a worktree is made if it is missing.

    Raises:
        LaunchError: git cannot make the worktree, or the patch does not apply.
    """
    cwd = Path(program["cwd"]).resolve()
    if "commit" not in program:
        return cwd
    root = Path(_git(cwd, "rev-parse", "--show-toplevel"))
    patch = program.get("patch_digest", "")[:12]
    tree = (WORKTREES / f"{root.name}-{program['commit'][:12]}{f'-{patch}' if patch else ''}").resolve()
    tree.parent.mkdir(parents=True, exist_ok=True)
    ready = tree.with_name(f"{tree.name}.ready")
    with tree.with_name(f"{tree.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several variants may want it at once
        if not ready.exists() or not tree.is_dir():
            _git(root, "worktree", "prune")
            if tree.is_dir():
                _git(root, "worktree", "remove", "--force", str(tree))
            _git(root, "worktree", "add", "--detach", str(tree), program["commit"])
            if patch:
                _git(tree, "apply", str(Path(program["patch"]).resolve()))
            ready.touch()
    return tree / cwd.relative_to(root)


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"git {arguments[0]} failed: {done.stderr.strip()}", where=folder)
    return done.stdout.strip()
