"""Pictures of one original are found through what is done to pictures; pictures that are merely alike are not."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from calibration.firewall.pictures import Pictures

SHARED = Path(__file__).resolve().parents[3].parent / "shared"
PICTURES = Pictures()
Picture = np.ndarray


def mosaic(seed: int, side: int = 96) -> Picture:
    """Coloured cells around random points, each with a slope of its own."""
    generator = np.random.default_rng(seed)
    points, colours = generator.random((24, 2)) * side, generator.integers(20, 236, (24, 3))
    down, across = np.mgrid[:side, :side]
    nearest = np.argmin((down[..., None] - points[:, 0]) ** 2 + (across[..., None] - points[:, 1]) ** 2, axis=2)
    slopes = generator.normal(0, 0.8, (24, 2))
    shade = (slopes[nearest, 0] * (down - side / 2) + slopes[nearest, 1] * (across - side / 2))[..., None]
    return np.clip(colours[nearest] + shade, 0, 255).astype(np.uint8)


def waves(seed: int, side: int = 80) -> Picture:
    """Many plane waves of random direction, length and colour: structure at all sizes, edges at none."""
    generator = np.random.default_rng(seed)
    down, across = np.mgrid[:side, :side] / side
    total = np.full((side, side, 3), 128.0)
    for _ in range(40):
        frequency, angle, phase = generator.uniform(1, 14), generator.uniform(0, np.pi), generator.uniform(0, 2 * np.pi)
        wave = np.sin(2 * np.pi * frequency * (down * np.sin(angle) + across * np.cos(angle)) + phase)
        total += wave[..., None] * generator.normal(0, 40 / frequency**0.5, 3)
    return np.clip(total, 0, 255).astype(np.uint8)


def image(picture: Picture) -> Image.Image:
    return Image.fromarray(picture)


def jpeg(picture: Picture, quality: int) -> Picture:
    stream = io.BytesIO()
    image(picture).save(stream, "JPEG", quality=quality)
    return np.asarray(Image.open(stream)).copy()


def resized(picture: Picture, height: int, width: int) -> Picture:
    return np.asarray(image(picture).resize((width, height), Image.Resampling.BICUBIC))


def cropped(picture: Picture, left: int, top: int, right: int, bottom: int) -> Picture:
    return picture[top : picture.shape[0] - bottom, left : picture.shape[1] - right]


def framed(picture: Picture, width: int, level: int) -> Picture:
    return np.pad(picture, ((width, width), (width, width), (0, 0)), constant_values=level)


def turned(picture: Picture, degrees: float) -> Picture:
    return np.asarray(image(picture).rotate(degrees, Image.Resampling.BICUBIC))


def stamped(picture: Picture) -> Picture:
    layer = Image.new("L", picture.shape[1::-1], 0)
    ImageDraw.Draw(layer).text((picture.shape[1] // 6, picture.shape[0] // 2), "(c) nobody", fill=140)
    return np.asarray(Image.composite(Image.new("RGB", layer.size, "white"), image(picture), layer))


def hue_shifted(picture: Picture, steps: int) -> Picture:
    hsv = np.asarray(image(picture).convert("HSV")).copy()
    hsv[..., 0] += np.uint8(steps)
    return np.asarray(Image.fromarray(hsv, "HSV").convert("RGB"))


def shifted(picture: Picture, levels: int) -> Picture:
    return np.clip(picture.astype(np.int16) + levels, 0, 255).astype(np.uint8)


CHANGES: dict[str, Callable[[Picture], Picture]] = {
    "nothing": lambda p: p.copy(),
    "jpeg_60": lambda p: jpeg(p, 60),
    "jpeg_30": lambda p: jpeg(p, 30),
    "brighter": lambda p: shifted(p, 25),
    "darker": lambda p: shifted(p, -25),
    "less_contrast": lambda p: (p * 0.7 + 30).astype(np.uint8),
    "left_right": lambda p: p[:, ::-1],
    "upside_down": lambda p: p[::-1],
    "cropped": lambda p: cropped(p, 3, 1, 4, 3),
    "cropped_and_stretched": lambda p: resized(cropped(p, 4, 4, 4, 4), *p.shape[:2]),
    "half_size": lambda p: resized(p, p.shape[0] // 2, p.shape[1] // 2),
    "other_shape": lambda p: resized(p, p.shape[0], p.shape[1] * 3 // 2),
    "framed": lambda p: framed(p, 5, 255),
    "frame_over": lambda p: framed(cropped(p, 3, 3, 3, 3), 3, 90),
    "turned_2": lambda p: turned(p, 2),
    "stamped": stamped,
    "hue_shifted": lambda p: hue_shifted(p, 30),
    "grey": lambda p: np.asarray(image(p).convert("L")),
    "flipped_cropped_jpeg": lambda p: jpeg(cropped(p[:, ::-1], 2, 3, 1, 2), 75),
}
ORIGINALS = [make(seed) for seed in range(8) for make in (mosaic, waves)]


def near(left: Picture, right: Picture) -> float | None:
    return PICTURES.distance(PICTURES.evidence(left), PICTURES.evidence(right))


def signatures(rows: list[Picture]) -> np.ndarray:
    return np.array([PICTURES.sign(row) for row in rows])


def findings(left: list[Picture], right: list[Picture]) -> set[tuple[int, int]]:
    """Index pairs that the index brings up and the comparison confirms."""
    evidence = [[PICTURES.evidence(row) for row in rows] for rows in (left, right)]
    pairs = PICTURES.candidates(signatures(left), signatures(right)).tolist()
    return {(i, j) for i, j in pairs if PICTURES.distance(evidence[0][i], evidence[1][j]) is not None}


def look_alikes(rows: list[Picture]) -> list[tuple[int, int]]:
    """Index pairs of different rows that are found near."""
    evidence = [PICTURES.evidence(row) for row in rows]
    pairs = PICTURES.candidates(*[signatures(rows)] * 2).tolist()
    assert {(i, i) for i in range(len(rows))} <= {tuple(pair) for pair in pairs}
    return [(i, j) for i, j in pairs if i < j and PICTURES.distance(evidence[i], evidence[j]) is not None]


def digits() -> list[Picture]:
    from sklearn.datasets import load_digits

    return [np.rint(scan * 255 / 16).astype(np.uint8) for scan in load_digits().images]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_copy_is_found_and_nothing_else(change: str) -> None:
    rows = ORIGINALS[:8]
    assert findings([CHANGES[change](row) for row in rows], ORIGINALS) == {(i, i) for i in range(len(rows))}


def test_the_distance_grows_with_the_change() -> None:
    original = ORIGINALS[0]
    distances = [near(original, changed) for changed in (original, jpeg(original, 90), jpeg(original, 30))]
    assert distances[0] == pytest.approx(0, abs=1e-6)
    assert None not in distances
    assert distances == sorted(distances)


def test_different_pictures_are_not_near() -> None:
    evidence = [PICTURES.evidence(row) for row in ORIGINALS]
    assert [pair for pair in itertools.combinations(range(len(evidence)), 2) if PICTURES.distance(*(evidence[i] for i in pair)) is not None] == []


def test_no_two_of_the_digits_are_near() -> None:
    """1,797 scans, of which 8 in 10 have a look-alike within 4 of 56 hash bits; none has a true copy."""
    assert look_alikes(digits()) == []


@pytest.mark.parametrize("side", [16, 32])
def test_no_two_enlarged_digits_are_near(side: int) -> None:
    assert look_alikes([resized(row, side, side) for row in digits()[:250]]) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda p: shifted(p, 20),
        lambda p: (p * 0.7 + 20).astype(np.uint8),
        lambda p: p[:, ::-1],
        lambda p: jpeg(p, 90),
        lambda p: p.repeat(3, axis=0).repeat(3, axis=1),
        lambda p: resized(p, 16, 16),
    ],
    ids=["brighter", "less_contrast", "left_right", "jpeg_90", "three_times", "twice_smoothly"],
)
def test_a_copy_of_a_digit_is_found_where_eight_pixels_tell_it(change: Callable[[Picture], Picture]) -> None:
    rows = digits()[:60]
    found = findings([change(row) for row in rows], rows)
    assert {i for i, j in found if i != j} == set()
    assert len(found) >= 57


def test_frames_of_one_scene_with_something_else_in_them_are_different() -> None:
    frames = []
    for seed in range(6):
        frame = waves(1, 128).astype(np.float64)
        down, across = np.mgrid[:128, :128]
        row, column = np.random.default_rng(seed).integers(34, 94, 2)
        inside = (down - row) ** 2 + (across - column) ** 2 < 34**2
        frame[inside] = waves(100 + seed, 128)[inside]
        frames.append(np.clip(frame + np.random.default_rng(50 + seed).normal(0, 2, frame.shape), 0, 255).astype(np.uint8))
    assert [pair for pair in itertools.combinations(range(6), 2) if near(frames[pair[0]], frames[pair[1]]) is not None] == []


def test_a_plain_ground_with_one_corner_filled_is_like_no_other() -> None:
    first, second = np.full((2, 64, 64), 250, np.uint8)
    first[50:, :16] = np.random.default_rng(0).integers(0, 90, (14, 16))
    second[48:, :18] = 40
    assert near(first, second) is None


def test_flat_pictures_are_near_only_when_they_are_equal() -> None:
    noise = np.random.default_rng(3).integers(-3, 4, (16, 16, 3))
    rows = [shifted(np.full((16, 16, 3), 20 * level + step, np.uint8), 0) + noise for level in range(1, 6) for step in range(4)]
    rows = [row.astype(np.uint8) for row in rows]
    assert look_alikes(rows) == []
    levels = [np.full((30, 30), level, np.uint8) for level in range(0, 256, 5)]
    assert look_alikes(levels) == []
    assert near(levels[3], np.full((7, 90, 3), 15, np.uint8)) == 0
    assert near(levels[3], levels[3] + np.uint8(1)) is None
    assert near(levels[3], mosaic(0)) is None


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 2), (1, 50), (50, 1, 3), (2, 2), (8, 8), (7, 3, 3), (20, 20), (19, 400), (20, 3000, 3), (2500, 21), (33, 47)]
)
def test_every_size_has_a_signature_and_is_near_itself(shape: tuple[int, ...]) -> None:
    picture = np.random.default_rng(len(shape) + shape[0]).integers(0, 256, shape, dtype=np.uint8)
    signature = PICTURES.sign(picture)
    assert (signature.shape, signature.dtype) == ((PICTURES.signature_bytes,), np.uint8)
    assert near(picture, picture) == pytest.approx(0, abs=1e-5)
    assert [0, 0] in PICTURES.candidates(signature[None], signature[None]).tolist()
    assert near(picture, mosaic(5)) is None


def test_a_grey_copy_is_near_its_colour_picture_from_both_sides() -> None:
    grey = CHANGES["grey"](ORIGINALS[0])
    assert near(grey, ORIGINALS[0]) is not None
    assert near(ORIGINALS[0], grey) is not None
    assert near(np.repeat(grey[..., None], 3, axis=2), grey) == pytest.approx(0, abs=1e-4)


def test_the_signature_depends_on_the_pixels_alone() -> None:
    picture = ORIGINALS[0]
    expected = PICTURES.sign(picture)
    assert np.array_equal(PICTURES.sign(np.asfortranarray(picture)), expected)
    assert np.array_equal(PICTURES.sign(picture[:, ::-1][:, ::-1]), expected)
    assert not np.array_equal(PICTURES.sign(ORIGINALS[1]), expected)


def test_the_signature_is_the_same_on_every_machine() -> None:
    """A change here is a change of the algorithm: raise its number too."""
    down, across = np.mgrid[:70, :50]
    picture = np.stack([(down * 7 + across * 3) % 256, (down * across) % 251, (across * 11) % 256], axis=2).astype(np.uint8)
    assert hashlib.sha256(PICTURES.sign(picture).tobytes()).hexdigest() == "d268bf25822c4bc49252b2a217a2786b5d7f2228617aa95b6a89be8a983fdcd6"


def test_the_version_names_algorithm_and_parameters() -> None:
    assert PICTURES.version.startswith("rings-2 ")
    assert PICTURES.version == Pictures().version
    assert "found=0.87" in PICTURES.version
    assert replace(PICTURES, found=0.9).version != PICTURES.version


def test_candidates_are_distinct_sorted_and_the_same_from_both_sides() -> None:
    left, right = signatures(ORIGINALS), signatures([jpeg(row, 50) for row in ORIGINALS[:5]])
    pairs = PICTURES.candidates(left, right)
    assert pairs.dtype == np.int64
    assert pairs.tolist() == sorted(map(list, {tuple(pair) for pair in pairs.tolist()}))
    assert {(i, j) for j, i in PICTURES.candidates(right, left).tolist()} == {tuple(pair) for pair in pairs.tolist()}
    assert {(i, i) for i in range(5)} <= {tuple(pair) for pair in pairs.tolist()}
    assert PICTURES.candidates(left[:0], right).shape == (0, 2)
    assert PICTURES.candidates(left, right[:0]).shape == (0, 2)


def test_all_of_many_copies_are_brought_up() -> None:
    copies = [jpeg(ORIGINALS[1], quality) for quality in range(50, 98)]
    pairs = PICTURES.candidates(signatures(ORIGINALS[:4]), signatures([*ORIGINALS[2:], *copies]))
    assert {j for i, j in pairs.tolist() if i == 1} >= set(range(14, 14 + len(copies)))


def test_leaked_rows(tmp_path: Path) -> None:
    source = SHARED / "cases" / "make_cases.py"
    if not source.exists():
        pytest.skip("shared/cases is not beside this repository")
    spec = importlib.util.spec_from_file_location("make_cases", source)
    assert spec is not None
    assert spec.loader is not None
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
    cases.leaked_rows(tmp_path)
    left, right = ([np.asarray(Image.open(path)) for path in sorted((tmp_path / side).iterdir())] for side in "ab")
    lines = [line.split(",") for line in (tmp_path / "truth.csv").read_text().split()[1:]]
    truth = {(int(source[2:5]), int(leaked[2:5])) for leaked, source, _ in lines}
    assert len(truth) == 40
    assert findings(left, right) == truth


def test_frames_of_one_scene_do_not_crowd_out_its_copy() -> None:
    """Forty frames in which a block moved are all closer in their lowest coefficients than a cropped copy, and none of them is a copy."""
    kind, scene, generator = Pictures(), octaves(1), np.random.default_rng(24)
    frames = [scene.copy() for _ in range(40)]
    for index, frame in enumerate(frames):
        top, left = generator.integers(0, 40, 2)
        frame[top : top + 24, left : left + 24] = octaves(100 + index)[:24, :24]
    copy = np.asarray(image(scene[6:58, 6:58]).resize((64, 64)))
    rows = np.stack([kind.sign(picture) for picture in [*frames, copy]])
    assert [40, 0] in kind.candidates(rows, kind.sign(scene)[np.newaxis]).tolist()
    assert kind.distance(kind.evidence(copy), kind.evidence(scene)) is not None
    assert all(kind.distance(kind.evidence(frame), kind.evidence(scene)) is None for frame in frames)


def octaves(seed: int) -> Picture:
    """(64, 64, 3): noise of four sizes, the larger the stronger."""
    generator = np.random.default_rng(seed)
    noise = {cells: generator.integers(0, 256, (cells, cells, 3), dtype=np.uint8) for cells in (4, 8, 16, 32)}
    total = sum(np.asarray(image(grid).resize((64, 64), Image.Resampling.BICUBIC), np.float64) / cells for cells, grid in noise.items())
    return np.asarray((total - np.min(total)) / np.ptp(total) * 255, np.uint8)
