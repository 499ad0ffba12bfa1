"""What the rest of the package knows of a mechanism: its settings, its plan, and one light object.

A mechanism is one package. Its object is torch-free and quick to import: what is heavy, its plan
and what it does to rows, is imported where it is used. Nobody outside asks which mechanism there
is: they ask the object, which :mod:`penstock.mechanisms.registry` finds.

=============  =================================================================================
who            asks a mechanism for
=============  =================================================================================
a study        :attr:`Mechanism.settings`, and what is wrong with them (:meth:`Settings.problems`)
a gate         :meth:`Mechanism.plan`, :meth:`~Mechanism.require_worth`, :meth:`~Mechanism.memory`
a worker       :meth:`Mechanism.run`, and :meth:`~Mechanism.shortened` to rehearse it
a forecast     :meth:`~Mechanism.without_repeats`: what is run on cohorts of nobody
both sides     :meth:`Mechanism.shape`: what a release looks like
a steward      :attr:`Mechanism.leaves`; :meth:`~Mechanism.attacked`, to try it on own rows
an analyst     :meth:`Mechanism.draft`, :attr:`~Mechanism.notes`, :meth:`~Mechanism.returned`
=============  =================================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.base.errors import Problem
from penstock.mechanisms.memory import Memory
from penstock.mechanisms.parts import Part, Progress
from penstock.mechanisms.released import Shape
from penstock.privacy.request import PrivacyRequest
from penstock.questions.effects import Effect
from penstock.questions.estimands import Estimand
from penstock.schema import Coded, Schema

if TYPE_CHECKING:
    from penstock.privacy.events import Event
    from penstock.privacy.measurements import WholeSum
    from penstock.privacy.noise.sources import NoiseSource
    from penstock.questions.persons import Courses
    from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


@runtime_checkable
class Settings(Protocol):
    """What a signed study holds of its mechanism: a frozen dataclass, all of it public.

    Attributes:
        name: of the mechanism; copies, refits: how many tables of each kind a release has; of an
            answer one and none.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    name: ClassVar[str]

    @property
    def copies(self) -> int: ...

    @property
    def refits(self) -> int: ...

    def problems(self, schema: Schema, estimands: Sequence[Estimand]) -> list[Problem]:
        """What this study and schema ask that the mechanism cannot do."""


@runtime_checkable
class Following(Protocol):
    """Settings of a mechanism that follows persons: whose tables hold them at times."""

    def problems_over_time(self, schema: Schema, estimand: Estimand) -> list[Problem]:
        """What an estimand of persons over time asks that the tables cannot tell."""

    def read_courses(self, schema: Schema, table: Coded) -> Courses:
        """Whose each row of a released table is, and when it was taken."""


class Plan(Protocol):
    """What a run is to do, and what is charged for it: from public numbers alone.

    Attributes:
        persons: public n; rows: k, rows per person at most.
        events: what the run is charged as; epsilon: their ε at the requested δ.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def guarantee(self) -> str: ...

    @property
    def persons(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def copies(self) -> int: ...

    @property
    def refits(self) -> int: ...

    @property
    def events(self) -> tuple[Event, ...]: ...

    @property
    def epsilon(self) -> float: ...


@runtime_checkable
class SummedPlan(Plan, Protocol):
    """A plan that asks rows for sums of whole numbers, and for nothing else."""

    @property
    def measurements(self) -> tuple[WholeSum, ...]: ...

    def with_noise(self, factor: float) -> SummedPlan:
        """The same with so many times the noise.

        Raises:
            InvalidInput: more is asked of rows than such sums.
        """


ABSENT = "absent"
"""In the metadata of a setting that came later: what a study means that was signed without it."""

S = TypeVar("S", bound=Settings)
P = TypeVar("P", bound=Plan)


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a study expects of rows that nobody has seen, as far as answers' widths go by it.

    Attributes:
        shares: by column, of the rows that have its rarest level, or a duration's event.
        filled: of a frame, that holds persons.
    """

    shares: tuple[tuple[str, float], ...] = ()
    filled: float = 1.0

    def share(self, column: str, otherwise: float) -> float:
        """Of a column, or what stands for it where nothing is said."""
        return dict(self.shares).get(column, otherwise)


@dataclass(frozen=True, slots=True)
class Asked(Generic[S]):
    """The parts of a study that a mechanism has to know.

    No charge and no release depends on the prospect: by it what would be noise is refused.

    Attributes:
        apart_by: the column, one level of it a person's, by which coefficients are told apart
            beside those of all rows; empty: none is.
    """

    settings: S
    schema: Schema
    privacy: PrivacyRequest
    estimands: tuple[Estimand, ...] = ()
    prospect: Prospect = Prospect()
    apart_by: str = ""


