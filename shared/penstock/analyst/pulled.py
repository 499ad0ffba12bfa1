"""Questions to a study, wherever it is: a pulled folder, or a coordinator's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from penstock.base.documents import Json
from penstock.base.errors import CoordinatorError
from penstock.enquiry.holdings import read_holdings
from penstock.enquiry.reply import answer_questions

UNKNOWN = "no such study"
"""What a coordinator says of a study that it has not."""


def analyse(
    study: str | Path,
    questions: Sequence[str],
    pull: Callable[[str, Path], object],
    *,
    moderators: Sequence[str] = (),
    among: Mapping[str, Sequence[str]] | None = None,
) -> list[Json]:
    """Every answer (:func:`penstock.enquiry.reply.answer_questions`).

    Args:
        study: a folder with a ``study.json`` that was pulled with refits, or a study.
        pull: fetches a study with its refits into a folder; asked only where there is no folder.
        moderators, among: as there.

    Raises:
        InvalidInput: no question, or nothing that can be asked.
        CoordinatorError: no such folder, and no such study.
    """

    def ask(folder: Path) -> list[Json]:
        held = read_holdings(folder)
        return answer_questions(held, questions, moderators=moderators, among=among)

    if (Path(study) / "study.json").exists():
        return ask(Path(study))
    with tempfile.TemporaryDirectory() as made:
        try:
            pull(str(study), Path(made))
        except CoordinatorError as error:
            if error.message != UNKNOWN:
                raise
            raise CoordinatorError(
                "neither a folder with a study.json nor a study",
                value=study,
                remedy="give a folder that `penstock pull --refits` wrote, or a study's id or name",
            ) from None
        return ask(Path(made))
