"""What was signed or decided once is found again, whoever writes beside, is killed, or damages a file; what is damaged is never trusted."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from calibration.firewall.store import MOST_SEGMENTS, SignatureStore, VerdictStore
from pipeline.errors import DataError

VALUE_BYTES = 24


def digests(first: int, last: int) -> list[str]:
    return [hashlib.sha256(str(number).encode()).hexdigest() for number in range(first, last)]


def values(rows: list[str]) -> np.ndarray:
    """A value that follows from its digest, so that a wrong one is seen."""
    return np.stack([np.frombuffer(hashlib.sha256(row.encode()).digest()[:VALUE_BYTES], np.uint8) for row in rows])


def store(folder: Path, kind: str = "text", version: str = "v1") -> SignatureStore:
    return SignatureStore(folder, kind, version, VALUE_BYTES)


def kept(folder: Path, rows: list[str]) -> int:
    """How many of `rows` a new process would find, after checking their values."""
    found, got = store(folder).get(rows)
    assert (got[found] == values(rows)[found]).all()
    assert not got[~found].any()
    return int(found.sum())


def segments(folder: Path) -> list[Path]:
    return sorted(store(folder).folder.glob("*.segment"))


def test_what_was_put_is_found_by_another_process_and_nothing_else(tmp_path: Path) -> None:
    rows = digests(0, 500)
    first = store(tmp_path)
    assert first.put(rows[:300], values(rows[:300])) == 300
    assert first.put(rows[200:400], values(rows[200:400])) == 100
    assert first.put(rows[:400], values(rows[:400])) == 0
    assert kept(tmp_path, rows) == 400
    found, _ = store(tmp_path).get(list(reversed(rows)))
    assert found.tolist() == [False] * 100 + [True] * 400
    assert first.warnings == []


def test_empty_requests_and_an_absent_folder(tmp_path: Path) -> None:
    empty = store(tmp_path / "absent")
    found, got = empty.get([])
    assert (found.shape, got.shape) == ((0,), (0, VALUE_BYTES))
    assert empty.put([], np.zeros((0, VALUE_BYTES), np.uint8)) == 0
    assert not empty.get(digests(0, 3))[0].any()
    assert not (tmp_path / "absent").exists()


def test_the_first_value_of_a_digest_stays(tmp_path: Path) -> None:
    row = digests(0, 1)
    store(tmp_path).put(row, values(row))
    assert store(tmp_path).put(row * 2, np.zeros((2, VALUE_BYTES), np.uint8)) == 0
    assert kept(tmp_path, row) == 1


def test_kinds_and_versions_do_not_meet(tmp_path: Path) -> None:
    rows = digests(0, 10)
    store(tmp_path).put(rows, values(rows))
    assert not store(tmp_path, version="v2").get(rows)[0].any()
    assert not store(tmp_path, kind="tokens").get(rows)[0].any()


DAMAGES = {
    "one bit flipped": lambda content, _: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
    "torn": lambda content, _: content[:-100],
    "empty": lambda *_: b"",
    "swapped": lambda _, other: other,
    "a row more": lambda content, _: content + bytes(32 + VALUE_BYTES),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_segment_is_reported_not_trusted_and_healed(tmp_path: Path, damage: str) -> None:
    rows = digests(0, 90)
    for first in (0, 30, 60):
        store(tmp_path).put(rows[first : first + 30], values(rows[first : first + 30]))
    victim, other, _ = segments(tmp_path)
    victim.write_bytes(DAMAGES[damage](victim.read_bytes(), other.read_bytes()))
    damaged = store(tmp_path)
    found, got = damaged.get(rows)
    assert found.sum() == 60
    assert (got[found] == values(rows)[found]).all()
    assert len(damaged.warnings) == 1
    assert victim.name in damaged.warnings[0]
    damaged.get(rows)
    assert len(damaged.warnings) == 1
    again = [row for row, there in zip(rows, found, strict=True) if not there]
    assert damaged.put(again, values(again)) == 30
    healed = store(tmp_path)
    assert healed.get(rows)[0].all()
    assert healed.warnings == []


def test_foreign_segments_are_reported_and_left_alone(tmp_path: Path) -> None:
    """A sound segment of another kind, a folder and a broken link under a segment's name."""
    rows = digests(0, 30)
    other = store(tmp_path, kind="tokens")
    other.put(rows, values(rows))
    ours = store(tmp_path)
    ours.folder.mkdir()
    (source,) = other.folder.iterdir()
    (ours.folder / source.name).write_bytes(source.read_bytes())
    (ours.folder / f"{'0' * 64}.segment").mkdir()
    (ours.folder / f"{'1' * 64}.segment").symlink_to("nowhere")
    (ours.folder / "README").write_text("not a segment")
    assert not ours.get(rows)[0].any()
    assert [word in " ".join(ours.warnings) for word in (source.name, "0" * 64, "broken link")] == [True] * 3
    assert ours.put(rows, values(rows)) == 30
    assert ours.get(rows)[0].all()
    assert (ours.folder / source.name).exists()


