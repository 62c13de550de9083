"""Roles are drawn from content, held apart by policy, and proven disjoint from the manifest alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_sources import CLASSES, SPECS, pictures, prepare

from calibration.health import Health
from calibration.prove import prove_disjoint
from calibration.roles import MAIN, Drawing, Policy, draw, read, refuse_overlaps
from calibration.sources import Source, open_parquet
from calibration.sources import open_rows as open_any
from pipeline.data_config import HealthConfig, SourceConfig
from pipeline.digests import merkle_root
from pipeline.errors import DataError, Refused
from pipeline.records import Roles

SIZES = {"train": 30, "calibration": 12, "search": 6, "warmup": 3, "validation": "rest"}


def open_rows(path: Path) -> Source:
    return open_parquet(path, {"image": "image", "label": "label"}, CLASSES)


def drawing(sources: Mapping[str, Path], sizes: Mapping[str, int | float | str] = SIZES, policy: Policy = Policy(), **options: Any) -> Drawing:  # noqa: B008
    prepared = options.pop("prepare", prepare)
    health = HealthConfig.model_validate(options.pop("health", {}))
    opened = [read(name, open_rows(path), prepared, SPECS, policy=policy, health=Health(health)) for name, path in sources.items()]
    return draw(opened, sizes=sizes, seed=0, policy=policy, preprocess_sha256="0" * 64, class_names=CLASSES)


def draw_from(path: Path, sizes: Mapping[str, int | float | str] = SIZES) -> Roles:
    return drawing({MAIN: path}, sizes).roles


def content_by_role(roles: Roles) -> dict[str, str]:
    return {digest: name for name, role in roles.roles.items() for digest in role.digests}


def test_counts_labels_and_proof(write_pictures: Callable[..., Path]) -> None:
    roles = draw_from(write_pictures(pictures(90), [i % 3 for i in range(90)]))
    assert {name: len(role.rows) for name, role in roles.roles.items()} == {
        "train": 30,
        "calibration": 12,
        "search": 6,
        "warmup": 3,
        "validation": 39,
    }
    assert all(max(role.labels.values()) - min(role.labels.values()) <= 1 for role in roles.roles.values())
    prove_disjoint(roles)
    assert Roles.from_json(roles.to_json()) == roles


def test_row_order_does_not_matter(write_pictures: Callable[..., Path]) -> None:
    pixels, labels, order = pictures(60), np.arange(60) % 3, np.random.default_rng(5).permutation(60)
    first = draw_from(write_pictures(pixels, labels.tolist(), "a.parquet"))
    second = draw_from(write_pictures(pixels[order], labels[order].tolist(), "b.parquet"))
    assert content_by_role(first) == content_by_role(second)
    assert {name: role.merkle_root for name, role in first.roles.items()} == {name: role.merkle_root for name, role in second.roles.items()}


def test_duplicates_play_one_role(write_pictures: Callable[..., Path]) -> None:
    pixels = pictures(60)
    pixels[[50, 51]] = pixels[[3, 7]]
    labels = (np.arange(60) % 3).tolist()
    labels[50], labels[51] = labels[3], labels[7]
    roles = draw_from(write_pictures(pixels, labels))
    assert [(f.left, f.right, f.action) for f in roles.findings] == [("0000003", "0000050", "moved"), ("0000007", "0000051", "moved")]
    used = [row for role in roles.roles.values() for row in role.rows]
    assert len(used) == 58
    assert not {"0000050", "0000051"} & set(used)


def test_one_content_with_two_labels_is_refused(write_pictures: Callable[..., Path]) -> None:
    pixels = pictures(60)
    pixels[50] = pixels[3]
    path = write_pictures(pixels, [0] * 50 + [1] * 10)
    with pytest.raises(DataError, match="0000003 and 0000050"):
        draw_from(path)
    roles = drawing({MAIN: path}, health={"conflicting_label": "quarantine"}).roles
    assert list(roles.health[MAIN]["conflicting_label"].rows) == ["0000050"]
    assert "0000050" not in {row for role in roles.roles.values() for row in role.rows}


def test_a_row_that_is_not_finite_names_row_and_input(write_pictures: Callable[..., Path]) -> None:
    def broken(raw: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        prepared = prepare(raw)
        if raw["image"][0, 0] == 77:
            prepared["image"][0, 2, 2] = np.nan
        return prepared

    pixels = pictures(60)
    pixels[:, 0, 0] = 0
    pixels[7, 0, 0] = 77
    with pytest.raises(DataError, match="row 0000007, input image"):
        drawing({MAIN: write_pictures(pixels, [0] * 60)}, prepare=broken)
    roles = drawing({MAIN: write_pictures(pixels, [0] * 60)}, prepare=broken, health={"non_finite": "quarantine"}).roles
    assert list(roles.health[MAIN]["non_finite"].rows) == ["0000007"]
    assert roles.sources[MAIN].rows == 60
    assert sum(len(role.rows) for role in roles.roles.values()) == 59


def changed(roles: Roles, name: str, **fields: object) -> Roles:
    return dataclasses.replace(roles, roles={**roles.roles, name: dataclasses.replace(roles.roles[name], **fields)})


def test_the_proof_fails_on_every_tampering(write_pictures: Callable[..., Path]) -> None:
    roles = draw_from(write_pictures(pictures(60), [i % 3 for i in range(60)]))
    warmup, validation = roles.roles["warmup"], roles.roles["validation"]
    stolen = (*warmup.digests[:-1], validation.digests[0])
    for broken in (
        changed(roles, "warmup", merkle_root="0" * 64),
        changed(roles, "warmup", rows=validation.rows[:3]),
        changed(roles, "warmup", digests=stolen, merkle_root=merkle_root(stolen)),
        changed(roles, "warmup", rows=(), digests=(), labels={}, merkle_root=merkle_root(())),
        changed(roles, "warmup", labels={"0": 9}),
    ):
        with pytest.raises(DataError, match="not disjoint"):
            prove_disjoint(broken)


def smooth(count: int, seed: int = 0, side: int = 48) -> list[np.ndarray]:
    """Distinct grey pictures with structure at several scales."""
    from PIL import Image

    g = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        low = Image.fromarray(g.integers(0, 256, (8, 8), dtype=np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
        made.append(np.clip(np.asarray(low, np.int16) + g.integers(-8, 9, (side, side)), 0, 255).astype(np.uint8))
    return made


def shrunk(raw: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return prepare({"image": raw["image"][::6, ::6]})


def jpeg(picture: np.ndarray) -> bytes:
    import io

    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, format="JPEG", quality=60)
    return stream.getvalue()


def labels(count: int) -> list[int]:
    return [i % 3 for i in range(count)]


@pytest.fixture
def leaked(write_pictures: Callable[..., Path]) -> dict[str, Path]:
    """A main source of 60 rows for four roles, and a validation source of 30 of which rows 4 and 9 are copies of main's rows."""
    ours, theirs = smooth(60), [*smooth(30, seed=1)]
    judged: list[np.ndarray | bytes] = list(theirs)
    judged[4], judged[9] = ours[11], jpeg(ours[12])
    return {MAIN: write_pictures(ours, labels(60)), "validation": write_pictures(judged, labels(30), "judged.parquet")}


