"""The answers that an analyst pulls."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from penstock.base.files import replace_file
from penstock.inference.doubts import word_doubt
from penstock.mechanisms import Gibbs
from penstock.mechanisms.gibbs.settings import answer_terms
from penstock.study.study import Study
from penstock_server.mechanisms.answered import name_doubts, read_answer, read_doubts
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.writing import SITE, csv_safe, write


def write_answers(
    uploads: Iterable[Upload], study: Study, mechanism: Gibbs, out: Path
) -> list[Path]:
    """``coefficients.csv`` and ``.json``: each site's estimates with their covariance."""
    estimand = study.estimands[0]
    terms = answer_terms(study.schema, estimand, mechanism)
    records, tables = [], []
    for upload in uploads:
        estimates, covariance = read_answer(upload)
        doubts = read_doubts(upload)
        records.append(
            {
                "site": upload.site,
                "estimates": dict(zip(terms, estimates.tolist(), strict=True)),
                "doubts": name_doubts(terms, doubts),
                "covariance": covariance.tolist(),
            }
        )
        columns: dict[str, Any] = {
            SITE: pa.array([upload.site] * len(terms), pa.string()),
            "term": pa.array(terms, pa.string()),
            "estimate": estimates,
            "doubt": doubts,
            "mark": pa.array(map(word_doubt, doubts), pa.string()),
            "se": np.sqrt(np.diagonal(covariance)),
        }
        columns |= {f"cov_{i + 1}": covariance[:, i] for i in range(len(terms))}
        tables.append(pa.table(columns))
    plain, exact = out / "coefficients.csv", out / "coefficients.json"
    with replace_file(plain) as name:
        pacsv.write_csv(csv_safe(pa.concat_tables(tables)), name)
    answer = {
        "study": study.name,
        "estimand": estimand.name,
        "model": estimand.model,
        "terms": list(terms),
        "sites": records,
    }
    write(exact, json.dumps(answer, indent=1, allow_nan=False).encode() + b"\n")
    return [plain, exact]
