"""A folder that only its user can enter, and files in it."""

import os
from pathlib import Path

import pytest

from steptrace.errors import SteptraceError
from steptrace.exchange import private_folder, read_own, user_folder, write_whole


def test_a_private_folder_is_made_and_found_again(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "deep" / "folder")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_folder(folder) == folder


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o750)
    with pytest.raises(SteptraceError, match="not private") as caught:
        private_folder(tmp_path / "open")
    assert "0700" in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(private_folder(tmp_path / "other"), 12345, 12345)
    with pytest.raises(SteptraceError, match="not private"):
        private_folder(tmp_path / "other")


def test_a_link_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(private_folder(tmp_path / "real"))
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(SteptraceError, match="cannot be made or opened"):
            private_folder(tmp_path / name)


def test_the_users_folder_is_the_same_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found = user_folder()
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/elsewhere")
    assert user_folder() == found
    assert found.name == f"steptrace-{os.geteuid()}"


def test_a_file_is_written_whole_and_read_if_it_is_our_own(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", b"one")
    write_whole(tmp_path / "file", b"two")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert read_own(tmp_path / "file") == b"two"
    assert read_own(tmp_path / "missing") is None
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_own(tmp_path / "link") is None
    os.mkfifo(tmp_path / "pipe")
    assert read_own(tmp_path / "pipe") is None
    assert read_own(tmp_path) is None