GIVEN = {"train": 30, "calibration": 18, "search": 6, "warmup": 6}


def test_equal_rows_of_two_sources_are_refused_whatever_the_policy(leaked: dict[str, Path]) -> None:
    for near in ("refuse", "move", "allow"):
        drawn = drawing(leaked, GIVEN, Policy(near=near), prepare=shrunk)
        exact = [finding for finding in drawn.refused if finding.kind == "exact"]
        assert [(f.left, f.right, f.roles[1], f.action) for f in exact] == [("0000011", "0000004", "validation", "refused")]
        with pytest.raises(Refused, match="0000004 equals") as caught:
            refuse_overlaps(drawn, "findings.html")
        assert "row 0000011" in caught.value.where
        assert caught.value.exit_code == 3


@pytest.mark.parametrize(("near", "left"), [("refuse", 30), ("move", 29), ("allow", 30)])
def test_near_rows_follow_the_policy(leaked: dict[str, Path], near: str, left: int) -> None:
    drawn = drawing(leaked, GIVEN, Policy(near=near), prepare=shrunk)
    found = [finding for finding in (*drawn.refused, *drawn.roles.findings) if finding.kind == "near"]
    said = {"refuse": "refused", "move": "moved", "allow": "allowed"}[near]
    assert [(f.left, f.right, f.action) for f in found] == [("0000012", "0000009", said)]
    assert 0 < found[0].distance < 1
    assert len(drawn.roles.roles["validation"].rows) == left
    assert ("0000009" in drawn.roles.roles["validation"].rows) == (near != "move")
    assert (near == "refuse") == any(finding.kind == "near" for finding in drawn.refused)


def test_a_pair_of_roles_may_have_a_policy_of_its_own(leaked: dict[str, Path]) -> None:
    role = next(f.roles[0] for f in drawing(leaked, GIVEN, prepare=shrunk).refused if f.kind == "near")
    drawn = drawing(leaked, GIVEN, Policy(near="refuse", pairs={(role, "validation"): "move"}), prepare=shrunk)
    assert [finding.kind for finding in drawn.refused] == ["exact"]
    assert [finding.action for finding in drawn.roles.findings] == ["moved"]


