"""A process of its own for nvidia-modelopt: it patches ONNX Runtime's quantizer for the rest of a process's life.

`python -m calibration.modelopt_child JOB.json` reads `{"model", "cache", "batch", "output"}` (paths), `exclude` (names of nodes
that stay in float) and `side_files` (whether weights lie beside the models). The parent fixes PYTHONHASHSEED, because modelopt
orders nodes by iterating over sets of names.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


class OneBatch:
    """What modelopt asks a calibration reader for. It looks at shapes; each scale that it derives is replaced from the cache."""

    def __init__(self, batch: dict[str, np.ndarray]) -> None:
        self.batch, self.given = batch, False

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The batch once, then None until `rewind`."""
        if self.given:
            return None
        self.given = True
        return self.batch

    def get_first(self) -> dict[str, np.ndarray]:
        return self.batch

    def rewind(self) -> None:
        self.given = False


def main(job_file: str) -> None:
    """Place Q/DQ in INT8 with fp32 around it, scales from the cache, and write the model to `output`."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    from modelopt.onnx.quantization import quantize

    with np.load(job["batch"]) as arrays:
        batch = {name: arrays[name] for name in arrays.files}
    quantize(
        job["model"],
        quantize_mode="int8",
        calibration_method="max",
        calibration_data_reader=OneBatch(batch),
        calibration_cache_path=job["cache"],
        nodes_to_exclude=job["exclude"],
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=job["output"],
        use_external_data_format=job["side_files"],
        log_level="WARNING",
    )


if __name__ == "__main__":
    main(sys.argv[1])