class Invertible(Protocol):
    """A fitted model that turns rows into latents and back; ``rows``: how many it was fitted on."""

    @property
    def rows(self) -> float: ...

    def to_latent(self, x: Array, /) -> Array: ...

    def to_values(self, z: Array, /) -> Array: ...

    def log_density(self, x: Array, /) -> Array: ...


class Fit(Protocol):
    """Fits a model to rows (n, k, d) with presence (n, k), as a release would."""

    def __call__(
        self,
        encoding: Encoding,
        rows: Array,
        present: Bools,
        noise: NoiseSource,
        progress: Progress,
        device: str,
    ) -> Invertible: ...


@dataclass(frozen=True, slots=True)
class Attacked:
    """What a membership attack has to know of a release that is made from rows' own latents.

    Args:
        w: share of the latent that is the person's own; clip: radius of the latents.
        copies: of a release; steps: of a fit; fit: how the model is made.
    """

    w: float
    clip: float
    copies: int
    steps: int
    fit: Fit


class Mechanism(ABC, Generic[S, P]):
    """One way of making a release.

    Attributes:
        settings: the class of its settings.
        head: what it releases, as a draft of a study says it after the mechanism's name.
        notes: of each setting, what a draft says beside it.
        leaves: what leaves a site, for its steward; mechanisms with the same words share a line.
        product: the same in three words.
        takes_time: whether a draft of its settings needs a column that says when a row was taken.
        answers: whether it answers the study's own questions alone, so that a study must ask one at
            least, and the next question costs again.
        tells_estimates: whether what it answers can be read as estimates (:meth:`read_answer`), so
            that it can be forecast without a table.
        summed: whether it makes one release of many sites, its plan being a :class:`SummedPlan`;
            but with settings that :meth:`instead_of_sums` knows.
        stratifies: whether a regression of many sites' rows has strata of sites; if not, it adjusts
            for which site a row is of.
        priced_alone: whether a dictionary is enough to price it with its default settings.
        attackable: whether a steward can attack it (:meth:`attacked`).
        guarantees: that can be asked of it.
    """

    settings: type[S]
    head: str
    notes: Mapping[str, str]
    leaves: str
    product: str
    takes_time: bool = False
    answers: bool = False
    tells_estimates: bool = False
    summed: bool = False
    stratifies: bool = True
    priced_alone: bool = False
    attackable: bool = False
    guarantees: tuple[str, ...] = ("formal",)

    @property
    def name(self) -> str:
        """As studies, policies and ledgers have it."""
        return self.settings.name

    # -- what is charged, before any row is read -------------------------------------------------

    @abstractmethod
    def plan(self, asked: Asked[S], persons: int) -> P:
        """Noise and charges for a site of so many persons; reads no row, and imports no torch.

        Raises:
            InvalidInput: the study asks for what the mechanism does not do.
            BudgetExceeded: ε cannot be met; says what could.
        """

    def plan_sums(self, asked: Asked[S], persons: int) -> P:
        """The plan of one release of many sites with so many persons: that of :meth:`plan`, but
        where a mechanism can ask rows for sums of whole numbers alone (:class:`SummedPlan`), and
        asks a single site otherwise.

        Raises:
            InvalidInput, BudgetExceeded: as :meth:`plan`.
        """
        return self.plan(asked, persons)

    def tells_site(self, asked: Asked[S]) -> bool:
        """Whether a release of many sites says of which site a row is, so that regressions are
        within sites."""
        return True

    def require_worth(self, asked: Asked[S], plan: P) -> None:
        """Refuse what would say nothing whatever the rows are, by public numbers alone.

        Raises:
            Hopeless: what would come back would be noise.
        """

    def lay_out(self, schema: Schema) -> Encoding:
        """How :meth:`run` is handed rows: as points, but where it would decode them first."""
        from penstock.schema.encoding import Encoding

        return Encoding(schema)

    @abstractmethod
    def memory(
        self, plan: P, schema: Schema, dictionary: Schema | None = None, threads: int = 1
    ) -> Memory:
        """What a worker takes at most that carries the plan out on a CPU.

        Args:
            schema: the study's; dictionary: the site's, the same where none is given.
            threads: that the site lets a run have; as many fits are held at once.
        """

    def instead_of_sums(self, settings: S) -> str:
        """Of a mechanism that is :attr:`summed`, what to ask for in place of settings with which it
        makes no release of many sites; empty where it does."""
        return ""

    # -- what leaves -------------------------------------------------------------------------------

    @abstractmethod
    def shape(self, asked: Asked[S], persons: int) -> Shape:
        """The named parts that a site of so many persons releases, in the order of :meth:`run`."""

    @abstractmethod
    def counts_rows(self, asked: Asked[S]) -> bool:
        """Whether a release holds a noisy count of the rows, and its tables have so many."""

    def share_rows(self, asked: Asked[S], persons: int) -> float:
        """Of as many rows as a site of so many persons has, the share that each table has."""
        return 1.0

    def list_effects(self, asked: Asked[S]) -> tuple[Effect, ...]:
        """What is planted into the released model to see what comes back, in the order of
        :func:`~penstock.mechanisms.planted.choose_sizes` among those of one outcome."""
        return ()

    def list_coarse(self, asked: Asked[S], table: Coded) -> tuple[str, ...]:
        """Columns that a released table shows to be coarser in it than what they tell: no planted
        run can see that, since the released model is as coarse."""
        return ()

    @abstractmethod
    def run(
        self,
        plan: P,
        encoding: Encoding,
        rows: Array,
        present: Bools,
        noise: NoiseSource,
        *,
        progress: Progress | None = None,
        device: str = "cpu",
        threads: int = 1,
        public: tuple[Array, Bools] | None = None,
    ) -> Iterator[Part]:
        """The parts of one release, each as soon as it is made, so that none waits in memory.

        They come in the order of :meth:`shape`; a long one may come in pieces.

        Relation: zero-out with public n; charged as ``plan.events``, whatever is read of them.

        Args:
            rows: (n, k, d), encoded; present: (n, k).
            public: rows and presence to fit on, for the guarantee ``public-flow``.
        """

    def read_answer(self, asked: Asked[S], columns: Mapping[str, ArrayLike]) -> Mapping[str, float]:
        """Each estimand's estimate, by name and per its units, where the mechanism
        :attr:`tells_estimates`.

        Args:
            columns: of the part ``answer``.
        """
        raise TypeError(f"no estimate is read of an answer of {self.name}")

    # -- rehearsals and attacks --------------------------------------------------------------------

    def steps(self, settings: S) -> int | None:
        """How many steps a fit has that a rehearsal may leave out; None where it is kept whole."""
        return None

    def count_per_fit(self, settings: S) -> int:
        """How many refits in a row are drawn from one fit."""
        return 1

    def shortened(self, settings: S, steps: int, copies: int, refits: int) -> S:
        """The settings with at most so many steps, copies and refits, where any can be left out."""
        whole = self.steps(settings)
        if whole is None:
            return settings
        fewer = {
            "steps": min(steps, whole),
            "copies": min(copies, settings.copies),
            "refits": min(refits, settings.refits),
        }
        # A type checker cannot know that settings with steps have the other two as fields.
        return cast(S, replace(cast(Any, settings), **fewer))

    def without_repeats(self, settings: S) -> S:
        """The settings with the same copies, which cost the same, and nothing made of them after:
        no refits, and nothing planted."""
        has = {field.name for field in fields(settings)}
        none = {"refits": 0, "planted": 0, "effects": ()}
        return cast(S, replace(cast(Any, settings), **{k: none[k] for k in none if k in has}))

    def attacked(self, plan: P) -> Attacked:
        """What an attack has to know of a release, where the mechanism is :attr:`attackable`."""
        raise TypeError(f"no attack is known on {self.name}")

    def attack_memory(
        self, plan: P, schema: Schema, dictionary: Schema | None = None, threads: int = 1
    ) -> Memory:
        """What the process takes at most that attacks it; see :mod:`penstock.mechanisms.memory`."""
        raise TypeError(f"no attack is known on {self.name}")

    # -- what an analyst reads ---------------------------------------------------------------------

    def draft(self, schema: Schema, time: str | None = None) -> S:
        """Settings to begin with, over these columns.

        Args:
            time: the column that says when a row was taken, where the mechanism takes one; if not
                given, one is looked for.

        Raises:
            InvalidInput: no such column, or none that can be told to be one.
        """
        return self.settings()

    def guessed(self, settings: S) -> str:
        """What to say of a draft whose column of times was not given; empty where it has none."""
        return ""

    @abstractmethod
    def returned(self, asked: Asked[S]) -> list[str]:
        """What each site releases, and what ``penstock pull`` writes: lines for an analyst."""


AnyMechanism = Mechanism[Any, Plan]
"""One whose settings are not known to a type checker: as a registry has it."""


def settings_to_dict(settings: Settings) -> dict[str, Any]:
    """The canonical JSON form: the name and every field, tuples as lists.

    A field that came later is left out where it is as it was before it (:data:`ABSENT`): what was
    signed then has the same bytes.
    """
    values = {
        f.name: getattr(settings, f.name)
        for f in fields(settings)
        if ABSENT not in f.metadata or getattr(settings, f.name) != f.metadata[ABSENT]
    }
    return {
        "name": settings.name,
        **{k: list(v) if isinstance(v, tuple) else v for k, v in values.items()},
    }
