"""Networks that the methods were not made on: what fitting weights gains there. Part of `quantization.py`; also runs alone.

    python benchmarks/second_network.py

Trains two small networks on handwritten digits: `residual`, the architecture of `examples/digits` (3x3 convolutions, ReLU), and `transformer`
(pre-norm encoder over 16 patches). Each is exported, calibrated on 256 pictures and quantized with the scheme `cpu` twice, plainly and
fitted; 128 pictures choose the variant, 256 others judge. Prints one JSON object: SQNR in dB and agreement with float, by network, way
and runtime.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import folder_last  # noqa: F401
import numpy as np

EPOCHS, BATCH_ROWS = 6, 50
TRAIN, CALIBRATION, SEARCH = 1157, 256, 128
"""Of 1,797 pictures; the other 256 judge."""
FACTORIES = '''
import torch
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.width, self.heads = width, heads
        self.before_attention, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        def split(y):
            return y.unflatten(-1, (self.heads, self.width // self.heads)).transpose(1, 2)

        y = self.before_attention(x)
        mixed = functional.scaled_dot_product_attention(split(self.query(y)), split(self.key(y)), split(self.value(y)))
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.before_feed(x))))


class Encoder(nn.Module):
    """(N, 1, 32, 32) to logits (N, 10), over 16 patches of 8 x 8."""

    def __init__(self, width=64):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 8, 8)
        self.places = nn.Parameter(torch.zeros(16, width))
        self.layers = nn.Sequential(*(Layer(width) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.layers(x)).mean(1))


def transformer():
    return Encoder()


def residual():
    from examples.digits.model import build

    return build()
'''


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """(1797, 1, 32, 32) float32 from -1 to 1, and labels, in an order of their own."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = np.kron(digits.images[order] / 8 - 1, np.ones((4, 4)))[:, None]
    return images.astype(np.float32), digits.target[order]


def trained(work: Path, factory: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Write `work`/FACTORY.safetensors."""
    import safetensors.torch
    import torch

    from pipeline.loading import load_object

    torch.manual_seed(0)
    model = load_object(f"model.py:{factory}", work)()
    transformer = factory == "transformer"
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3 if transformer else 1e-3)
    inputs, targets = torch.from_numpy(images), torch.from_numpy(labels)
    for _ in range(EPOCHS * (5 if transformer else 1)):
        for chosen in torch.randperm(len(targets)).split(BATCH_ROWS):
            shift = [int(value) for value in torch.randint(-2, 3, (2,))]
            loss = torch.nn.functional.cross_entropy(model(inputs[chosen].roll(shift, (2, 3))), targets[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    safetensors.torch.save_file({name: value.contiguous() for name, value in model.state_dict().items()}, work / f"{factory}.safetensors")


def outputs(model: Path, images: np.ndarray) -> dict[str, np.ndarray]:
    """Scores in both runtimes, with the settings of the engines."""
    import onnxruntime
    import openvino

    from engines import ort, ov

    session = onnxruntime.InferenceSession(str(model), providers=ort.PROVIDERS, disabled_optimizers=ort.DISABLED["int8"])
    request = openvino.Core().compile_model(str(model), "CPU", ov.SETTINGS).create_infer_request()
    return {
        "onnxruntime": np.concatenate([session.run(None, {"image": part})[0] for part in np.split(images, len(images) // 8)]),
        "openvino": np.concatenate([request.infer([part])[0].copy() for part in np.split(images, len(images) // 8)]),
    }


def measure(work: Path, factory: str) -> dict[str, Any]:
    """Plain and fitted, in both runtimes."""
    from calibration.cpu_scheme import quantize
    from calibration.export import export
    from calibration.ranges import collect
    from calibration.rounding.methods import Calibration
    from pipeline.config import ModelConfig
    from pipeline.decibels import sqnr_db
    from pipeline.macs import MULTIPLYING

    images, labels = pictures()
    trained(work, factory, images[:TRAIN], labels[:TRAIN])
    rows, search, judged = np.split(images[TRAIN:], [CALIBRATION, CALIBRATION + SEARCH])
    described = {
        "factory": f"model.py:{factory}",
        "checkpoint": f"{factory}.safetensors",
        "inputs": {"image": {"shape": ["batch", 1, 32, 32]}},
        "outputs": ["logits"],
        "shapes": {"batch": {"min": 1, "opt": 8, "max": 32}},
    }
    folder = work / factory
    exported = export(ModelConfig.model_validate(described), work, folder, {"image": rows[:32]})
    batches = [{"image": part} for part in np.split(rows, 8)]
    ids = [str(number) for number in range(CALIBRATION)]
    wanted = outputs(folder / "model.onnx", judged)
    right = float((wanted["openvino"].argmax(1) == labels[-len(judged) :]).mean())
    result: dict[str, Any] = {"float_top1": right}
    for way, method, calibration in (("plain", "max", None), ("fitted", "mse", Calibration(lambda: batches, ids))):
        ranges = collect(
            folder / "model.onnx", exported, batches, ids, calibration_root="", preprocess_sha256="", min_rows=1, batch_rows=32, method=method
        )
        record = quantize(folder / "model.onnx", exported, ranges, work / way, {"image": search}, calibration=calibration)
        found = outputs(work / way / "model.onnx", judged)
        result[way] = {
            "variants": record.variants,
            "float_nodes": sum(node.operator in MULTIPLYING for node in record.float_nodes),
            "runtimes": {
                runtime: {
                    "sqnr_db": sqnr_db(wanted[runtime], scores),
                    "agreement": float((wanted[runtime].argmax(1) == scores.argmax(1)).mean()),
                }
                for runtime, scores in found.items()
            },
        }
    return result


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    found = {}
    for factory in ("residual", "transformer"):
        with tempfile.TemporaryDirectory(prefix="qwarm-second-") as folder:
            (Path(folder) / "model.py").write_text(FACTORIES, encoding="utf-8")
            found[factory] = measure(Path(folder), factory)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
