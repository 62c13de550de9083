"""The cache store on real files and processes: whatever happens to it, no read ever gives other bytes than were kept."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines import caches
from engines.caches import Found, Key, State, Store
from pipeline.errors import ConfigError
from pipeline.files import replacing_folder

GIB = 1 << 30
PROCESSES = multiprocessing.get_context("fork")


def key(model: str = "a", isa: str = "avx2", subject: str = "engine of a.onnx") -> Key:
    return Key("engine", {"model_sha256": model, "isa": isa}, subject)


def maker(content: bytes, built: list[bytes] | None = None):
    def make(folder: Path) -> None:
        with replacing_folder(folder) as work:
            (work / "engine.json").write_bytes(b"{}")
            (work / "sub").mkdir()
            (work / "sub" / "blob").write_bytes(content)
        if built is not None:
            built.append(content)

    return make


def fill(store: Store, folder: Path, content: bytes = b"content" * 1000, one: Key | None = None) -> tuple[Found, bytes]:
    found = store.get_or_make(one or key(), folder, maker(content))
    assert (folder / "engine.json").read_bytes() == b"{}"
    return found, (folder / "sub" / "blob").read_bytes()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", GIB)


def test_a_miss_is_made_and_kept_and_the_next_is_a_hit(store: Store, tmp_path: Path) -> None:
    assert fill(store, tmp_path / "one") == (Found(State.MISS), b"content" * 1000)
    assert fill(store, tmp_path / "two", b"never made") == (Found(State.HIT), b"content" * 1000)
    assert [kept.fault for kept in store.entries(verify=True)] == [None]
    assert {path.name for path in store.root.iterdir()} == {"engine", caches.LOCKS}


def test_what_is_stale_says_which_key_changed_from_what_to_what(store: Store, tmp_path: Path) -> None:
    fill(store, tmp_path / "one")
    found, got = fill(store, tmp_path / "two", b"other", key(isa="amx", subject="elsewhere"))
    assert (found, got) == (Found(State.STALE, ("isa: built for avx2, here amx",)), b"other")
    found, _ = fill(store, tmp_path / "two", b"third", key(model="b"))
    assert found == Found(State.STALE, ("model_sha256: built for a, here b",))
    assert str(found) == "stale: model_sha256: built for a, here b"
    found, _ = fill(store, tmp_path / "two", b"fourth", key(model="c", subject="engine of c.onnx"))
    assert found == Found(State.MISS)  # neither the same thing nor the same model
    elsewhere = Key("engine", {**key().fields, "target": "another"}, key().subject)
    assert fill(store, tmp_path / "two", b"fifth", elsewhere)[0] == Found(State.MISS), "another target's engine is not this one's, gone stale"


def damage(folder: Path, other: Path, how: str) -> None:
    blob, entry = folder / "sub" / "blob", folder / caches.ENTRY
    content = blob.read_bytes()
    if how == "flip":
        blob.write_bytes(content[:9] + bytes([content[9] ^ 1]) + content[10:])
    elif how == "truncate":
        blob.write_bytes(content[:-1])
    elif how == "empty":
        blob.write_bytes(b"")
    elif how == "swap":
        blob.write_bytes((other / "sub" / "blob").read_bytes())
    elif how == "remove":
        blob.unlink()
    elif how == "link":
        blob.rename(folder / "elsewhere")
        blob.symlink_to(folder / "elsewhere")
    elif how == "torn record":
        entry.write_text(entry.read_text()[:40])
    elif how == "empty record":
        entry.write_bytes(b"")
    elif how == "foreign record":
        entry.write_bytes((other / caches.ENTRY).read_bytes())
    elif how == "foreign entry":
        folder.rename(folder.with_name("aside"))
        other.rename(folder)
    elif how == "path that leaves":
        entry.write_text(entry.read_text().replace("sub/blob", "../../blob"))


DAMAGES = (
    "flip", "truncate", "empty", "swap", "remove", "link", "torn record", "empty record", "foreign record", "foreign entry", "path that leaves",
)  # fmt: skip


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_entry_is_never_read_and_is_made_again(store: Store, tmp_path: Path, how: str) -> None:
    fill(store, tmp_path / "one")
    fill(store, tmp_path / "other", b"changed" * 1000, key(model="b"))
    damage(store.folder(key()), store.folder(key(model="b")), how)
    assert any(kept.fault for kept in store.entries(verify=True))
    found, got = fill(store, tmp_path / "two")
    assert (found.state, got) == (State.CORRUPT, b"content" * 1000)
    assert str(found).startswith("corrupt (rebuilt): ")
    assert str(store.root) in found.why[0]
    assert fill(store, tmp_path / "three", b"never made") == (Found(State.HIT), b"content" * 1000)


def test_prune_drops_damaged_entries_and_what_killed_writers_left(store: Store, tmp_path: Path) -> None:
    fill(store, tmp_path / "one")
    fill(store, tmp_path / "two", b"whole", key(model="b"))
    damage(store.folder(key()), store.folder(key(model="b")), "flip")
    left = store.folder(key()).parent / f".{key().digest}.abc.tmp"
    left.mkdir()
    (store.root / ".gone-x").mkdir()
    assert [kept.folder for kept in store.prune()] == [store.folder(key())]
    assert {path.name for path in (store.root / "engine").iterdir()} == {key(model="b").digest}
    assert not list(store.root.glob(".gone*"))
    assert not list((store.root / caches.LOCKS).iterdir())
    assert fill(store, tmp_path / "three", b"never made", key(model="b"))[1] == b"whole"
    assert Store(tmp_path / "nowhere", 1).prune() == []


def test_prune_leaves_what_a_builder_holds(store: Store, tmp_path: Path) -> None:
    fill(store, tmp_path / "one")
    with store.locked(key()) as refusal:
        assert refusal is None
        assert store.prune(0) == []
    assert [kept.folder for kept in store.prune(0)] == [store.folder(key())]


def test_least_recently_used_entries_go_first(store: Store, tmp_path: Path) -> None:
    size = 7000 + 2
    store.max_bytes = 3 * size
    for number, model in enumerate("abc"):
        fill(store, tmp_path / "out", one=key(model=model))
        os.utime(store.folder(key(model=model)) / caches.ENTRY, (number, number))
    assert fill(store, tmp_path / "out", one=key(model="a"))[0].state is State.HIT  # now the one used last
    fill(store, tmp_path / "out", one=key(model="d"))
    assert [store.folder(key(model=model)).exists() for model in "abcd"] == [True, False, True, True]
    store.max_bytes = size - 1
    found, got = fill(store, tmp_path / "out", one=key(model="e"))
    assert got == b"content" * 1000
    assert "more than the limit" in found.notes[0]
    assert not store.folder(key(model="e")).exists()


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """As another user than root, whom no mode of a file stops."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_store_is_used_and_not_written(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    store, out = Store(tmp_path / "store", GIB), tmp_path / "out"
    fill(store, tmp_path / "one")
    out.mkdir()
    out.chmod(0o777)
    for folder in (store.root, *store.root.rglob("*")):
        folder.chmod(0o555 if folder.is_dir() else 0o444)
    before = sorted(path.name for path in store.root.rglob("*"))
    request.getfixturevalue("unprivileged")
    assert fill(store, out / "hit") == (Found(State.HIT), b"content" * 1000)
    found, got = fill(store, out / "made", b"made", key(model="b"))
    assert got == b"made"
    assert "read-only" in found.notes[0]
    assert sorted(path.name for path in store.root.rglob("*")) == before


