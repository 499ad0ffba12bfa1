"""From coded columns to ℝᵈ and back, by the public schema alone. (interim, by the lead; H4's version replaces it)"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.schema import Column, Schema

Array = NDArray[np.float64]
SD = 0.25


@dataclass(frozen=True, slots=True)
class Dim:
    name: str
    column: str
    role: str


class Encoding:
    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        dims: list[Dim] = []
        low: list[float] = []
        high: list[float] = []
        for c in schema.columns:
            if c.kind == "categorical":
                for level in c.levels:
                    dims.append(Dim(f"{c.name}={level}", c.name, "level"))
                    low.append(-1.9)
                    high.append(1.9)
            else:
                dims.append(Dim(c.name, c.name, "value"))
                edge = 1.9 if c.kind in ("binary", "event") else 1.0
                low.append(-edge)
                high.append(edge)
            if c.nullable:
                dims.append(Dim(f"{c.name}?", c.name, "present"))
                low.append(-1.9)
                high.append(1.9)
        self.dims = tuple(dims)
        self.d = len(dims)
        self.low = np.array(low)
        self.high = np.array(high)

    def encode(self, coded: Mapping[str, Array], rng: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
        n = len(next(iter(coded.values())))
        parts: list[Array] = []
        present = np.ones(n, dtype=np.bool_)
        for c in self.schema.columns:
            v = np.asarray(coded[c.name], dtype=np.float64)
            miss = np.isnan(v)
            x = _enc(c, np.where(miss, 0.0, v), rng)
            if c.nullable:
                x[miss] = 0.1 * _tn(rng, x[miss].shape)
                parts += [x, (np.where(miss, -1.0, 1.0) + SD * _tn(rng, n))[:, None]]
            else:
                present &= ~miss
                parts.append(x)
        X = np.concatenate(parts, axis=1)
        X = np.clip(X, self.low, self.high)
        X[~present] = 0
        return X, present

    def decode(self, X: Array) -> dict[str, Array]:
        X = np.clip(np.nan_to_num(X, nan=0.0), self.low, self.high)
        out: dict[str, Array] = {}
        j = 0
        for c in self.schema.columns:
            w = len(c.levels) if c.kind == "categorical" else 1
            v = _dec(c, X[:, j : j + w])
            j += w
            if c.nullable:
                v = np.where(X[:, j] > 0, v, math.nan)
                j += 1
            out[c.name] = v
        return out


def _tn(rng: np.random.Generator, shape: object) -> Array:
    return np.clip(rng.standard_normal(shape), -3.5, 3.5)  # type: ignore[arg-type, return-value]


def _enc(c: Column, v: Array, rng: np.random.Generator) -> Array:
    n = len(v)
    if c.kind in ("binary", "event"):
        return (np.where(v > 0.5, 1.0, -1.0) + SD * _tn(rng, n))[:, None]
    if c.kind == "categorical":
        k = np.arange(len(c.levels))
        return np.where(v[:, None] == k, 1.0, -1.0) + SD * _tn(rng, (n, len(k)))
    if c.kind == "ordered":
        L = len(c.levels)
        step = 2 / (L - 1)
        return (v * step - 1 + np.clip(step / 4 * _tn(rng, n), -0.45 * step, 0.45 * step))[:, None]
    lo, hi = float(c.lower or 0.0), float(c.upper or 1.0)
    v = np.clip(v, lo, hi)
    if c.kind == "duration":
        t = np.clip(v / hi, 0.004, 0.996)
        return (np.log(t / (1 - t)) / 5.52)[:, None]
    if c.kind == "integer":
        v = v + rng.uniform(-0.5, 0.5, n)
    return ((v - (lo + hi) / 2) / ((hi - lo) / 2))[:, None]


def _dec(c: Column, X: Array) -> Array:
    if c.kind in ("binary", "event"):
        return (X[:, 0] > 0).astype(np.float64)
    if c.kind == "categorical":
        return X.argmax(1).astype(np.float64)
    if c.kind == "ordered":
        L = len(c.levels)
        return np.clip(np.rint((X[:, 0] + 1) * (L - 1) / 2), 0, L - 1)
    lo, hi = float(c.lower or 0.0), float(c.upper or 1.0)
    if c.kind == "duration":
        v = hi / (1 + np.exp(-5.52 * X[:, 0]))
    else:
        v = X[:, 0] * (hi - lo) / 2 + (lo + hi) / 2
    if c.kind == "integer":
        v = np.rint(v)
    elif c.decimals is not None:
        v = np.round(v, c.decimals)
    return np.clip(v, lo, hi)
