"""The manifest's arguments are those of the real command, and what it probes and mounts is there."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from serving import ROOT

from fleet.main import build_parser
from fleet.settings import read_settings
from pipeline.errors import RecordError

DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all((ROOT / "docs/fleet/kubernetes.yaml").read_text()))
PODS = [item["spec"]["template"]["spec"] if item["kind"] == "Deployment" else item["spec"] for item in DOCUMENTS if item["kind"] != "ConfigMap"]


@pytest.mark.parametrize("pod", PODS)
def test_arguments_are_understood_and_mounts_are_volumes(pod: dict[str, Any]) -> None:
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes
        if container["args"][0] == "control":
            arguments = build_parser().parse_args(container["args"])
            assert arguments.act
            assert arguments.port == container["ports"][0]["containerPort"]


def test_the_fleet_file_is_read_until_its_bundles_are_missing(tmp_path: Any) -> None:
    [settings] = [item["data"]["fleet.json"] for item in DOCUMENTS if item["kind"] == "ConfigMap"]
    path = tmp_path / "fleet.json"
    path.write_text(settings)
    assert len(json.loads(settings)["models"]) == 2
    with pytest.raises(RecordError, match="missing"):
        read_settings(path)
