"""One INT8 and one float engine of every backend that builds here, built once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import tiny_onnx

import engines
from pipeline.platforms import fingerprint
from pipeline.records import Engine, Platform


@dataclasses.dataclass(frozen=True)
class Built:
    """Engine folders and the models they were built from, by precision."""

    target: str
    platform: Platform
    models: dict[str, Path]
    folders: dict[str, Path]
    engines: dict[str, Engine]

    def build(self, model: Path, folder: Path, precision: str = "int8", **changes: object) -> Engine:
        """Build with the tiny net's declaration, changed as given."""
        declared = {"inputs": tiny_onnx.INPUTS, "outputs": tiny_onnx.OUTPUTS, "shapes": tiny_onnx.SHAPES, "platform": self.platform}
        return engines.backend(self.target).build(model, folder, target=self.target, precision=precision, **{**declared, **changes})


def platform_of(target: str) -> Platform:
    backend = engines.backend(target)
    return fingerprint(target, backend.platform_key(target), backend.unavailable(target))


@pytest.fixture(scope="session", params=engines.targets())
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    target = request.param
    platform = platform_of(target)
    if platform.unavailable:
        pytest.skip(f"{target}: {platform.unavailable}")
    root = tmp_path_factory.mktemp(target)
    schemes = {"int8": engines.backend(target).SCHEMES[target][-1], "float32": None}
    models = {precision: tiny_onnx.conv_net(root / f"{precision}.onnx", scheme=scheme) for precision, scheme in schemes.items()}
    empty = Built(target, platform, models, {}, {})
    folders = {precision: root / precision for precision in models}
    return dataclasses.replace(empty, folders=folders, engines={name: empty.build(models[name], folders[name], name) for name in models})


@pytest.fixture
def running(built: Built) -> Built:
    """The engines of a backend that can run here too; elsewhere the test is skipped with the backend's own reason."""
    if reason := engines.backend(built.target).unrunnable(built.target):
        pytest.skip(f"{built.target}: {reason}")
    return built
