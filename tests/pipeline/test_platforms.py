"""The fingerprint: stable on one machine, without anything that differs between equal machines."""

from __future__ import annotations

import dataclasses
import os
import socket

from pipeline.gpus import Gpu
from pipeline.platforms import difference, fingerprint, isa, library_versions, machine_facts, physical_cores, usable_cores, version_numbers


def test_key_and_machine_id_are_apart_and_repeatable() -> None:
    one, two = (fingerprint("t", {"runtime": version}, None) for version in ("1", "2"))
    assert one == fingerprint("t", {"runtime": "1"}, None)
    assert one.key != two.key
    assert one.machine_id == two.machine_id


def test_nothing_that_names_this_very_machine_is_recorded() -> None:
    text = fingerprint("t", {}, None).to_text()
    assert socket.gethostname() not in text
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        assert stream.read().strip() not in text


def test_facts_are_there() -> None:
    facts = machine_facts()
    assert int(facts["cores"]) >= 1
    assert int(facts["memory_gib"]) >= 1
    assert facts["isa"] == isa() != ""


def test_difference_is_one_line_a_key() -> None:
    assert difference({"openvino": "1", "isa": "avx2"}, {"openvino": "2", "isa": "avx2"}) == ["openvino: built for 1, here 2"]
    assert difference({"a": "1"}, {"b": "1"}) == ["a: built for 1, here nothing", "b: built for nothing, here 1"]
    assert difference({"a": "1"}, {"a": "1"}) == []


def test_versions_compare_as_numbers() -> None:
    assert version_numbers("580.65.06") > version_numbers("580.9") > version_numbers("unknown") == ()
    assert version_numbers("10.13.3.9.post1") == (10, 13, 3, 9)


def test_what_a_gpu_adds_is_what_a_latency_on_it_depends_on() -> None:
    gpu = Gpu("NVIDIA L4", "8.9", 22, "570.10.01", "12.8")
    with_gpu, without = (fingerprint("t", {"a": "1"}, None, gpu=given) for given in (gpu, None))
    assert with_gpu.key == without.key
    assert with_gpu.machine_id != without.machine_id
    assert set(with_gpu.machine_fields) - set(without.machine_fields) == set(gpu.machine_fields())
    newer = fingerprint("t", {"a": "1"}, None, gpu=dataclasses.replace(gpu, driver="580.65.06"))
    assert newer.machine_id != with_gpu.machine_id


def test_provenance_names_what_is_installed_and_is_in_no_key() -> None:
    record = fingerprint("t", {"a": "1"}, None)
    assert library_versions().items() <= record.provenance.items()
    assert "numpy" not in library_versions()
    assert all(version != "absent" for version in record.provenance.values())


def test_cores_are_those_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    assert 1 <= physical_cores() <= usable_cores() == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert physical_cores() == usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
