"""Reading a site's file as text, exactly as it lies there: no type guessing, no NaN guessing."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from penstock.errors import InvalidInput, Problem

CSV = (".csv", ".txt")
TSV = (".tsv",)
PARQUET = (".parquet", ".pq")


def read_text(path: Path) -> pd.DataFrame:
    """The table at ``path`` with every cell as stripped text; missing cells are empty.

    Raises:
        InvalidInput: no such file, an unknown kind of file, empty, or not readable as one.
    """
    suffix = path.suffix.lower()
    try:
        if suffix in PARQUET:
            frame = _parquet_as_text(path)
        elif suffix in CSV + TSV:
            frame = pd.read_csv(
                path,
                dtype=str,
                keep_default_na=False,
                na_filter=False,
                encoding="utf-8-sig",
                sep="\t" if suffix in TSV else ",",
                skipinitialspace=True,
            )
        else:
            known = ", ".join(CSV + TSV + PARQUET)
            raise InvalidInput(
                str(path), [Problem("", "unknown kind of file", value=suffix, bound=known)]
            )
    except FileNotFoundError:
        raise InvalidInput(str(path), [Problem("", "no such file")]) from None
    except pd.errors.EmptyDataError:
        raise InvalidInput(str(path), [Problem("", "the file is empty")]) from None
    except (pd.errors.ParserError, UnicodeDecodeError, pa.ArrowInvalid, OSError) as error:
        # The parser's own text may quote a row; its type says enough.
        raise InvalidInput(
            str(path), [Problem("", "cannot be read", value=type(error).__name__)]
        ) from None
    frame.columns = [str(c).strip() for c in frame.columns]
    duplicates = sorted(set(frame.columns[frame.columns.duplicated()]))
    if duplicates:
        raise InvalidInput(str(path), [Problem(c, "column occurs twice") for c in duplicates])
    return frame.apply(lambda column: column.str.strip()) if len(frame) else frame


def _parquet_as_text(path: Path) -> pd.DataFrame:
    table = pq.read_table(path)
    columns = {}
    for name in table.column_names:
        values = table.column(name)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if pa.types.is_boolean(values.type):
            values = values.cast(pa.int8())
        columns[name] = ["" if v is None or v != v else str(v) for v in values.to_pylist()]
    return pd.DataFrame(columns, dtype=str)
