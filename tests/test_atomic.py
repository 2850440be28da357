"""Replacing a file: at no moment is there a broken one, and nothing is left behind."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from edge_train import atomic


def test_the_block_makes_the_file(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "file"
    with atomic.replacing(target) as file:
        file.write(b"one")
        assert not target.exists()
    assert target.read_bytes() == b"one"
    assert os.listdir(target.parent) == ["file"]


def test_an_error_in_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")

    def interrupted() -> None:
        with atomic.replacing(target) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_error_of_the_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space") as caught, atomic.replacing(target) as file:
        file.write(b"new")
    assert caught.value.filename == str(target)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_data_is_on_the_disk_before_the_name_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: (
            calls.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"),
            fsync(fd),
        ),
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    with atomic.replacing(tmp_path / "file") as file:
        file.write(b"data")
    assert calls == ["file", "replace", "folder"]


def test_what_a_killed_save_left_is_removed_and_a_live_one_is_not(tmp_path: Path) -> None:
    abandoned = tmp_path / ".file.0123456789ab.tmp"
    abandoned.write_bytes(b"half")
    other = tmp_path / ".other.0123456789ab.tmp"
    other.write_bytes(b"of another file")
    with atomic.replacing(tmp_path / "file") as outer:
        assert not abandoned.exists()
        with atomic.replacing(tmp_path / "file") as inner:
            inner.write(b"inner")
        outer.write(b"outer")
    assert (tmp_path / "file").read_bytes() == b"outer"
    assert sorted(os.listdir(tmp_path)) == [other.name, "file"]


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), atomic.replacing(tmp_path):
        pytest.fail("the block must not run")


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_refused_and_stays(tmp_path: Path, linked: bool) -> None:
    target = pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if linked:
        target = tmp_path / "link"
        target.symlink_to(pipe)
    names = sorted(os.listdir(tmp_path))
    text = "is a named pipe, expected a regular file"
    with pytest.raises(OSError, match=text) as caught, atomic.replacing(target):
        pytest.fail("the block must not run")
    assert caught.value.filename == str(pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == names


def test_a_socket_is_refused_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
        with pytest.raises(OSError, match="is a socket"), atomic.replacing("socket"):
            pytest.fail("the block must not run")
    assert stat.S_ISSOCK((tmp_path / "socket").stat().st_mode)
    assert os.listdir(tmp_path) == ["socket"]


@pytest.mark.parametrize(
    "name",
    ["n" * 255, "é" * 127, "n" + "é" * 127, "名" * 85, "n" * 101],
    ids=["ASCII", "2 bytes", "odd", "3 bytes", "just too long for a stem"],
)
def test_a_name_as_long_as_the_file_system_takes(tmp_path: Path, name: str) -> None:
    with atomic.replacing(tmp_path / name):
        (temporary,) = os.listdir(tmp_path)
    assert len(os.fsencode(temporary)) <= 118
    (tmp_path / temporary).write_bytes(b"half")
    with atomic.replacing(tmp_path / name) as file:
        file.write(b"x")
    assert os.listdir(tmp_path) == [name]  # what a kill left is cleaned away, too
    assert (tmp_path / name).read_bytes() == b"x"


def test_a_name_that_is_too_long_is_told_before_the_block(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too long"), atomic.replacing(tmp_path / ("n" * 300)):
        pytest.fail("the block must not run")
    assert os.listdir(tmp_path) == []


def test_long_names_with_one_beginning_have_stems_of_their_own() -> None:
    assert atomic._stem("n" * 150) != atomic._stem("n" * 151)
    assert atomic._stem("n" * 100) == "n" * 100


def test_mode_and_symbolic_link_are_kept(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(real)
    with atomic.replacing(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with atomic.replacing(tmp_path / "file") as file:
        file.write(b"x")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_without_fsync_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    with atomic.replacing(tmp_path / "file") as file:
        file.write(b"x")
    assert (tmp_path / "file").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("name", "error"),
    [("", FileNotFoundError), (b"", FileNotFoundError), (3, TypeError), (None, TypeError)],
)
def test_what_is_no_name_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any, error: type[Exception]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    entered = []

    def save() -> None:
        with atomic.replacing(name):
            entered.append(sorted(os.listdir(tmp_path)))

    monkeypatch.setattr(atomic, "_create", lambda target: pytest.fail(f"a file beside {target}"))
    with pytest.raises(error):
        save()
    assert (entered, os.listdir(tmp_path), os.listdir(tmp_path / "here")) == ([], ["here"], [])


def test_a_pipe_is_found_behind_a_name_that_only_we_shorten(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe/", "gone/../pipe"):
        with pytest.raises(OSError, match="a named pipe"):
            atomic.refuse_special(f"{tmp_path}/{name}")
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
