"""MST or AIM of smartnoise-synth 1.0.8: run by the interpreter of an environment that has it.

    python foreign_smartnoise.py FOLDER

reads ``asked.json`` and ``codes.csv`` (whole numbers from 0 in each column), writes ``made.csv``.
Without a folder it reads folders from its input, one on a line, and says of each on a line of its
output that it is done; why one failed lies there in ``failed.txt``. Most of a fit's time goes into
what JAX compiles, which such a process keeps; the tables are the same.

Both are called below their preprocessing, so that nothing is learnt of the data without a charge:
the domain is public, and all of ε and δ (AIM comes with δ = 1e-9) is the algorithm's. Both are of
adding or removing one row; the number of rows is public. What is set otherwise than it comes:

- rows are drawn by ``method="sample"``: mbi's default makes children of one parent comonotone;
- where MST lays rare levels together it scales their count but not the query that explains it, so
  that their share is too low: the query is scaled, too, as in the authors' own code;
- noise is a seeded generator's, not opendp's: the same seed gives the same table.
"""

import json
import math
import sys
import traceback
from pathlib import Path

import jax
import numpy as np
import pandas as pd
from mbi import Dataset, Domain, LinearMeasurement
from snsynth.aim import aim
from snsynth.mst import mst
from snsynth.utils import cdp_rho

COMPILED = 50  # of so many tables what was compiled is held in memory


class Mst(mst.MSTSynthesizer):
    """MST whose measurements of rare levels are explained as they were scaled."""

    def compress_domain(self, data, measurements):
        compressed, found, undo = super().compress_domain(data, measurements)
        sizes = {m.clique: len(m.noisy_measurement) for m in measurements}
        return compressed, [_scale(m, sizes[m.clique]) for m in found], undo


def _scale(measured, size):
    """The query of a measurement whose last entry was divided by √(levels laid together)."""
    kept = len(measured.noisy_measurement)
    if kept == size:
        return measured
    weights = np.ones(kept)
    weights[-1] = 1 / math.sqrt(size - kept + 2.0)
    return LinearMeasurement(
        measured.noisy_measurement,
        measured.clique,
        measured.stddev,
        query=lambda factor: factor.datavector() * weights,
    )


def main(folder):
    asked = json.loads((folder / "asked.json").read_text())
    codes = pd.read_csv(folder / "codes.csv")
    rng = np.random.default_rng(asked["seed"])
    np.random.seed(asked["seed"] % 2**32)  # choices and draws of both libraries
    for module in (mst, aim):
        module.gaussian_noise = lambda sigma, size=None: rng.normal(0.0, sigma, size)
    sizes, epsilon, delta = asked["sizes"], asked["epsilon"], asked["delta"]
    data = Dataset(codes.to_numpy(), Domain(tuple(sizes), tuple(sizes.values())))
    if asked["arm"] == "mst":
        made = Mst(epsilon, delta)
        made.MST(data, epsilon, delta)
        drawn = made.synthesizer.synthetic_data(rows=asked["rows"], method="sample")
        drawn = made.undo_compress_fn(drawn)
    else:
        made = aim.AIMSynthesizer(epsilon, delta)
        made.rho = cdp_rho(epsilon, delta)
        made.AIM(data, made.get_workload(data, made.degree, made.max_cells))
        drawn = made.synthesizer.synthetic_data(rows=asked["rows"], method="sample")
    frame = pd.DataFrame({name: np.asarray(drawn.df[name]) for name in sizes})
    frame.to_csv(folder / "made.csv", index=False)


def serve(folders):
    answers, sys.stdout = sys.stdout, sys.stderr  # what the libraries print is no answer
    for number, folder in enumerate(Path(line.rstrip("\n")) for line in folders):
        try:
            main(folder)
        except Exception:
            (folder / "failed.txt").write_text(traceback.format_exc())
        answers.write("done\n")
        answers.flush()
        if number % COMPILED == COMPILED - 1:
            jax.clear_caches()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        serve(sys.stdin)
