"""The answers that an analyst pulls."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from penstock.base.files import replace_file
from penstock.inference.doubts import word_doubt
from penstock.mechanisms.scoring.blocks import list_blocks
from penstock.mechanisms.scoring.regressions import list_regressions
from penstock.schema import Floats
from penstock.study.study import Study
from penstock_server.mechanisms.answered import name_doubts, read_apart, read_doubts
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.protocol import Json
from penstock_server.mechanisms.writing import SITE, csv_safe, write


def read_coefficients_doubts(upload: Upload, study: Study) -> Floats:
    """(p,) of each number that is told, NaN of what is no regression: nobody knows whether few
    persons decide it, since nobody is cut there but by the dictionary's bounds."""
    doubts = read_doubts(upload, apart=True)
    count = sum(len(each.names) for each in list_regressions(study.schema, study.estimands))
    return np.append(doubts[:count], np.full(len(doubts) - count, np.nan))


def write_answers(uploads: Iterable[Upload], study: Study, out: Path) -> list[Path]:
    """``coefficients.csv`` and ``.json``: each site's estimates, of each regression and each column
    that is described, with their covariance; per one unit of each term."""
    blocks = list_blocks(study.schema, study.estimands)
    records: list[Json] = []
    tables: list[pa.Table] = []
    for upload in uploads:
        estimates, covariance, noise = read_apart(upload)
        doubts = read_coefficients_doubts(upload, study)
        told: list[Json] = []
        first = 0
        for block in blocks:
            names = block.names
            mine = slice(first, first + len(names))
            first += len(names)
            asked = dict.fromkeys(names, "") | {
                names[at]: ", ".join(e for e, place in block.asked.items() if place == at)
                for at in block.asked.values()
            }
            told.append(
                {
                    "formula": block.formula,
                    "model": block.model,
                    "estimates": dict(zip(names, estimates[mine].tolist(), strict=True)),
                    "doubts": name_doubts(names, doubts[mine]),
                    "covariance": covariance[mine, mine].tolist(),
                    "noise": noise[mine, mine].tolist(),
                }
            )
            tables.append(
                pa.table(
                    {
                        SITE: pa.array([upload.site] * len(names), pa.string()),
                        "model": pa.array([block.model] * len(names), pa.string()),
                        "formula": pa.array([block.formula] * len(names), pa.string()),
                        "term": pa.array(names, pa.string()),
                        "estimand": pa.array(asked.values(), pa.string()),
                        "estimate": estimates[mine],
                        "doubt": doubts[mine],
                        "mark": pa.array(map(word_doubt, doubts[mine]), pa.string()),
                        "se": np.sqrt(np.diagonal(covariance[mine, mine])),
                        "se_noise": np.sqrt(np.diagonal(noise[mine, mine])),
                    }
                )
            )
        records.append({"site": upload.site, "regressions": told})
    plain, exact = out / "coefficients.csv", out / "coefficients.json"
    with replace_file(plain) as name:
        pacsv.write_csv(csv_safe(pa.concat_tables(tables)), name)
    answer = {
        "study": study.name,
        "regressions": [
            {
                "formula": block.formula,
                "model": block.model,
                "terms": list(block.names),
                "estimands": {name: block.names[at] for name, at in block.asked.items()},
            }
            for block in blocks
        ],
        "sites": records,
    }
    write(exact, json.dumps(answer, indent=1, allow_nan=False).encode() + b"\n")
    return [plain, exact]
