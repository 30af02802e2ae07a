"""What a capture is asked for."""

import pytest

from steptrace.capture import plan
from steptrace.capture.plan import new_folder


def test_two_captures_of_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    class Stopped(plan.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5, tzinfo=tz)

    monkeypatch.setattr(plan, "datetime", Stopped)
    made = []
    for _ in range(3):
        folder = new_folder(tmp_path, 17)
        folder.mkdir()
        made.append(folder.name)
    assert made == ["20260102-030405-pid17", "20260102-030405-pid17-2", "20260102-030405-pid17-3"]


@pytest.mark.parametrize("settings", [{"steps": 0}, {"warmup": -1}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(plan.CaptureError, match=r"impossible|cannot be recorded"):
        plan.Settings(**settings)
