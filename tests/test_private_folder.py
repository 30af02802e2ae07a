"""A folder that only its user can enter."""

import os
from pathlib import Path

import pytest

from steptrace.errors import SteptraceError
from steptrace.files import private_folder, user_folder


def test_a_private_folder_is_made_once(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "deep" / "folder")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_folder(folder) == folder


def test_a_folder_that_others_may_enter_and_a_link_are_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to(private_folder(tmp_path / "real"))
    for name in ("open", "link"):
        with pytest.raises(SteptraceError, match=r"not private.*\n.*0700"):
            private_folder(tmp_path / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(private_folder(tmp_path / "other"), 12345, 12345)
    with pytest.raises(SteptraceError, match="not private"):
        private_folder(tmp_path / "other")


def test_the_users_folder_is_the_same_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = user_folder()
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/elsewhere")
    assert user_folder() == folder
    assert folder.name == f"steptrace-{os.geteuid()}"
