"""What was found of one site's release, as bytes: between processes, and kept beside the uploads.

JSON, in which an object says what it is: ``{"tuple": […]}``, ``{"map": [[key, value], …]}``,
``{"array": [type, shape, base64]}``, or one of the classes below with its fields in their order.
Numbers come back as they were, bit by bit; what is none of these is refused, either way.

An entry is kept by what it was made of: the site's signed manifest, which names the table by its
digest; the study's id, which is its digest; and the version of the code that measures. One that is
damaged, or another's, is as if it were not there.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import numpy as np

import penstock
from penstock.base.files import replace_file
from penstock.inference.combine import SiteEstimate
from penstock.inference.doubts import Doubts
from penstock.inference.overlap import Overlaps
from penstock.inference.refits import Measured, Spread
from penstock.inference.robust import Checked, Robust
from penstock.inference.slopes import Held, Slope
from penstock_server.analysis.attendees import Attendees
from penstock_server.analysis.baseline_figures import Baseline, Described, Figures
from penstock_server.analysis.changes import SiteChanges
from penstock_server.analysis.crosstabs import SiteCrosstabs
from penstock_server.analysis.ranges import Ranges
from penstock_server.analysis.site_effects import SiteEffect, SiteEffects
from penstock_server.analysis.survival_curves import CurveAsked, SiteCurves
from penstock_server.analysis.table_distances import Matched, Moved
from penstock_server.analysis.transitions import SiteTransitions
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.protocol import Results

MEASURES = 3
"""The version of what is measured of a release, within one of Penstock: raised where a summary, or
a number in one, changes."""

Classes = Sequence[type]

_ARRAYS = ("<f8", "<i8", "|b1")
_PLAIN = frozenset((float, str, int, bool, type(None)))
"""That JSON has as they are."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Of one site's release: its estimands, and what sections of the report show beside them."""

    measured: Mapping[str, Measured]
    summaries: tuple[object, ...]

    @classmethod
    def of(cls, results: Results, upload: Upload, threads: int) -> Findings:
        """Args: threads: at most so many at once."""
        return cls(results.measure(upload, threads), results.summarise(upload))

    def to_bytes(self, own: Classes = ()) -> bytes:
        """Args: own: classes of summaries that the mechanism alone makes.

        Raises:
            TypeError: a summary holds what has no form here.
        """
        return json.dumps(_tell(self, _name_classes(own)), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, own: Classes = ()) -> Findings:
        """Args: own: as above.

        Raises:
            ValueError: no findings.
        """
        try:
            found = _read(json.loads(data), _name_classes(own))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ValueError("no findings of a release") from None
        if not isinstance(found, Findings):
            raise ValueError("no findings of a release")
        return found


_CLASSES: Classes = (
    *(Attendees, Baseline, Checked, CurveAsked, Described, Doubts, Figures, Findings, Held),
    *(Matched, Measured, Moved, Overlaps, Ranges, Robust, SiteChanges),
    *(SiteCrosstabs, SiteCurves, SiteEffect, SiteEffects, SiteEstimate, SiteTransitions),
    *(Slope, Spread),
)


def _name_classes(own: Classes) -> dict[str, type]:
    return {one.__name__: one for one in (*_CLASSES, *own)}


def _tell(value: object, classes: Mapping[str, type]) -> object:
    if type(value) in _PLAIN or isinstance(value, str):  # nearly all are
        return value
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, list):
        return [_tell(each, classes) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_tell(each, classes) for each in value]}
    if isinstance(value, Mapping):
        return {"map": [[_tell(key, classes), _tell(each, classes)] for key, each in value.items()]}
    if isinstance(value, np.ndarray) and value.dtype.str in _ARRAYS:
        data = base64.b64encode(value.tobytes()).decode()
        return {"array": [value.dtype.str, list(value.shape), data]}
    name = type(value).__name__
    if classes.get(name) is type(value) and is_dataclass(value):
        return {name: [_tell(getattr(value, field.name), classes) for field in fields(value)]}
    raise TypeError(f"no form of {name} in findings")


def _read(told: object, classes: Mapping[str, type]) -> object:
    if isinstance(told, list):
        return [_read(each, classes) for each in told]
    if not isinstance(told, dict):
        return told
    [(name, inner)] = told.items()
    if name == "tuple":
        return tuple(_read(each, classes) for each in inner)
    if name == "map":
        return {_read(key, classes): _read(each, classes) for key, each in inner}
    if name == "array":
        kind, shape, data = inner
        if kind not in _ARRAYS:
            raise ValueError("an array of another type")
        flat = np.frombuffer(base64.b64decode(data, validate=True), dtype=kind)
        return flat.reshape(shape).copy()
    return classes[name](*(_read(each, classes) for each in inner))


class KeptFindings:
    """Those of one study, each a file of mode 0600.

    Args:
        folder: where they lie; made with the first. None: nothing is kept.
        own: classes of summaries that the study's mechanism alone makes.
    """

    def __init__(self, folder: Path | None, study_id: str, own: Classes = ()) -> None:
        self._folder, self._study, self._own = folder, study_id, own

    def _place(self, folder: Path, manifest: bytes) -> Path:
        made_of = (penstock.__version__, str(MEASURES), self._study, manifest.hex())
        return folder / f"{hashlib.sha256(' '.join(made_of).encode()).hexdigest()}.json"

    def find(self, manifest: bytes) -> Findings | None:
        """What was kept of the release of a signed manifest, if it is there and whole."""
        if self._folder is None:
            return None
        try:
            digest, _, data = self._place(self._folder, manifest).read_bytes().partition(b"\n")
            whole = hashlib.sha256(data).hexdigest().encode() == digest
            return Findings.from_bytes(data, self._own) if whole else None
        except (OSError, ValueError):
            return None

    def keep(self, manifest: bytes, data: bytes) -> None:
        """Args: data: of :meth:`Findings.to_bytes`.

        Raises:
            OSError: the disk cannot take it.
        """
        if self._folder is None:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replace_file(self._place(self._folder, manifest), mode=0o600) as name:
            Path(name).write_bytes(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
