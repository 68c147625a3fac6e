"""A problem like gisette, which is MNIST's 4 against 9 with products of pixels and probes, made from MNIST itself."""

import numpy as np

from mpicomp.apps.data import Dataset
from mpicomp.apps.matrix import Dense

ROWS, REAL, PROBES = 3000, 2500, 2500  # rows of each digit; features that say something, and that do not


def gisette_like(digits, seed=0):
    """6000 rows of 4 (+1) and 9 (-1): pixels, products of two pixels, and probes, scaled to [-1, 1].

    Probes are features of the first kind with their rows shuffled. Which products gisette has is not published.
    """
    rng = np.random.default_rng(seed)
    rows = np.concatenate([np.flatnonzero(digits.train_labels == digit)[:ROWS] for digit in (4, 9)])
    pixels = digits.train_images[rows].reshape(rows.size, -1) / 255.0
    pixels = pixels[:, (pixels > 0).mean(axis=0) > 0.01]  # of those that are hardly ever inked nothing can be learnt
    products = REAL - pixels.shape[1]
    pairs = rng.integers(pixels.shape[1], size=(products, 2))
    real = np.concatenate([pixels, pixels[:, pairs[:, 0]] * pixels[:, pairs[:, 1]]], axis=1)
    probes = rng.permuted(real[:, rng.permutation(REAL)[:PROBES]], axis=0)
    features = 2 * np.concatenate([real, probes], axis=1) - 1
    labels = np.where(digits.train_labels[rows] == 4, 1.0, -1.0)
    return Dataset("gisette-like", Dense(features), labels)
