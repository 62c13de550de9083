"""`qwarm lstm TRACES --out FILE`: a small recurrent network that forecasts arrivals, trained on recorded requests, as ONNX for `fleet.extras`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import existing

HIDDEN, WINDOW, BATCH = 16, 96, 64


def series_of(trace: Any, share: float) -> tuple[list[float], list[float]]:
    """Counts a half-hour of the first `share` of a trace, and what a seasonal profile had expected of each."""
    from fleet.seasons import SLOT_S, Profile, place_of, slot_of

    first, profile = slot_of(float(trace.starts[0])), Profile()
    counts = [0.0] * (slot_of(trace.end) - first + 1)
    for at, count in zip(trace.starts.tolist(), trace.counts.tolist(), strict=True):
        counts[int(at // SLOT_S) - first] += count
    counts = counts[: int(share * len(counts))]
    expected = []
    for index, count in enumerate(counts):
        expected.append(profile.expected(place_of(first + index)))
        profile.close(first + index, count)
    return counts, expected


def train(traces: list[str], out: str, *, share: float = 0.5, epochs: int = 60, seed: int = 0) -> dict[str, Any]:
    """Train on the first `share` of each trace, thinned to several levels, and write `out`. Raises ConfigError and DataError as `fleet.traces` does.

    Loss is the absolute error of the next count over the root of the moving average plus one. Returns `loss` by epoch and how many steps were learnt.
    """
    import numpy as np
    import torch

    from fleet.extras import LEVEL_SHARE, inputs, relative
    from fleet.traces import read_traces
    from pipeline.errors import DataError
    from pipeline.files import write_bytes
    from pipeline.progress import track

    random, rows = np.random.default_rng(seed), []
    for counts, expected in (series_of(trace, share) for file in traces for trace in read_traces(file)):
        for level in (1.0, 8.0, 64.0, 0.0):  # thinned to means of so many a half-hour, and as recorded
            keep = min(1.0, level / max(1e-9, float(np.mean(counts)))) if level else 1.0
            kept, usuals = random.binomial(np.array(counts, int), keep).tolist(), (np.array(expected) * keep).tolist()
            average = 0.0
            row: list[list[float]] = []
            for index, (count, usual) in enumerate(zip(kept, usuals, strict=True)):
                if row:
                    row[-1][3:6] = [relative(usual, average), average, count]
                average += max(1.0 / (index + 1), LEVEL_SHARE) * (count - average)
                row.append([*inputs(count, usual, average)[0].tolist(), 0.0, 0.0, 0.0])
            rows += [row[start : start + WINDOW] for start in range(0, len(row) - WINDOW, WINDOW // 2)]
    if not rows:
        raise DataError(
            "The traces are too short to learn from", where=", ".join(traces), expected=f"{WINDOW} half-hours at least", got="fewer",
            next="give longer traces, or a larger --share",
        )  # fmt: skip
    torch.manual_seed(seed)
    network = network_of(HIDDEN)
    data = torch.tensor(rows, dtype=torch.float32)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    losses = []
    for _ in track(range(epochs), "training", epochs):
        total = 0.0
        for part in torch.randperm(len(data)).split(BATCH):
            batch = data[part]
            h = c = torch.zeros(len(batch), HIDDEN)
            loss = torch.zeros(())
            for step in range(WINDOW - 1):
                y, h, c = network(batch[:, step, :3], batch[:, step, 3:4], h, c)
                average, truth = batch[:, step, 4:5], batch[:, step, 5:6]
                told = (average + 0.5) * torch.exp(y.clamp(max=5.0)) - 0.5
                loss = loss + ((told - truth).abs() / (average + 1.0).sqrt()).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            total += loss.item() * len(batch)
        losses.append(total / len(data) / (WINDOW - 1))
    write_bytes(Path(out), exported(network))
    return {"file": out, "windows": len(rows), "loss": losses}


def network_of(hidden: int) -> Any:
    """LSTM cell and a linear head that also sees the profile's next: (N, 3), (N, 1), (N, hidden), (N, hidden) to (N, 1) and the new state."""
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.LSTMCell(3, hidden)
            self.head = torch.nn.Sequential(torch.nn.Linear(hidden + 1, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1))

        def forward(self, x: Any, following: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
            h, c = self.cell(x, (h, c))
            return self.head(torch.cat([h, following], 1)), h, c

    return Network()


def exported(network: Any) -> bytes:
    """As ONNX, one row a step."""
    import io

    import torch

    hidden, content = network.cell.hidden_size, io.BytesIO()
    arguments = (torch.zeros(1, 3), torch.zeros(1, 1), torch.zeros(1, hidden), torch.zeros(1, hidden))
    names = {"input_names": ["x", "next", "h", "c"], "output_names": ["y", "h1", "c1"]}
    torch.onnx.export(network.eval(), arguments, content, dynamo=False, opset_version=17, **names)
    return content.getvalue()


def lstm(
    traces: Annotated[list[str], typer.Argument(metavar="TRACES", help="CSV files: timestamp and count, or timestamp and model", callback=existing)],
    out: Annotated[str, typer.Option(metavar="FILE", help="the ONNX file to write")],
    share: Annotated[float, typer.Option(min=0.05, max=1.0, help="of each trace, from its start, that is learnt from")] = 0.5,
    epochs: Annotated[int, typer.Option(min=1, help="passes over it")] = 60,
    seed: Annotated[int, typer.Option(help="of weights and thinning")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Train the LSTM that `control` and `replay` may use as a part of their forecasts: it counts only where it beats a moving average."""
    result = train(traces, out, share=share, epochs=epochs, seed=seed)
    text = f"{result['windows']} windows of {WINDOW} half-hours; loss {result['loss'][0]:.4f} to {result['loss'][-1]:.4f}; {out}"
    typer.echo(json.dumps(result) if json_output else text)
