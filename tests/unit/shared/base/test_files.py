"""A file is whole or not there, and never readable by others before it has its mode."""

import os
import stat

import pytest

from penstock.base.files import replace_file, write_atomic


def test_a_file_is_replaced_whole_with_its_mode_and_nothing_beside_it(tmp_path):
    path = tmp_path / "a.txt"
    write_atomic(path, b"old")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_atomic(path, b"new", mode=0o644)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o644)
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_atomic(path, b"old")

    def full(_):
        raise OSError(28, "no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomic(path, b"new")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"old", ["a.txt"])


def test_a_new_file_never_replaces_one_that_is_there(tmp_path):
    path = tmp_path / "ca.key"
    write_atomic(path, b"first", new=True)
    with pytest.raises(FileExistsError):
        write_atomic(path, b"second", new=True)
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"first", ["ca.key"])


def test_what_a_library_writes_takes_its_place_only_if_all_goes_well(tmp_path):
    path = tmp_path / "a.csv"
    with replace_file(path) as name:
        with open(name, "w") as file:
            file.write("whole")
        assert not path.exists()
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("whole", 0o644)
    with pytest.raises(ZeroDivisionError):
        break_off(path)
    assert (path.read_text(), os.listdir(tmp_path)) == ("whole", ["a.csv"])


def break_off(path):
    with replace_file(path) as name, open(name, "w") as file:
        file.write("half")
        _ = 1 / 0
