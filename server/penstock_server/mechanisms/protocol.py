"""What the coordinator needs to know of a mechanism.

Two halves, since the pump and the port check uploads all day, and need no statistics for that:
:class:`MechanismKind` is light, and its :meth:`~MechanismKind.load_results` imports the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

from penstock.mechanisms.released import EACH, Refitting
from penstock.questions.estimands import Estimand
from penstock.schema import Coded
from penstock.study.study import Study
from penstock.wire.messages import Copies
from penstock_server.mechanisms.delivery import Upload

if TYPE_CHECKING:
    from penstock.inference.refits import Measured

Json = dict[str, Any]
Settings = TypeVar("Settings")


@dataclass(frozen=True, slots=True)
class ReleaseWords:
    """How the page and the demo speak of what leaves a site.

    Attributes:
        released: what a site releases, in two words.
        heading: over how much a site has released; size: that of one site of the report.
        rows: what a site's number of rows is, after what its frame is; or nothing.
        counts: what n and events below a forest plot are, and counts_by_site in the table of
            sites; or nothing.
        counts_copies: whether a site's estimate comes from so many of its copies.
        reproduce: how to come to the same numbers again.
    """

    released: str
    heading: str
    size: Callable[[Json], str]
    rows: str
    counts: str
    counts_by_site: str
    counts_copies: bool
    reproduce: str


@dataclass(frozen=True, slots=True)
class EffectClass:
    """Effects of one class of a mechanism's model, and whether its tables hold them.

    Attributes:
        effects: which; held: whether, by what the model is; text: as far as what, in a sentence.
    """

    effects: str
    held: Literal["yes", "in part", "no"]
    text: str


class Results(Protocol):
    """What is computed from the checked releases of one study.

    Attributes:
        own_summaries: classes of summaries that it alone makes.
    """

    own_summaries: ClassVar[tuple[type, ...]]

    def measure(self, upload: Upload, threads: int = 1) -> dict[str, Measured]:
        """Every estimand of one site's release, and what its refits show.

        Args:
            threads: at most so many fits at once.
        """

    def summarise(self, upload: Upload) -> tuple[object, ...]:
        """What sections of the report show of one site's release beside its estimates.

        A section finds what it draws by its type
        (:meth:`penstock_server.report.inputs.SiteInput.summary`).
        """

    def export(
        self, uploads: Callable[[], Iterator[Upload]], out: Path, copies: Copies
    ) -> list[Path]:
        """Write what an analyst pulls; each call of ``uploads`` begins with the first site."""

    def describe(self, report: Json, copies: Copies) -> Json:
        """What the exported files and their columns mean, and how their numbers combine."""


class MechanismKind(ABC, Generic[Settings]):
    """One mechanism's releases, of one study.

    Args:
        study: the question; used: its mechanism's settings.
    """

    words: ClassVar[ReleaseWords]

    def __init__(self, study: Study, used: Settings) -> None:
        self.study, self.used = study, used

    @property
    def joint(self) -> bool:
        """Whether all sites make one release together."""
        return self.study.aggregation.joint

    @property
    def refitting(self) -> Refitting:
        """How its refits are made of its copies."""
        return EACH

    # -- intake --------------------------------------------------------------------------------

    @property
    def injects(self) -> bool:
        """Whether a release states an ε of its own for latent noise injection."""
        return False

    @abstractmethod
    def check(self, parts: Mapping[str, Coded]) -> None:
        """What must hold of a release beyond its shape and its columns' bounds.

        Args:
            parts: their columns, by the part's name.

        Raises:
            UploadRejected: naming the first thing that does not hold.
        """

    # -- results -------------------------------------------------------------------------------

    @abstractmethod
    def load_results(self) -> Results:
        """The half that computes; its modules are imported here, and not before."""

    # -- words for the report ------------------------------------------------------------------

    @abstractmethod
    def explain(self) -> list[str]:
        """How a site makes its release: what it does, and what left it."""

    def name_fit(self, estimand: Estimand, model: str) -> str:
        """The model that was fitted, and by whom where it was not fitted to tables."""
        return model

    def list_warnings(self) -> list[tuple[str, str]]:
        """Code and text of what a reader must know before the numbers."""
        return []

    def list_classes(self) -> list[EffectClass]:
        """What its tables can hold, and what they cannot, by class of its model; none: not said."""
        return []

    @abstractmethod
    def list_limits(self, *, mechanism_variance: bool) -> tuple[list[str], list[str]]:
        """What the numbers do and do not include: said before, and after, what holds for all.

        Args:
            mechanism_variance: whether refits show the noise of some site's mechanism.
        """