def test_a_store_that_cannot_be_there_costs_only_the_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    found, got = fill(Store(tmp_path / "file" / "store", GIB), tmp_path / "out")
    assert (found.state, got) == (State.MISS, b"content" * 1000)
    assert "read-only" in found.notes[0]


def test_a_full_disk_costs_only_the_cache(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(caches.shutil, "copyfile", full)
    found, got = fill(store, tmp_path / "out")
    assert got == b"content" * 1000
    assert "disk is full" in found.notes[0]
    assert store.entries() == []


@pytest.mark.parametrize("text", ["lots", "-1", "0", "inf", "nan"])
def test_a_limit_that_is_no_size_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(caches.LIMIT_VARIABLE, text)
    with pytest.raises(ConfigError, match=caches.LIMIT_VARIABLE):
        Store()


def build_once(root: Path, out: Path, log: Path, gate) -> None:
    def make(folder: Path) -> None:
        with log.open("a") as stream:
            stream.write("built\n")
        time.sleep(0.05)
        maker(b"from one of four")(folder)

    gate.wait()
    Store(root, GIB).get_or_make(key(), out, make)


def test_four_builders_of_one_key_build_once(tmp_path: Path) -> None:
    gate = PROCESSES.Barrier(4)
    builders = [PROCESSES.Process(target=build_once, args=(tmp_path / "store", tmp_path / str(n), tmp_path / "log", gate)) for n in range(4)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
        assert builder.exitcode == 0
    assert (tmp_path / "log").read_text() == "built\n"
    assert {(tmp_path / str(n) / "sub" / "blob").read_bytes() for n in range(4)} == {b"from one of four"}


def write_for_ever(store: Store) -> None:
    for number in range(1 << 30):
        with store.locked(key()):
            store.keep(key(), {"blob": bytes([number % 256]) * (1 + number % 7) * 1000})


def test_a_writer_that_is_killed_never_leaves_wrong_bytes(store: Store) -> None:
    """Each write is one byte value throughout: any mixture of two would show. `benchmarks/engines.py` does this a thousand times."""
    pause = random.Random(0)
    for _ in range(25):
        writer = PROCESSES.Process(target=write_for_ever, args=(store,))
        writer.start()
        time.sleep(pause.uniform(0.001, 0.02))
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        found, got = store.read(key(), "blob")
        assert found.state in (State.HIT, State.MISS)  # MISS: before the first write, or between two renames
        assert got is None or len(set(got)) == 1
    with store.locked(key()) as refusal:  # the dead hold no lock
        assert refusal is None
    store.prune()
    assert not list(store.root.glob("*/.*"))


def test_reading_while_another_prunes_gives_the_content_or_makes_it(store: Store, tmp_path: Path) -> None:
    stop = threading.Event()

    def prune() -> None:
        while not stop.is_set():
            store.prune(0)

    pruner = threading.Thread(target=prune)
    pruner.start()
    try:
        states = set()
        for number in range(60):
            found, got = fill(store, tmp_path / str(number))
            assert got == b"content" * 1000
            states.add(found.state)
    finally:
        stop.set()
        pruner.join()
    assert states <= {State.HIT, State.MISS}


def test_one_file_of_an_entry_is_read_checked(store: Store) -> None:
    with store.locked(key()):
        assert store.keep(key(), {"timing": b"bytes"}) is None
    assert store.read(key(), "timing") == (Found(State.HIT), b"bytes")
    assert store.read(key(), "another")[0].state is State.CORRUPT
    (store.folder(key()) / "timing").write_bytes(b"junk!")
    found, got = store.read(key(), "timing")
    assert (found.state, got) == (State.CORRUPT, None)
