"""What a gate keeps of the sums it takes part in: durable before anything of it leaves.

Two tables beside the ledger's, in its database. An answer is written in one statement with what it
answers, and erases what it makes needless; so a crash leaves a state from before it or after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock_client.ledger.sqlite_file import Database

_TABLES = (
    """CREATE TABLE IF NOT EXISTS sum_study (
        study TEXT PRIMARY KEY, roster TEXT NOT NULL, introduction BLOB NOT NULL,
        letter_seed BLOB, meeting BLOB
    ) STRICT""",
    """CREATE TABLE IF NOT EXISTS sum_round (
        study TEXT NOT NULL, round INTEGER NOT NULL, posting BLOB NOT NULL,
        self_seed BLOB, pair_seed BLOB, own_shares BLOB,
        context TEXT, members TEXT, shares TEXT, masked BLOB,
        survivors TEXT, reveal BLOB,
        PRIMARY KEY (study, round)
    ) STRICT""",
)


def list_open_sums(database: Database) -> list[str]:
    """Studies of which secrets are still kept."""
    there = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'sum_study'"
    if not database.query(there):
        return []
    rows = database.query("SELECT study FROM sum_study WHERE letter_seed IS NOT NULL")
    return [str(study) for (study,) in rows]


@dataclass(frozen=True, slots=True)
class StudyRow:
    """A study's key for letters: ``letter_seed`` and ``meeting`` are None once it is over."""

    roster: str
    introduction: bytes
    letter_seed: bytes | None
    meeting: bytes | None


@dataclass(frozen=True, slots=True)
class RoundRow:
    """A round: secrets and shares are None before they are there and after they were erased."""

    posting: bytes
    self_seed: bytes | None
    pair_seed: bytes | None
    own_shares: bytes | None
    context: str | None
    members: str | None
    shares: str | None
    masked: bytes | None
    survivors: str | None
    reveal: bytes | None


class SumRecord:
    """The record of one study's sums."""

    def __init__(self, database: Database, study: str) -> None:
        self._database = database
        self._study = study
        # What is erased is overwritten in the file, and not only unlinked from its tables.
        database.query("PRAGMA secure_delete = ON")
        with database.transaction() as connection:
            for table in _TABLES:
                connection.execute(table)

    def study(self) -> StudyRow | None:
        rows = self._database.query(
            "SELECT roster, introduction, letter_seed, meeting FROM sum_study WHERE study = ?",
            self._study,
        )
        return StudyRow(*rows[0]) if rows else None

    def round(self, number: int) -> RoundRow | None:
        rows = self._database.query(
            "SELECT posting, self_seed, pair_seed, own_shares, context, members, shares, masked, "
            "survivors, reveal FROM sum_round WHERE study = ? AND round = ?",
            self._study,
            number,
        )
        return RoundRow(*rows[0]) if rows else None

    def keep_introduction(self, roster: str, introduction: bytes, letter_seed: bytes) -> None:
        """The first one stays."""
        self._write(
            "INSERT INTO sum_study (study, roster, introduction, letter_seed) VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            self._study,
            roster,
            introduction,
            letter_seed,
        )

    def keep_meeting(self, meeting: bytes) -> None:
        """The first one stays."""
        self._write(
            "UPDATE sum_study SET meeting = ? WHERE study = ? AND meeting IS NULL "
            "AND letter_seed IS NOT NULL",
            meeting,
            self._study,
        )

    def keep_posting(
        self, number: int, posting: bytes, self_seed: bytes, pair_seed: bytes, own_shares: bytes
    ) -> None:
        """The first one stays."""
        self._write(
            "INSERT INTO sum_round (study, round, posting, self_seed, pair_seed, own_shares) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            self._study,
            number,
            posting,
            self_seed,
            pair_seed,
            own_shares,
        )

    def keep_masked(
        self, number: int, context: str, members: str, shares: str, masked: bytes
    ) -> None:
        """The first one stays; the seeds of the masks are erased with it."""
        self._write(
            "UPDATE sum_round SET context = ?, members = ?, shares = ?, masked = ?, "
            "self_seed = NULL, pair_seed = NULL, own_shares = NULL "
            "WHERE study = ? AND round = ? AND masked IS NULL AND self_seed IS NOT NULL",
            context,
            members,
            shares,
            masked,
            self._study,
            number,
        )

    def keep_reveal(self, number: int, survivors: str, reveal: bytes) -> None:
        """The first one stays; the peers' shares are erased with it."""
        self._write(
            "UPDATE sum_round SET survivors = ?, reveal = ?, shares = NULL "
            "WHERE study = ? AND round = ? AND reveal IS NULL AND shares IS NOT NULL",
            survivors,
            reveal,
            self._study,
            number,
        )

    def erase(self) -> None:
        """Every secret of the study that is left. What was answered stays, to be said again."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE sum_study SET letter_seed = NULL, meeting = NULL WHERE study = ?",
                (self._study,),
            )
            connection.execute(
                "UPDATE sum_round SET self_seed = NULL, pair_seed = NULL, own_shares = NULL, "
                "shares = NULL WHERE study = ?",
                (self._study,),
            )

    def _write(self, sql: str, *values: object) -> None:
        with self._database.transaction() as connection:
            connection.execute(sql, values)
