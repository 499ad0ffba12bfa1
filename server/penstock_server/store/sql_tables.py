"""The tables of a coordinator's store."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()
_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # SQLite counts INTEGER keys only

settings_table = sa.Table(
    "settings",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
site_table = sa.Table(
    "site",
    metadata,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("federation", sa.String, nullable=False),
    sa.Column("gate_key", sa.String(64), nullable=False),
    sa.Column("persons", sa.Integer, nullable=False),
    sa.Column("join_record", sa.Text, nullable=False),
    sa.Column("enrolled", sa.String, nullable=False),
    # When it was last heard of, and what it said of itself then.
    sa.Column("seen", sa.String, nullable=False, default=""),
    sa.Column("said", sa.Text, nullable=False, default="{}"),
    # The manifest with the highest ledger position: proof of it, to be shown to the site.
    sa.Column("newest_seq", sa.BigInteger, nullable=False, default=0),
    sa.Column("newest_manifest", sa.LargeBinary, nullable=False, default=b""),
)
ledger_seen_table = sa.Table(
    "ledger_seen",
    metadata,
    # Positions that a site's manifests have shown: one head per position, or the ledger forked.
    sa.Column("site", sa.String(63), sa.ForeignKey("site.name"), primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("head", sa.String(64), nullable=False),
)
study_table = sa.Table(
    "study",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("signed", sa.LargeBinary, nullable=False),
    sa.Column("state", sa.String, nullable=False, index=True),
    sa.Column("created", sa.String, nullable=False),
    sa.Column("deadline", sa.String, nullable=False),
    sa.Column("finished", sa.String, nullable=False, default=""),
    sa.Column("note", sa.Text, nullable=False, default=""),
    # The account that handed it in; empty from the coordinator's own machine, and before format 3.
    sa.Column("owner", sa.String(64), nullable=False, server_default=""),
    sa.Column("signer", sa.String(64), nullable=False, server_default=""),
)
study_reader_table = sa.Table(
    "study_reader",
    metadata,
    # Accounts that the signed study lets read it, besides its owner's.
    sa.Column("study_id", sa.String(64), sa.ForeignKey("study.id"), primary_key=True),
    sa.Column("account", sa.String(64), primary_key=True),
)
account_key_table = sa.Table(
    "account_key",
    metadata,
    # The signing keys of accounts, as they are now: a key is bound to one account.
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("account", sa.String(64), nullable=False, index=True),
    sa.Column("added", sa.String, nullable=False),
)
token_table = sa.Table(
    "token",
    metadata,
    # 32 random bytes cannot be guessed from their hash: no salt, no slow hash is needed.
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(64), nullable=False, index=True),
    sa.Column("role", sa.String, nullable=False),
    sa.Column("created", sa.String, nullable=False),
    sa.Column("expires", sa.String, nullable=False),
    sa.Column("revoked", sa.String, nullable=False, default=""),
)
access_table = sa.Table(
    "access",
    metadata,
    # The chain of penstock_server.access.access_chain.
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("signature", sa.String(128), nullable=False),
)
study_site_table = sa.Table(
    "study_site",
    metadata,
    sa.Column("study_id", sa.String(64), sa.ForeignKey("study.id"), primary_key=True),
    sa.Column("site", sa.String(63), sa.ForeignKey("site.name"), primary_key=True),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("code", sa.String, nullable=False, default=""),
    sa.Column("detail", sa.Text, nullable=False, default=""),
    sa.Column("request_id", sa.String(64), nullable=False, default=""),
    sa.Column("step", sa.Integer, nullable=False, default=0),
    sa.Column("steps", sa.Integer, nullable=False, default=0),
    sa.Column("updated", sa.String, nullable=False),
    # The last ledger position seen from the site before the study was invited there.
    sa.Column("ledger_floor", sa.BigInteger, nullable=False, default=0),
    sa.Column("manifest", sa.LargeBinary, nullable=True),
)
pooling_table = sa.Table(
    "pooling",
    metadata,
    # The studies whose results are to be made, and who makes them: penstock_server.store.leases.
    sa.Column("study_id", sa.String(64), sa.ForeignKey("study.id"), primary_key=True),
    sa.Column("since", sa.String, nullable=False),
    # How many sites have delivered, and how many of them are pooled so far.
    sa.Column("sites", sa.Integer, nullable=False),
    sa.Column("done", sa.Integer, nullable=False, default=0),
    # Who has the lease, empty if nobody has, and until when.
    sa.Column("holder", sa.String(64), nullable=False, default=""),
    sa.Column("until", sa.String, nullable=False, default=""),
    # Nobody takes it before.
    sa.Column("due", sa.String, nullable=False),
    sa.Column("crashes", sa.Integer, nullable=False, default=0),
    # What kept the last try from its end, for people.
    sa.Column("trouble", sa.Text, nullable=False, default=""),
)
outbox_table = sa.Table(
    "outbox",
    metadata,
    sa.Column("id", _SERIAL, primary_key=True, autoincrement=True),
    sa.Column("study_id", sa.String(64), nullable=False, index=True),
    sa.Column("site", sa.String(63), nullable=False),
    sa.Column("verb", sa.String, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("due", sa.String, nullable=False, index=True),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sqlite_autoincrement=True,  # an id is never used twice, or a reply might answer two messages
)
inbox_table = sa.Table(
    "inbox",
    metadata,
    sa.Column("id", _SERIAL, primary_key=True, autoincrement=False),  # of the message it answers
    sa.Column("study_id", sa.String(64), nullable=False),
    sa.Column("site", sa.String(63), nullable=False),
    sa.Column("verb", sa.String, nullable=False),
    sa.Column("reply", sa.Text, nullable=False),
    sa.Column("manifest", sa.LargeBinary, nullable=True),
)
summation_table = sa.Table(
    "summation",
    metadata,
    # Studies that are one release of many sites: how far their sums are
    # (penstock_server.store.summing).
    sa.Column("study_id", sa.String(64), sa.ForeignKey("study.id"), primary_key=True),
    sa.Column("rounds", sa.Integer, nullable=False),
    sa.Column("round", sa.Integer, nullable=False, default=0),
    sa.Column("stage", sa.String, nullable=False),
    # When the stage began.
    sa.Column("since", sa.String, nullable=False),
)
step_table = sa.Table(
    "step",
    metadata,
    # What sites said in the round that is open, and what was decided in it (of site "").
    sa.Column("study_id", sa.String(64), sa.ForeignKey("study.id"), primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("verb", sa.String, primary_key=True),
    sa.Column("site", sa.String(63), primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)
round_sum_table = sa.Table(
    "round_sum",
    metadata,
    # The sum of each round that is over, and whose vectors it is of.
    sa.Column("study_id", sa.String(64), sa.ForeignKey("study.id"), primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("survivors", sa.Text, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)
