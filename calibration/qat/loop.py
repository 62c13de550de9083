"""Epochs: shuffle, step, judge, keep the best, save, and stop when nothing gets better."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from calibration.qat.adam import Adam
from calibration.qat.fake import Student
from calibration.qat.machines import Alone
from calibration.qat.saved import Saved
from calibration.qat.teacher import Teacher, decibels, take
from calibration.tracing import Bind, call
from pipeline.config import TrainingConfig
from pipeline.errors import ModelError
from pipeline.records import Epoch
from pipeline.tensors import AxisRange, Batch

if TYPE_CHECKING:
    import torch

WEIGHT, BEST = "weight", "best"
WARM, FEWEST_WARM = 0.05, 10
"""Part of all steps, and their least number, in which the rate rises to its full size: Adam's first steps know little of the gradient's magnitude."""


class Loop:
    """Training of one student. All of its state is in the weights, Adam's moments, `epochs` and the best weights."""

    def __init__(
        self,
        student: Student,
        bound: Bind,
        names: list[str],
        teacher: Teacher,
        rows: Batch,
        settings: TrainingConfig,
        size: AxisRange,
        machine: Alone,
    ) -> None:
        self.student, self.teacher, self.rows, self.settings, self.machine = student, teacher, rows, settings, machine
        self.bound, self.names, self.size = bound, names, size
        self.weights = student.weights()
        for weight in self.weights.values():
            weight.requires_grad_(True)
        self.optimizer = Adam(self.weights, student.units())
        self.epochs: list[Epoch] = []
        self.best: dict[str, torch.Tensor] = self._copy()
        self.best_epoch = 0
        count = len(next(iter(rows.values())))
        self.steps = max(1, math.ceil(count / size.max))

    def run(
        self, start: float | None, judge: Callable[[], float | None], saved: Saved, progress: Callable[[int, int, str], None]
    ) -> tuple[Epoch, ...]:
        """Train until the last epoch or until `settings.patience` of them were no better; `judge()` gives the SQNR in dB, None without limit.

        `start`: the SQNR before; where no epoch is better, the weights before are the best ones and `best_epoch` is 0.
        Raises ModelError where the loss or the answers stop being numbers; what was saved before stays.
        """
        total = self.settings.epochs * self.steps
        reached = self.epochs[self.best_epoch - 1].search_sqnr_db if self.best_epoch else start
        while len(self.epochs) < self.settings.epochs and len(self.epochs) - self.best_epoch < self.settings.patience:
            epoch, done = len(self.epochs) + 1, len(self.epochs) * self.steps
            loss = 0.0
            for step, chosen in enumerate(self._order(epoch)):
                loss += self._step(done + step, total, chosen)
                progress(done + step + 1, total, f"loss {loss / (step + 1):.4g}{_so_far(reached)}")
            found = judge()
            self.epochs.append(Epoch(epoch, loss / self.steps, found))
            if decibels(found) > decibels(reached):
                self.best, self.best_epoch, reached = self._copy(), epoch, found
            self._save(saved)
            progress(done + self.steps, total, f"loss {loss / self.steps:.4g}{_so_far(reached)}")
        return tuple(self.epochs)

    def best_state(self) -> dict[str, torch.Tensor]:
        """Every tensor of the module's state with the best epoch's weights, tied ones under each of their names."""
        of = {id(tensor): name for name, tensor in self.weights.items()}
        state = {name: self.best[of[id(tensor)]] if id(tensor) in of else tensor for name, tensor in self.student.state.items()}
        return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}

    def resume(self, saved: Saved) -> int | None:
        """Take over the newest saved state; the epoch that it is of, None where there is none."""
        import torch

        found = saved.newest()
        if found is None:
            return None
        tensors, facts = found
        self.epochs = [Epoch.from_json(epoch) for epoch in facts["epochs"]]
        self.best_epoch = facts["best_epoch"]
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(tensors[f"{WEIGHT}:{name}"])
                self.best[name].copy_(tensors[f"{BEST}:{name}"])
        self.optimizer.load(tensors)
        return len(self.epochs)

    def _save(self, saved: Saved) -> None:
        if not self.machine.main:
            return
        tensors = {f"{WEIGHT}:{name}": weight for name, weight in self.weights.items()} | {f"{BEST}:{name}": best for name, best in self.best.items()}
        tensors |= self.optimizer.state()
        saved.save(len(self.epochs), tensors, {"epochs": [epoch.to_json() for epoch in self.epochs], "best_epoch": self.best_epoch})

    def _order(self, epoch: int) -> list[np.ndarray]:
        """Row numbers of each step of an epoch: a permutation of its own, that needs no state; the last step is filled up from the start."""
        order = np.random.default_rng([self.settings.seed, epoch]).permutation(len(next(iter(self.rows.values()))))
        parts = [order[start : start + self.size.max] for start in range(0, len(order), self.size.max)]
        if len(parts[-1]) < self.size.min:
            parts[-1] = np.resize(np.concatenate([parts[-1], order]), self.size.min)
        return parts

    def _step(self, number: int, total: int, chosen: np.ndarray) -> float:
        import torch

        share = self.machine.share(chosen)
        inputs = {name: torch.from_numpy(array).to(self.machine.device) for name, array in take(self.rows, share).items()}
        wanted = self.teacher(share)
        loss = self.teacher.loss(call(self.student.module, self.bound, self.names, inputs), wanted)
        value = float(self.machine.mean(loss.detach()))
        if not math.isfinite(value):
            raise self._not_finite(
                f"step {number + 1} of {total}", value, {name: bool(wanted[name].isfinite().all()) for name in self.teacher.powers}
            )
        loss.backward()
        for weight in self.weights.values():
            if weight.grad is not None:
                weight.grad = self.machine.mean(weight.grad)
        warm = min(1.0, (number + 1) / max(WARM * total, FEWEST_WARM))
        self.optimizer.step(self.settings.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * number / total)))
        return value

    def _not_finite(self, where: str, loss: float, finite: dict[str, bool]) -> ModelError:
        if not all(finite.values()):
            got = f"output {', '.join(name for name, well in finite.items() if not well)}"
            return ModelError("The float model gives values that are not finite", where=f"role train, {where}", expected="finite outputs", got=got)
        good = f"epoch {len(self.epochs)}" if self.epochs else "none yet"
        return ModelError(
            "Training under fake quantization has diverged",
            where=f"{where}, learning rate {self.settings.learning_rate:g}",
            expected="a finite loss",
            got=f"{loss} (last good state: {good})",
            next="lower quantize.training.learning_rate (a tenth is a good try), or set quantize.qat: never",
        )

    def _copy(self) -> dict[str, torch.Tensor]:
        return {name: weight.detach().clone() for name, weight in self.weights.items()}


def _so_far(best: float | None) -> str:
    return ", best without limit" if best is None else f", best {best:.1f} dB"
