"""A file is whole or absent, also when the disk is full or the process is killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pipeline.errors import DiskFullError, QwarmError
from pipeline.files import replacing, replacing_folder, write_bytes, write_json


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_canonical_json_is_sorted_and_stable(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1, "a": [1.5, "é"]})
    assert (tmp_path / "a.json").read_bytes() == '{\n  "a": [\n    1.5,\n    "é"\n  ],\n  "b": 1\n}\n'.encode()


def test_a_fault_while_writing_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a.bin", b"old")
    with pytest.raises(ValueError), replacing(tmp_path / "a.bin") as temporary:
        temporary.write_bytes(b"half")
        raise ValueError
    assert (tmp_path / "a.bin").read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_a_fault_while_filling_a_folder_leaves_the_old_folder_and_no_other(tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "d") as folder:
        (folder / "x").write_text("old")
    with pytest.raises(ValueError), replacing_folder(tmp_path / "d") as folder:
        (folder / "x").write_text("new")
        raise ValueError
    assert (tmp_path / "d" / "x").read_text() == "old"
    assert names(tmp_path) == ["d"]


def test_folder_is_replaced_whole(tmp_path: Path) -> None:
    for content in ("one", "two"):
        with replacing_folder(tmp_path / "d") as folder:
            (folder / content).write_text(content)
    assert names(tmp_path / "d") == ["two"]
    assert names(tmp_path) == ["d"]


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    """A real file-size limit of the kernel, in a process of its own."""
    program = textwrap.dedent(
        """
        import resource, signal, sys
        from pathlib import Path
        from pipeline.errors import DiskFullError
        from pipeline.files import replacing_folder, write_bytes
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        target = Path(sys.argv[1])
        for write in (lambda: write_bytes(target / "big.bin", b"x" * 5000), lambda: fill(target / "big")):
            try:
                write()
            except DiskFullError as error:
                print(error)
            else:
                sys.exit("no error")
        """
    ).replace(
        "for write in", "def fill(path):\n    with replacing_folder(path) as folder:\n        (folder / 'x').write_bytes(b'x' * 5000)\nfor write in"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("The disk is full") == 2
    assert "big.bin" in done.stdout
    assert "next:" in done.stdout
    assert names(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_and_quota_are_the_same_error(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("pipeline.files.fsync_path", full)
    with pytest.raises(DiskFullError):
        write_bytes(tmp_path / "a", b"1")
    assert names(tmp_path) == []


def test_what_ends_with_the_boot_is_whole_without_reaching_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.files.fsync_path", lambda _: pytest.fail("flushed"))
    write_path = tmp_path / "a"
    with replacing(write_path, durable=False) as temporary:
        temporary.write_bytes(b"1")
        assert not write_path.exists()
    assert write_path.read_bytes() == b"1"
    assert names(tmp_path) == ["a"]


def test_another_os_error_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(QwarmError, match="could not be written"):
        write_bytes(tmp_path / "file" / "below", b"1")


def test_a_killed_writer_leaves_the_old_folder_and_the_next_run_sweeps(tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "d") as folder:
        (folder / "x").write_text("old")
    program = "import os, signal, sys\nfrom pipeline.files import replacing_folder\nwith replacing_folder(sys.argv[1]) as f:\n"
    program += "    (f / 'x').write_text('new')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "d")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "d" / "x").read_text() == "old"
    assert len(names(tmp_path)) == 2
    with replacing_folder(tmp_path / "d") as folder:
        (folder / "x").write_text("newer")
    assert names(tmp_path) == ["d"]
    assert (tmp_path / "d" / "x").read_text() == "newer"


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    """The state a kill leaves there: the old folder aside, none at the final path."""
    (tmp_path / ".d.old").mkdir()
    (tmp_path / ".d.old" / "x").write_text("old")
    with pytest.raises(ValueError), replacing_folder(tmp_path / "d"):
        raise ValueError
    assert (tmp_path / "d" / "x").read_text() == "old"
    assert names(tmp_path) == ["d"]
