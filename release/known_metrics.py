"""The metrics that `gates.metric` knows by name; any other is a function of the user's own. Higher is better."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import stats

from pipeline.loading import load_object
from pipeline.release_config import TOP1
from release.metric import Metric

F1 = "f1"
TOP = 5


def function(name: str) -> Metric | None:
    """The function behind `gates.metric`; None for top-1, which `release.drift` counts itself. Raises ConfigError for one that cannot be loaded."""
    if name == TOP1:
        return None
    known: dict[str, Metric] = {"top5": top5, F1: f1, "spearman": spearman}
    return known[name] if name in known else load_object(name)


def top5(outputs: Mapping[str, np.ndarray], labels: np.ndarray | None) -> np.ndarray:
    """Is the label among the five largest scores of the first output (N, C)? (N,) of bool; of equal scores the first counts as larger."""
    scores, labels = _scores(outputs, labels)
    if scores.shape[1] <= TOP:
        raise ValueError(f"{scores.shape[1]} classes: every label is among the five largest scores")
    return np.asarray((np.argsort(-scores, axis=1, kind="stable")[:, :TOP] == labels[:, None]).any(axis=1))


def f1(outputs: Mapping[str, np.ndarray], labels: np.ndarray | None) -> float:
    """Macro F1 of the largest score of the first output (N, C), over the classes that occur as a label or as an answer."""
    scores, labels = _scores(outputs, labels)
    return float(np.nanmean(class_f1(scores.argmax(axis=1), labels, scores.shape[1])))


def class_f1(answers: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """F1 of each class (C,) from answers and labels (N,); NaN for a class that is neither."""
    hits = np.bincount(labels[answers == labels], minlength=classes)
    total = np.bincount(labels, minlength=classes) + np.bincount(answers, minlength=classes)
    return np.divide(2 * hits, total, out=np.full(classes, np.nan), where=total > 0)


def spearman(outputs: Mapping[str, np.ndarray], labels: np.ndarray | None) -> float:
    """Spearman's rank correlation of the first output, (N,) or (N, 1), with numeric labels; equal values share their mean rank."""
    values = next(iter(outputs.values()))
    if labels is None or labels.dtype.kind not in "biuf" or values.size != len(labels):
        raise ValueError(
            f"one number and one numeric label a row are needed: outputs {values.shape}, labels {labels if labels is None else labels.dtype}"
        )
    return float(np.corrcoef(stats.rankdata(values.reshape(-1)), stats.rankdata(labels))[0, 1])


def _scores(outputs: Mapping[str, np.ndarray], labels: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    scores = next(iter(outputs.values()))
    if labels is None or scores.ndim != 2:
        raise ValueError(f"class scores (N, C) and labels are needed: outputs {scores.shape}, labels {None if labels is None else labels.shape}")
    return scores, labels
