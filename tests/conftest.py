"""The stand-in device's settings, forked programs, and which tests run, in which order."""

import fcntl
import functools
import gc
import hashlib
import os
import pickle
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import forked_python

# What a computed value reads as on the stand-in CUDA device (tests/standin/README.md); no other device looks at these.
os.environ.setdefault("FAKECUDA_COMPUTED_SIZE", "8")
os.environ.setdefault("FAKECUDA_COMPUTED_BOOL", "1")

# Tests run side by side, and on small tensors PyTorch's threads mostly wait for each other, which takes processor time:
# six times as much in all for tests/lab/test_equivalence.py. What needs several threads sets their number itself.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # of programs that are given more
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # more are processes, each of which imports PyTorch
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")  # or it would compile and load programs to see what runs here

# A shell's `make test &` ignores it, and what tests interrupt would go on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # while tests are collected

# Programs that tests start would compile all they import of steptrace each time where nothing may be written beside it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Of properties that do not name a number themselves, as an example takes them a quarter of a second. The examples are
# the same in each run, so that a change is red for what it does; `make soak` draws others each time.
hypothesis.settings.register_profile("few", max_examples=10, deadline=None, derandomize=True)
hypothesis.settings.register_profile("soak", max_examples=1_000, deadline=None)
hypothesis.settings.load_profile("few")


@pytest.fixture(scope="module", autouse=True)
def _what_torch_compile_leaves() -> Iterator[None]:
    """It raises the recursion limit, counts, and stops checks of distributions; the next file starts anew."""
    limit = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(limit)
    if "torch._dynamo.utils" in sys.modules:
        sys.modules["torch._dynamo.utils"].counters.clear()
    if "torch.distributions" in sys.modules:
        sys.modules["torch.distributions"].Distribution.set_default_validate_args(True)


@pytest.fixture
def forked_programs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that the test starts by `sys.executable` are forked from a process that has imported PyTorch."""
    if sys.platform == "linux":
        python = forked_python.executable(tmp_path_factory.mktemp("forked") / "python")
        monkeypatch.setattr(sys, "executable", str(python))


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of all workers."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session", autouse=True)
def _planned_once(shared_folder: Path) -> Iterator[None]:
    """The same overrides of the same files, which take 140 ms, are composed once for all plans; errors each time.

    Of digests of code a worker parses each file once, which takes a second for all of them.
    """
    from steptrace.config import digest, study

    by_hydra = study.compose

    def remembered(folders: Sequence[Path], overrides: Sequence[str], *, where: str, bases: Any = None) -> Any:
        files = [(path.relative_to(folder), path) for folder in folders for path in sorted(folder.rglob("*.yaml"))]
        texts = [(name, path.read_bytes()) for name, path in files if name.parts[0] != "study"]
        variables = sorted(name for name in os.environ if not name.startswith("PYTEST_"))
        key = repr((overrides, texts, [(name, os.environ[name]) for name in variables]))
        file = shared_folder / f"composed-{hashlib.sha256(key.encode()).hexdigest()}"
        if not file.exists():
            new = file.with_suffix(f".{os.getpid()}")
            new.write_bytes(pickle.dumps(by_hydra(folders, overrides, where=where, bases=bases)))
            new.rename(file)
        return pickle.loads(file.read_bytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "compose", remembered)
        patch.setattr(digest, "_read", functools.cache(digest._read))
        yield


@pytest.fixture(scope="session")
def once(shared_folder: Path) -> Callable[[str, Callable[[Path], None]], Path]:
    """Has a folder made by one worker for all: of that name, empty, by the function given. Not to be changed then."""

    def made(name: str, make: Callable[[Path], None]) -> Path:
        folder = shared_folder / name
        done = shared_folder / f"{name}.made"
        with (shared_folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def recorded_summary(once: Callable[[str, Callable[[Path], None]], Path]) -> Callable[[str], Any]:
    """What the analysis makes of a recorded trace, once for all workers."""
    from recorded import recorded
    from steptrace.analysis import summarize
    from steptrace.documents.base import read, write
    from steptrace.documents.summary import Summary

    def summary(name: str) -> Any:
        trace = recorded(name)
        made = once(f"summary-{name}", lambda folder: write(folder / "summary.json", summarize([trace])[0]))
        return read(made / "summary.json", Summary)

    return functools.cache(summary)


#: Folders whose files take longest, in their order: before all others, so that none of them is left at the end.
LONGEST = (
    "workflow", "launch", "lab", "jobs", "commands", "capture", "config", "ext", "analysis", "report", "trace",
    "properties",
)  # fmt: skip


def pytest_collection_finish() -> None:
    """Garbage is looked for less often, and not among what is imported and collected: up to 12 % less CPU time."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is slow, unless `-m slow` or the like is given, and put what takes long first."""
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.parent.name, len(LONGEST)))
    if "slow" not in config.option.markexpr:
        slow = [item for item in items if item.get_closest_marker("slow")]
        items[:] = [item for item in items if item not in slow]
        config.hook.pytest_deselected(items=slow)
