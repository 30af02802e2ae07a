"""Device locks: one training at a time on each device, and a lock lives as long as its training."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from steptrace.errors import SteptraceError, TrainError
from steptrace.train import devices
from steptrace.train.devices import acquire, holder, try_lock


class GaveUp(Exception):  # noqa: N818
    pass


def give_up(holders):
    raise GaveUp(holders)


@pytest.fixture(autouse=True)
def locks(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTRACE_LOCKS", str(tmp_path / "locks"))
    return tmp_path / "locks"


def test_a_second_training_on_the_cpu_waits():
    lease = acquire("cpu", waiting=give_up)
    with pytest.raises(GaveUp, match=f"process {os.getpid()}"):
        acquire("cpu", waiting=give_up)
    lease.close()
    acquire("cpu", waiting=give_up).close()
    assert lease.environment == {}


def test_a_link_is_not_followed(locks, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    locks.mkdir()
    (locks / "cpu.lock").symlink_to(precious)
    with pytest.raises(OSError, match=r"cpu\.lock"):
        try_lock(locks / "cpu.lock")
    assert precious.read_text() == "mine"


def test_a_holder_is_a_number_or_unknown(tmp_path):
    (tmp_path / "a.lock").write_bytes(b"\x1b]0;title\x07")
    assert holder(tmp_path / "a.lock") == "?"


def test_each_gpu_is_given_once_and_only_what_is_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(devices, "nvidia_gpus", lambda: [f"GPU-{i}" for i in "abcdefgh"])
    first, second = acquire("cuda", waiting=give_up), acquire("cuda", waiting=give_up)
    assert [lease.device for lease in (first, second)] == ["gpu-d", "gpu-f"]
    assert [lease.environment["CUDA_VISIBLE_DEVICES"] for lease in (first, second)] == ["3", "5"]
    with pytest.raises(GaveUp, match=r"gpu-d .*gpu-f"):
        acquire("cuda", waiting=give_up)
    first.close()
    third = acquire("cuda", waiting=give_up)
    assert third.device == "gpu-d"
    second.close()
    third.close()


def test_several_gpus_are_taken_together_or_not_at_all(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setattr(devices, "nvidia_gpus", lambda: [f"GPU-{i}" for i in "abc"])
    pair = acquire("cuda", waiting=give_up, count=2)
    assert pair.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert pair.device == "gpu-a+gpu-b"
    with pytest.raises(GaveUp):
        acquire("cuda", waiting=give_up, count=2)
    acquire("cuda", waiting=give_up).close()  # the third is free: who waits for two holds none
    pair.close()
    acquire("cuda", waiting=give_up, count=3).close()


def test_fewer_gpus_than_needed_is_an_error_at_once(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(TrainError, match="needs 2 GPUs, and this process may use 1"):
        acquire("cuda", waiting=give_up, count=2)
    acquire("cpu", waiting=give_up, count=2).close()  # a CPU is one device for any number of ranks


def test_the_same_gpu_under_another_index_is_the_same_lock(monkeypatch):
    monkeypatch.setattr(devices, "nvidia_gpus", lambda: ["GPU-a", "GPU-b"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    lease = acquire("cuda", waiting=give_up)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    with pytest.raises(GaveUp):
        acquire("cuda", waiting=give_up)
    lease.close()


def test_a_part_of_a_divided_gpu_is_one_device(monkeypatch, locks):
    parts = ["MIG-1a/7/0", "MIG-1a/9/0", "GPU-whole"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "nvidia_gpus", lambda: parts)
    leases = [acquire("cuda", waiting=give_up) for _ in parts]
    assert [lease.environment["CUDA_VISIBLE_DEVICES"] for lease in leases] == parts
    with pytest.raises(GaveUp):
        acquire("cuda", waiting=give_up)
    assert sorted(path.name for path in locks.iterdir()) == [
        "gpu-MIG-1a_7_0.lock", "gpu-MIG-1a_9_0.lock", "gpu-whole.lock",
    ]  # fmt: skip
    for lease in leases:
        lease.close()


def test_the_beginning_of_a_uuid_names_its_gpu(monkeypatch):
    monkeypatch.setattr(devices, "nvidia_gpus", lambda: ["GPU-abcd", "GPU-bcde"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bc")
    lease = acquire("cuda", waiting=give_up)
    assert (lease.device, lease.environment["CUDA_VISIBLE_DEVICES"]) == ("gpu-bcde", "GPU-bc")
    lease.close()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "gpu-BCDE")
    lease = acquire("cuda", waiting=give_up)
    assert lease.device == "gpu-bcde"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,-1,0")  # what follows -1 does not count
    with pytest.raises(GaveUp):
        acquire("cuda", waiting=give_up)
    lease.close()


@pytest.mark.parametrize("visible", ["", "-1"])
def test_no_gpu_is_an_error(monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(TrainError, match="no GPU"):
        acquire("cuda", waiting=give_up)


def test_a_child_holds_the_lock_after_its_parent_let_go(tmp_path):
    path = tmp_path / "device.lock"
    descriptor = try_lock(path)
    assert descriptor is not None
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(descriptor,))
    os.close(descriptor)
    assert try_lock(path) is None
    assert holder(path) == str(os.getpid())
    child.communicate(b"\n")
    again = try_lock(path)
    assert again is not None
    os.close(again)


def test_the_folder_is_for_this_user_alone(locks, monkeypatch):
    acquire("cpu", waiting=give_up).close()
    assert locks.stat().st_mode & 0o7777 == 0o700
    locks.chmod(0o777)  # as somebody else could have made it before us
    with pytest.raises(SteptraceError, match="folder is not private"):
        acquire("cpu", waiting=give_up)
    monkeypatch.delenv("STEPTRACE_LOCKS")
    assert devices._folder() == Path(f"/tmp/steptrace-{os.geteuid()}/locks")
