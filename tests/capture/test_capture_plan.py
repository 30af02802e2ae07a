"""What a capture is asked for."""

from steptrace.capture import job
from steptrace.capture.job import new_folder


def test_two_captures_of_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    class Stopped(job.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5, tzinfo=tz)

    monkeypatch.setattr(job, "datetime", Stopped)
    made = []
    for _ in range(3):
        folder = new_folder(tmp_path, 17)
        folder.mkdir()
        made.append(folder.name)
    assert made == ["20260102-030405-pid17", "20260102-030405-pid17-2", "20260102-030405-pid17-3"]