def test_near_rows_of_one_source_are_met_after_the_draw(write_pictures: Callable[..., Path]) -> None:
    ours: list[np.ndarray | bytes] = [*smooth(40)]
    ours += [jpeg(picture) for picture in smooth(20)]  # rows 40 to 59 are copies of rows 0 to 19
    sizes = {"train": 20, "calibration": 10, "search": 6, "warmup": 6, "validation": "rest"}
    drawn = drawing({MAIN: write_pictures(ours, [i % 40 % 3 for i in range(60)])}, sizes, Policy(near="move"), prepare=shrunk)
    assert not drawn.refused
    kept = {row for role in drawn.roles.roles.values() for row in role.rows}
    owner = {row: name for name, role in drawn.roles.roles.items() for row in role.rows}
    for original, copy in ((f"{i:07d}", f"{40 + i:07d}") for i in range(20)):
        assert not {original, copy} <= kept or owner[original] == owner[copy], (original, copy)
    assert all(f.action == "moved" and f.right not in kept for f in drawn.roles.findings)
    assert drawn.roles.findings


def test_groups_of_two_sources_are_refused_and_hidden(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    from calibration.sources import open_rows as open_any
    from pipeline.data_config import SourceConfig

    g = np.random.default_rng(0)

    def write(name: str, rows: int, patients: Sequence[str]) -> Path:
        table = pyarrow.table({"x": [g.normal(size=8).tolist() for _ in range(rows)], "patient": [patients[i % len(patients)] for i in range(rows)]})
        pyarrow.parquet.write_table(table, tmp_path / name)
        return tmp_path / name

    specs = (dataclasses.replace(SPECS[0], name="x", shape=("batch", 8)),)

    def flat(raw: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return {"x": raw["x"].astype(np.float32)}

    def drawn(patients: Sequence[str]) -> Drawing:
        paths = {MAIN: write("a.parquet", 60, [f"p{i}" for i in range(20)]), "validation": write("b.parquet", 12, patients)}
        opened = [
            read(
                name,
                open_any(SourceConfig(kind="parquet", path=str(path)), {"x": "x"}, group="patient"),
                flat,
                specs,
                policy=Policy(),
                health=Health(),
            )
            for name, path in paths.items()
        ]
        return draw(opened, sizes=GIVEN, seed=0, policy=Policy(near="allow"), preprocess_sha256="0" * 64, class_names=())

    apart = drawn(["q1", "q2"])
    assert not apart.refused
    prove_disjoint(apart.roles)
    assert len({group for role in apart.roles.roles.values() for group in role.groups}) == 22
    assert "p1" not in apart.roles.to_text()
    shared = drawn(["p7", "q1"])
    assert {finding.kind for finding in shared.refused} == {"group"}
    with pytest.raises(Refused, match="1 group"):
        refuse_overlaps(shared, "findings.html")


def test_the_manifest_says_how_far_calibration_is_from_validation(write_pictures: Callable[..., Path]) -> None:
    alike = draw_from(write_pictures(pictures(90), labels(90)))
    by_name = {shift.of: shift for shift in alike.shifts}
    assert set(by_name) == {"labels", "input image: mean", "input image: standard deviation"}
    assert by_name["labels"].distance < 0.1
    dark = [picture // 4 for picture in pictures(30, seed=1)]
    paths = {MAIN: write_pictures(pictures(60), labels(60)), "validation": write_pictures(dark, [0] * 30, "dark.parquet")}
    apart = {shift.of: shift for shift in drawing(paths, GIVEN).roles.shifts}
    assert apart["labels"].distance == pytest.approx(2 / 3, abs=0.01)
    assert apart["input image: mean"].distance > 0.9
    assert apart["input image: mean"].p_value is not None
    assert apart["input image: mean"].p_value < 1e-6


def test_one_content_in_two_groups_is_refused(tmp_path: Path) -> None:
    """Kept once, it would play a role for one group while the other group's rows play another."""
    vectors = np.random.default_rng(0).normal(size=(8, 8, 8)).astype(np.float32)
    vectors[5] = vectors[1]
    np.savez(tmp_path / "rows.npz", image=vectors, patient=np.array(["a", "a", "b", "b", "c", "c", "d", "d"]))
    source = open_any(SourceConfig(kind="npz", path=str(tmp_path / "rows.npz")), {"image": "image"}, group="patient")
    with pytest.raises(DataError, match="0000001 and 0000005"):
        read(MAIN, source, prepare, SPECS, policy=Policy(), health=Health())
    kept = read(MAIN, source, prepare, SPECS, policy=Policy(), health=Health(HealthConfig(conflicting_group="quarantine")))
    assert list(kept.health["conflicting_group"].rows) == ["0000005"]
    assert "0000005" not in {row.id for row in kept.rows}
