"""`penstock.Client`: what an analyst does, from Python."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pandas as pd
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.analyst import (
    POLL_SECONDS,
    Coordinator,
    Fetching,
    connect,
)
from penstock.analyst.keyfile import read_private
from penstock.analyst.latex_tables import write_latex
from penstock.analyst.pulled import analyse
from penstock.analyst.waiting import wait_for_end
from penstock.base.documents import Json
from penstock.base.errors import CoordinatorError, InvalidInput, JobFailed, Problem
from penstock.base.files import reading_named
from penstock.study.study import Study, require_estimands
from penstock.study.toml import parse_study, read_file
from penstock.wire.messages import COPIES, Copies, StudyState
from penstock.wire.signatures import private_from_pem
from penstock.wire.signed import sign_cancel, sign_halves

Key = Ed25519PrivateKey | str | Path


class Client:
    """A coordinator, as an analyst uses it.

    Log in once with ``penstock login https://HOST:PORT``; then::

        >>> import penstock
        >>> with penstock.Client() as client:  # doctest: +SKIP
        ...     study = client.submit("sbp.toml", key="analyst.key")
        ...     client.wait(study, progress=lambda status: print(status["state"]))
        ...     rows = client.pooled(study)
        ...     report = client.report(study)
        >>> rows.groupby("_site")["sbp"].mean()  # doctest: +SKIP

    A study is named by its id, the beginning of its id, or its name. Every call may be repeated:
    the same study signed by the same key is the same study.

    Args:
        coordinator: ``https://HOST:PORT``, a login's name, or a directory on this machine; None for
            the login that ``penstock login`` saved last.

    Raises:
        NotAllowed: no login for it.
        InvalidInput: not an address.

    Example:
        Nothing is sent where a token could be read.

        >>> penstock.Client("http://coordinator.example.org")
        Traceback (most recent call last):
            ...
        penstock.base.errors.InvalidInput: coordinator: 1 problem
          address: is not encrypted: your token could be read. Write https://
    """

    def __init__(self, coordinator: str | Path | None = None) -> None:
        where = None if coordinator is None else str(coordinator)
        self._coordinator: Coordinator = connect(where)

    def __repr__(self) -> str:
        where = getattr(self._coordinator, "url", "directory")
        return f"<penstock.Client of {where}>"

    def close(self) -> None:
        """Give the connection back."""
        close: Callable[[], None] | None = getattr(self._coordinator, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    # -- studies ---------------------------------------------------------------------------------

    def submit(self, study: Study | str | Path, key: Key, *, no_estimands: bool = False) -> str:
        """Sign a study here, with your key, and hand it in.

        Args:
            study: a :class:`penstock.study.study.Study`, or the path of its TOML file.
            key: your private key, or the path of its file (0600); it goes nowhere.
            no_estimands: what sites release is wanted, and no report's answer.

        Returns:
            The study's id; of a study of both that of its first half, each site's own releases. The
            other half, one release of all sites, has the same name in :meth:`studies`.

        Raises:
            InvalidInput: the study has problems, and all of them are listed; or it has no
                estimands, and nobody said that none are wanted.
            NotAllowed: the key is not bound to your account at the coordinator.
            CoordinatorError: expired, unknown sites, a schema that a site does not carry, readers
                without an account, or too many open studies.
        """
        found = study if isinstance(study, Study) else _read_study(Path(study))
        if not no_estimands:
            what = f"study {found.name}" if isinstance(study, Study) else str(study)
            require_estimands(found, what, "call submit(…, no_estimands=True)")
        halves = sign_halves(found, _read_key(key))
        self._coordinator.require_wire(found.wire)
        ids = [self._coordinator.submit(signed.to_bytes()) for signed in halves]
        return ids[0]

    def studies(self) -> list[Json]:
        """All studies that you may read, oldest first, as :meth:`status` gives them."""
        return self._coordinator.studies()

    def status(self, study: str) -> Json:
        """Where a study stands: ``state``, ``quorum``, ``sites`` with state, code, remedy.

        While its results are made ``state`` is "pooling", and ``pooling`` says how many of its
        ``sites`` are ``done``.
        """
        return self._coordinator.status(study)

    def wait(
        self,
        study: str,
        *,
        progress: Callable[[Json], None] | None = None,
        timeout: float | None = None,
    ) -> Json:
        """Wait until a study has ended; a restart of the coordinator is waited for, too.

        Args:
            progress: told each status that comes.
            timeout: seconds; None for as long as it takes.

        Returns:
            The last status.

        Raises:
            Unfinished: it had not ended after ``timeout``.
            JobFailed: it ended without results.
        """
        every = getattr(self._coordinator, "poll_seconds", POLL_SECONDS)
        found = wait_for_end(
            lambda: self._coordinator.status(study), every=every, seen=progress, timeout=timeout
        )
        if found["state"] != StudyState.FINISHED:
            raise JobFailed(
                "the study ended without results",
                value=found["state"],
                bound=found["note"] or None,
                remedy="each site's code says why: see `status`",
            )
        return found

    def cancel(self, study: str, key: Key) -> None:
        """End a study of yours. What a site has reserved for a run in progress stays charged."""
        study_id = self._coordinator.status(study)["study"]
        self._coordinator.cancel(sign_cancel(study_id, _read_key(key)).to_bytes())

    def close_study(self, study: str, key: Key) -> None:
        """Finish a study of yours now, with the sites that have delivered: at least its quorum.

        Sites that have not begun are told so, and charge nothing. What a site has reserved for a
        run in progress stays charged, and what it makes stays there.

        Raises:
            CoordinatorError: fewer have delivered than its quorum, or it ended without results.
        """
        study_id = self._coordinator.status(study)["study"]
        self._coordinator.close_study(sign_cancel(study_id, _read_key(key)).to_bytes())

    # -- results ---------------------------------------------------------------------------------

    def report(self, study: str) -> Json:
        """The report of a finished study: pooled estimates, every site's ε, who is missing.

        Raises:
            CoordinatorError: the study has no results.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = self._pull_one(study, "report.json", Path(folder), copies="one")
            found: Json = json.loads(path.read_text(encoding="utf-8"))
        return found

    def pooled(self, study: str, copies: Copies = "one") -> pd.DataFrame:
        """The synthetic rows of all sites, with ``_site`` and ``_copy`` before the columns.

        Of persons who have several visits ``_person`` follows: whose a row is, within its copy.

        Args:
            copies: ``"one"`` to look at; ``"all"`` for inference: analyse every copy on its own and
                combine (``dictionary.json`` says how); never stack them.

        Raises:
            CoordinatorError: the study has no results.
        """
        return self._table(study, "pooled.parquet", copies=_check_copies(copies))

    def refits(self, study: str) -> pd.DataFrame:
        """The refits of all sites: ``_site``, ``_refit``, ``_fit``, ``_copy``, then the columns.

        Tables of the whole private procedure, repeated on the rows of the copy ``_copy``: they show
        the mechanism's own noise. ``dictionary.json`` says how (``intervals``).

        Raises:
            CoordinatorError: the study has no results, or no refits.
        """
        return self._table(study, "refits.parquet", copies="refits")

    def imputations(self, study: str) -> pd.DataFrame:
        """One refit of each fit: ``_site``, ``_imputation``, then the columns.

        What software for multiple imputation takes for completed tables, which it combines by
        Rubin's rules, a site at a time: they differ by the mechanism's noise, as copies do not.

        Raises:
            CoordinatorError: the study has no results, or no refits.
        """
        return self._table(study, "imputations.parquet", copies="imputations")

    def paths(self, study: str) -> pd.DataFrame:
        """The paths of a trajectory study: ``_site``, ``_path``, ``_time``, then the columns.

        They are draws from a model through snapshots, not persons' histories.

        Raises:
            CoordinatorError: the study has no results, or no paths.
        """
        return self._table(study, "paths.parquet")

    def particles(self, study: str) -> pd.DataFrame:
        """The particles of a trajectory study: ``_site``, ``_point``, ``_particle``, the columns.

        Raises:
            CoordinatorError: the study has no results, or no particles.
        """
        return self._table(study, "particles.parquet")

    def coefficients(self, study: str) -> Json:
        """The answers of a ``gibbs`` study: ``terms``, and of each of ``sites`` its ``estimates``
        and their ``covariance``; of a ``scoring`` study both of each of ``regressions``, and
        ``noise``, the mechanism's part of the covariance.

        Raises:
            CoordinatorError: the study has no results, or released tables.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = self._pull_one(study, "coefficients.json", Path(folder), copies="one")
            found: Json = json.loads(path.read_text(encoding="utf-8"))
        return found

    def pull(
        self, study: str, out: str | Path, copies: Copies = "one", *, latex: bool = False
    ) -> list[Path]:
        """Write report.html, report.json, dictionary.json, study.json, and what it released.

        Most mechanisms release tables (pooled.parquet, pooled.csv), a trajectory also paths and
        particles, ``gibbs`` and ``scoring`` coefficients only.

        Args:
            copies: ``"one"``, ``"all"``, or ``"refits"``: all, and the refits that show the
                mechanism's own noise (refits.parquet, refits.csv); or ``"imputations"``: one of
                each fit in their place, as software for multiple imputation takes them.
            latex: write each of the report's tables as LaTeX, too, beside its CSV: a ``table`` with
                a caption, which needs the package booktabs.

        Returns:
            The files.
        """
        files = self._coordinator.pull(study, Path(out), copies=_check_copies(copies))
        return [*files, *(write_latex(Path(out), files) if latex else ())]

    def analyse(
        self,
        study: str | Path,
        *questions: str,
        moderators: Sequence[str] = (),
        among: Mapping[str, Sequence[str]] | None = None,
    ) -> list[Json]:
        """Answers to further questions, from what was released, at no further cost.

        Combined over copies, widened by refits, pooled over sites: the study's own estimands have
        the report's numbers. ``penstock.enquiry.shorthand`` says how questions are written. Of
        each answer ``sentence`` is it in words, ``random`` the pooled number, and ``mark`` what
        the tables hold of it; of what is "unsupported" they say nothing.

        Args:
            study: a study, or a folder that was pulled with ``copies="refits"``.
            questions: ``"y ~ a + b"``, ``"mean(sbp)"``, an estimand's name; none: all estimands.
            moderators: numbers of sites that may explain how their answers differ, such as
                ``"mean(age)"``: of each answer ``moderation`` is the meta-regression on them.
            among: groups of sites, such as ``{"north": ["aric-f"], "south": ["chs-m", "fos"]}``: of
                each answer ``among`` has each group's pooled number, and the test between them.

        Raises:
            InvalidInput: a column that is not in the release, a model or level that is not there, a
                site that is not there, or too few sites for so many moderators or groups.
            CoordinatorError: the study has no results.
        """

        def pull(name: str, out: Path) -> object:
            return self._coordinator.pull(name, out, copies="refits")

        return analyse(study, questions, pull, moderators=moderators, among=among)

    def _table(self, study: str, name: str, *, copies: Copies = "one") -> pd.DataFrame:
        with tempfile.TemporaryDirectory() as folder:
            return pd.read_parquet(self._pull_one(study, name, Path(folder), copies=copies))

    def _pull_one(self, study: str, name: str, folder: Path, *, copies: Copies) -> Path:
        if isinstance(self._coordinator, Fetching):
            self._coordinator.fetch(study, (name,), folder, copies=copies)
        else:
            files = self._coordinator.pull(study, folder, copies=copies)
            if name not in {file.name for file in files}:
                raise CoordinatorError("the study has no such file", value=name)
        return folder / name


def _check_copies(copies: Copies) -> Copies:
    if copies not in COPIES:
        bound = ", ".join(map(repr, COPIES))
        problem = Problem("copies", "unknown", value=repr(copies), bound=bound)
        raise InvalidInput("pull", [problem])
    return copies


def _read_study(path: Path) -> Study:
    with reading_named(path, "Give a study's TOML file"):
        text = read_file(path)
    try:
        return parse_study(text)
    except InvalidInput as error:
        raise InvalidInput(str(path), error.problems) from None


def _read_key(key: Key) -> Ed25519PrivateKey:
    if isinstance(key, Ed25519PrivateKey):
        return key
    return private_from_pem(read_private(Path(key)))