def test_many_segments_become_few_and_lose_nothing(tmp_path: Path) -> None:
    rows = digests(0, 1000)
    writer, reader = store(tmp_path), store(tmp_path)
    for first in range(0, 1000, 20):
        writer.put(rows[first : first + 20], values(rows[first : first + 20]))
        assert reader.get(rows[: first + 20])[0].all()
        assert len(segments(tmp_path)) <= MOST_SEGMENTS + 1
    assert kept(tmp_path, rows) == 1000
    stale = writer.folder / f".{'a' * 64}.segment.xyz.tmp"
    fresh = writer.folder / f".{'b' * 64}.segment.xyz.tmp"
    for leftover in (stale, fresh):
        leftover.write_bytes(b"half")
    os.utime(stale, (0, 0))
    writer.compact()
    assert len(segments(tmp_path)) == 1
    assert (stale.exists(), fresh.exists()) == (False, True)
    assert kept(tmp_path, rows) == 1000
    assert writer.warnings == reader.warnings == []


def test_a_folder_that_cannot_be_written_keeps_nothing_and_says_so(tmp_path: Path) -> None:
    """Below a file: what a read-only folder is to a user who is not root."""
    (tmp_path / "file").write_text("")
    rows = digests(0, 5)
    blocked = store(tmp_path / "file")
    assert not blocked.get(rows)[0].any()
    assert blocked.put(rows, values(rows)) == 0
    assert "Nothing is kept" in blocked.warnings[-1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_still_read(tmp_path: Path) -> None:
    rows = digests(0, 5)
    store(tmp_path).put(rows, values(rows))
    read_only = store(tmp_path)
    read_only.folder.chmod(0o555)
    try:
        assert read_only.get(rows)[0].all()
        assert read_only.put(digests(5, 9), values(digests(5, 9))) == 0
        assert "Nothing is kept" in read_only.warnings[-1]
    finally:
        read_only.folder.chmod(0o755)


@pytest.mark.parametrize("wrong", ["", "12", "z" * 64, "a" * 63 + " ", "a" * 128])
def test_what_is_no_digest_is_named(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(DataError, match="digest"):
        store(tmp_path).get([*digests(0, 2), wrong])


def test_values_of_another_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="do not fit"):
        store(tmp_path).put(digests(0, 2), np.zeros((2, VALUE_BYTES + 1), np.uint8))


PROGRAM = """
import hashlib, os, random, signal, sys, time
import numpy as np
from calibration.firewall.store import SignatureStore

folder, wanted = sys.argv[1], sys.argv[2]
digest = lambda number: hashlib.sha256(str(number).encode()).hexdigest()
value = lambda row: np.frombuffer(hashlib.sha256(row.encode()).digest()[:24], np.uint8)

def put(numbers):
    rows = [digest(number) for number in numbers]
    store.put(rows, np.stack([value(row) for row in rows]))

children = []
for child in range(60 if wanted == "kill" else 4):
    pid = os.fork()
    if pid == 0:
        store = SignatureStore(folder, "text", "v1", 24)
        chance = random.Random(child)
        if wanted == "kill":
            while True:
                put([chance.randrange(3000) for _ in range(10)])
        for first in range(0, 400, 10):
            put(range(first + child * 100, first + child * 100 + 10))
        os._exit(0 if not store.warnings else 1)
    children.append(pid)
    if wanted == "kill":
        time.sleep(random.Random(child).uniform(0.002, 0.04))
        os.kill(children.pop(), signal.SIGKILL)
        os.waitpid(pid, 0)
for pid in children:
    if os.waitpid(pid, 0)[1]:
        sys.exit("a writer saw a damaged segment")
"""


@pytest.mark.parametrize("wanted", ["kill", "together"])
def test_killed_and_concurrent_writers_leave_a_sound_store(tmp_path: Path, wanted: str) -> None:
    """60 writers in turn killed by SIGKILL while they put and compact; or four at once whose rows overlap, of which none is lost."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path), wanted], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = digests(0, 3000 if wanted == "kill" else 700)
    assert kept(tmp_path, rows) > 100 if wanted == "kill" else kept(tmp_path, rows) == 700
    after = store(tmp_path)
    missing = len(rows) - int(after.get(rows)[0].sum())
    assert after.warnings == []
    assert after.put(rows, values(rows)) == missing
    assert kept(tmp_path, rows) == len(rows)


def test_verdicts_are_kept_whichever_row_comes_first(tmp_path: Path) -> None:
    left, right = digests(0, 4), digests(10, 14)
    verdicts = VerdictStore(tmp_path, "text", "v1")
    assert verdicts.put(left[:3], right[:3], [0.0, 0.25, None]) == 3
    found, distances = VerdictStore(tmp_path, "text", "v1").get(right, left)
    assert found.tolist() == [True, True, True, False]
    np.testing.assert_array_equal(distances, [0.0, 0.25, np.nan, np.nan])
    assert not VerdictStore(tmp_path, "text", "v2").get(left, right)[0].any()
    assert not VerdictStore(tmp_path, "text", "v1").get(left[:1], left[:1])[0].any()
    assert verdicts.put([], [], []) == 0
    assert verdicts.warnings == []
