"""From a request to a worker that is ready for rows: what it is told, and its rehearsal.

The rehearsal runs on synthetic rows of the public n, before anything is charged: what cannot be
carried out here costs nothing, and how long a run is shown to take follows from public numbers.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from penstock.aggregation.exchanges import read_sum
from penstock.base.errors import JobFailed, PenstockError
from penstock.privacy.events import Event, to_dict
from penstock.schema import Schema
from penstock.study.study import Study
from penstock.wire.canonical import digest
from penstock.wire.messages import choose_version
from penstock.wire.release_file import measure_release
from penstock.wire.signed import SignedStudy
from penstock_client.gate.admission import Admission, SiteFacts, refuse
from penstock_client.gate.facts import find_public_snapshot
from penstock_client.gate.stores import Stores
from penstock_client.rows.sealed import seal_rows
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SiteSettings
from penstock_client.work import rehearsal
from penstock_client.work.launcher import Worker
from penstock_client.work.spec import Spec

log = logging.getLogger("penstock.gate")


_REHEARSED = ("schema", "estimands", "privacy", "mechanism", "aggregation")
"""Parts of a study by which its runs differ."""


class WorkerSetup:
    """Starts the workers of one site, and remembers what was rehearsed already."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        # Seconds that a whole run takes, by what was rehearsed.
        self._rehearsed: dict[str, float] = {}

    def rehearse(
        self,
        signed: SignedStudy,
        admission: Admission,
        facts: SiteFacts,
        worker: Worker,
        held: contextlib.ExitStack,
        sums: Sequence[bytes] = (),
    ) -> float:
        """Start the worker, and let it run the study on synthetic rows; seconds of a whole run, or
        of the longest round of a release of many sites.

        Args:
            sums: of the rounds before, of such a release.

        Raises:
            Refused: it cannot be carried out here.
        """
        study, lineage = signed.study, facts.state.lineages[admission.charge.lineage]
        persons = lineage.versions[-1].persons
        spec = make_spec(
            study,
            facts.dictionary,
            admission.charge.events,
            persons,
            self._stores.paths,
            self._stores.settings,
            held,
        )
        if study.aggregation.joint:
            told = [read_sum(each) for each in sums]
            spec = replace(spec, site=facts.name, sums=told)
        about = {k: v for k, v in study.to_dict().items() if k in _REHEARSED}
        known = digest({**about, "dictionary": spec.dictionary, "persons": persons})
        try:
            if not worker.prepare(spec, rehearse=known not in self._rehearsed):
                raise JobFailed("the worker did not come so far", value=worker.why())
            if known not in self._rehearsed and study.aggregation.joint:
                measured = worker.measured()
                self._rehearsed[known] = measured.first * measured.pace
            elif known not in self._rehearsed:
                mechanism = self._stores.mechanisms.of(study.mechanism)
                shape = mechanism.shape(rehearsal.shortened(study, mechanism).asked, persons)
                began = time.perf_counter()
                measure_release(worker.rehearsed, shape, choose_version(study.wire))
                checked = time.perf_counter() - began
                measured = replace(worker.measured(), checked=checked)
                self._rehearsed[known] = rehearsal.seconds(study, mechanism, measured)
        except (OSError, ValueError, PenstockError) as error:
            self._stores.refuse_if_stopped()
            log.error("request %s failed its rehearsal: %s", admission.request_id[:12], error)
            why = error.value if isinstance(error, JobFailed) else error
            self._stores.jobs.note(admission.request_id, str(why))
            raise refuse("rehearsal") from None
        return self._rehearsed[known]


def make_spec(
    study: Study,
    dictionary: Schema,
    events: Sequence[Event],
    persons: int,
    paths: SitePaths,
    settings: SiteSettings,
    held: contextlib.ExitStack,
) -> Spec:
    """What a process that sees rows is told of them, for a release as for an attack on it.

    Args:
        held: keeps the sealed public rows open, where the study may use them.
    """
    public = None
    if study.privacy.guarantee == "public-flow":
        path = find_public_snapshot(paths)
        public = held.enter_context(seal_rows(path)) if path is not None else None
    return Spec(
        study=study.to_dict(),
        dictionary=dictionary.to_dict(),
        events=[to_dict(e) for e in events],
        public=public,
        persons=persons,
        device=settings.device,
        threads=settings.threads,
        memory_gb=settings.memory_gb,
        insecure_seed=settings.insecure_seed,
    )
