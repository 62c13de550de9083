"""What rounding has to know about a layer's inputs: means and second moments, summed batch by batch."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass
class Moments:
    """Sums over output positions, so that memory does not grow with rows.

    `hessian` (G, K, K) of quantized patches with themselves, `cross` (G, rows, K) of wanted outputs with them; `patch` (G, K) and `wanted`
    (G, rows) of each alone.
    """

    hessian: np.ndarray
    cross: np.ndarray
    patch: np.ndarray
    wanted: np.ndarray
    count: int = 0

    @classmethod
    def zero(cls, groups: int, rows: int, size: int) -> Moments:
        """Of no position."""
        return cls(np.zeros((groups, size, size)), np.zeros((groups, rows, size)), np.zeros((groups, size)), np.zeros((groups, rows)))

    def add(self, patches: np.ndarray, wanted: np.ndarray) -> None:
        """`patches` (G, positions, K) as quantized, `wanted` (G, rows, positions) outputs of the float graph."""
        self.hessian += patches.transpose(0, 2, 1) @ patches
        self.cross += wanted @ patches
        self.patch += patches.sum(axis=1, dtype=np.float64)
        self.wanted += wanted.sum(axis=2, dtype=np.float64)
        self.count += patches.shape[1]

    def __add__(self, other: Moments) -> Moments:
        return Moments(*(getattr(self, field.name) + getattr(other, field.name) for field in dataclasses.fields(self)))

    def covariance(self, centred: bool) -> np.ndarray:
        """Of the patches: about their means, or about zero where no bias can make up for a mean."""
        hessian = self.hessian / self.count
        if centred:
            patch = self.patch / self.count
            hessian -= patch[:, :, None] * patch[:, None, :]
        return hessian

    def covariances(self, centred: bool) -> tuple[np.ndarray, np.ndarray]:
        """Of the patches, and of wanted outputs with them."""
        cross = self.cross / self.count
        if centred:
            cross -= (self.wanted / self.count)[:, :, None] * (self.patch / self.count)[:, None, :]
        return self.covariance(centred), cross

    @property
    def power(self) -> np.ndarray:
        """(G,) mean square of the patches."""
        return np.einsum("gkk->g", self.hessian) / (self.count * self.hessian.shape[-1])

    def bias(self, weight: np.ndarray) -> np.ndarray:
        """The bias (G, rows) with which `weight` (G, rows, K) gives the wanted means."""
        return (self.wanted - np.einsum("grk,gk->gr", weight, self.patch)) / self.count
