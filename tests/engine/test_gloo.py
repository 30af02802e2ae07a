"""The profiler stops only when gloo's threads have ended the events of their collectives."""

import ctypes
import hashlib
import sys
import threading
import time

import pytest
import torch

from steptrace.engine.gloo import wait_for_gloo
from steptrace.engine.recording import Recording, RecordingSettings, Request

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads' states are read from /proc")
_PR_SET_NAME = 15


class GlooThread(threading.Thread):
    """A thread with the name of gloo's. It computes for so long, without the GIL, and then sleeps."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.works = threading.Event()
        self.ends = threading.Event()
        self.computes_for_s = 0.0
        self.finished_at: float | None = None

    def run(self) -> None:
        """Compute, then sleep."""
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"pt_gloo_runloop")
        ends_at = time.monotonic() + self.computes_for_s
        self.works.set()
        while time.monotonic() < ends_at and not self.ends.is_set():
            hashlib.pbkdf2_hmac("sha256", b"a", b"b", 20_000)
        self.finished_at = time.monotonic()
        self.ends.wait()


@pytest.fixture
def gloo_thread():
    thread = GlooThread()
    yield thread
    thread.ends.set()
    thread.join()


def test_the_profiler_stops_after_gloo_s_threads(gloo_thread, tmp_path):
    gloo_thread.computes_for_s = 0.3
    recording = Recording(Request("1", str(tmp_path / "one"), RecordingSettings(steps=1, warmup=0)))
    recording.step(0)
    torch.ones(1)
    gloo_thread.start()
    gloo_thread.works.wait()
    recording.step(1)
    assert recording.state == "recorded", recording.message
    assert gloo_thread.finished_at is not None


def test_threads_asleep_or_missing_are_not_waited_for(gloo_thread):
    assert wait_for_gloo()
    gloo_thread.start()
    while gloo_thread.finished_at is None:
        time.sleep(0.001)
    assert wait_for_gloo()


def test_a_thread_that_never_sleeps_does_not_hold_the_program(gloo_thread, monkeypatch):
    monkeypatch.setattr("steptrace.engine.gloo._MOST_S", 0.05)
    gloo_thread.computes_for_s = 600.0
    gloo_thread.start()
    gloo_thread.works.wait()
    assert not wait_for_gloo()
