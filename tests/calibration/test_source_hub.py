"""Data sets of the Hub: from a made-up cache, offline; and how to fill one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from source_writers import colour, encoded, write_folder, write_parquet

from calibration.sources import Source, open_rows
from pipeline.config import SourceConfig
from pipeline.errors import DataError

REVISION = "0123456789abcdef0123456789abcdef01234567"
CARD = """---
configs:
- config_name: big
  data_files:
  - {split: train, path: data/train-*.parquet}
  - {split: test, path: data/test-*.parquet}
- config_name: small
  data_files:
  - {split: test, path: small.parquet}
dataset_info:
- config_name: big
  features:
  - {name: x, dtype: int64}
  - name: label
    dtype:
      class_label:
        names: {'0': dog, '1': cat}
  splits:
  - {name: train, num_bytes: 1, num_examples: 3}
  - {name: test, num_bytes: 1, num_examples: 1}
- config_name: small
  features:
  - {name: x, dtype: int64}
  - {name: label, dtype: string}
---
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A snapshot folder as the Hub's own client lays it out: links into `blobs`."""
    from huggingface_hub import constants

    home = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = home / "datasets--someone--animals"
    snapshot = repository / "snapshots" / REVISION
    (repository / "blobs").mkdir(parents=True)
    (snapshot / "data").mkdir(parents=True)
    files = {
        "README.md": CARD.encode(),
        "small.parquet": _parquet(tmp_path, [7], ["cat"]),
        "more.csv": b"x\n1\n",
        "data/train-0.parquet": _parquet(tmp_path, [1, 2], [0, 1]),
        "data/train-1.parquet": _parquet(tmp_path, [3], [0]),
        "data/test-0.parquet": _parquet(tmp_path, [9], [1]),
    }
    for number, (name, content) in enumerate(files.items()):
        (repository / "blobs" / str(number)).write_bytes(content)
        (snapshot / name).symlink_to(repository / "blobs" / str(number))
    return snapshot


def _parquet(folder: Path, x: list[int], label: list[int] | list[str]) -> bytes:
    return write_parquet(folder / "scratch.parquet", pa.table({"x": x, "label": label})).read_bytes()


def hub(**given: object) -> SourceConfig:
    return SourceConfig.model_validate({"kind": "hub", "name": "someone/animals", "revision": REVISION, **given})


def open_hub(**given: object) -> Source:
    return open_rows(hub(**given), {"x": "x", "label": "label"}, ("cat", "dog"))


@pytest.mark.usefixtures("cache")
def test_a_cached_data_set_is_read_offline_as_its_card_says() -> None:
    source = open_hub(config="big")
    assert [(row.id, int(row.raw["x"]), row.label) for row in source.rows()] == [
        ("data/train-0.parquet:0000000", 1, 1),
        ("data/train-0.parquet:0000001", 2, 0),
        ("data/train-1.parquet:0000000", 3, 1),
    ], "classes are bound by the names in the card"
    assert source.name == f"someone/animals@{REVISION[:12]}"
    assert [int(row.raw["x"]) for row in open_hub(config="big", split="test").rows()] == [9]
    small = open_hub(config="small")
    assert [(row.id, row.label) for row in small.rows()] == [("small.parquet:0000000", 0)]
    assert len({source.sha256, small.sha256, open_hub(config="big", split="test").sha256}) == 3


@pytest.mark.usefixtures("cache")
def test_files_are_taken_by_pattern() -> None:
    source = open_rows(hub(files=["data/*-0.parquet"]), {"x": "x"})
    assert [row.id for row in source.rows()] == ["data/test-0.parquet:0000000", "data/train-0.parquet:0000000", "data/train-0.parquet:0000001"]
    with pytest.raises(DataError, match=r"(?s)not of one kind.*more.csv"):
        open_rows(hub(files=["*.csv", "data/*"]), {"x": "x"})
    with pytest.raises(DataError, match=r"(?s)No file.*more.csv"):
        open_rows(hub(files=["*.tar"]), {"x": "x"})


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "(?s)cannot be read as it is.*big.*small"),
        ({"config": "none"}, "(?s)cannot be read as it is.*none"),
        ({"config": "big", "split": "dev"}, "(?s)no such split.*train, test.*dev"),
    ],
)
def test_what_the_card_does_not_have(given: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_hub(**given)


def test_a_cache_that_holds_some_of_the_files_is_not_the_data_set(cache: Path) -> None:
    (cache / "data" / "train-1.parquet").unlink()
    with pytest.raises(DataError, match="(?s)not complete.*3 rows.*2 rows in 1 files"):
        open_hub(config="big")


@pytest.mark.usefixtures("cache")
def test_what_is_not_cached_says_how_to_cache_it() -> None:
    with pytest.raises(DataError) as caught:
        open_rows(hub(name="someone/else", files=["data/*.parquet"]), {"x": "x"})
    command = f"hf download someone/else --repo-type dataset --revision {REVISION} --include 'data/*.parquet' --include README.md"
    assert command in caught.value.next
    assert "kind: parquet" in caught.value.next


def test_no_script_of_a_data_set_is_run(cache: Path) -> None:
    (cache / "README.md").unlink()
    for path in [*(cache / "data").iterdir(), *cache.glob("*.csv"), *cache.glob("*.parquet")]:
        path.unlink()
    trace = cache.parent / "trace"
    (cache / "animals.py").write_text(f"open({str(trace)!r}, 'w')")
    with pytest.raises(DataError, match="cannot be read as it is"):
        open_hub()
    assert not trace.exists()


def test_pictures_of_a_data_set_lie_behind_links(cache: Path) -> None:
    (cache / "README.md").unlink()
    blobs = cache.parents[1] / "blobs"
    write_folder(blobs, {"p": encoded(colour(1)[0]), "q": encoded(colour(2)[1])})
    for name, blob in (("cat/1.png", "p"), ("dog/1.png", "q")):
        (cache / "pictures" / name).parent.mkdir(parents=True)
        (cache / "pictures" / name).symlink_to(blobs / blob)
    source = open_rows(hub(files=["pictures/*.png"]), {"image": "image", "label": "label"}, ("dog", "cat"))
    assert [(row.id, row.label) for row in source.rows()] == [("pictures/cat/1.png", 1), ("pictures/dog/1.png", 0)]
