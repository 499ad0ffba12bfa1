"""How many persons a site's visits are of, where persons have several rows."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.questions.persons import Courses


@dataclass(frozen=True, slots=True)
class Attendees:
    """One site's: persons whose the rows of its first copy are."""

    persons: int


def count_attendees(courses: Courses) -> Attendees | None:
    """Of one table; None where it does not say whose its rows are."""
    if courses.person is None or not len(courses.person):
        return None
    return Attendees(int(courses.person.max()) + 1)
