"""`penstock site ledger`: what a steward sees, asks and proves, and every mistake they may make."""

from __future__ import annotations

import contextlib
import io
import json
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.support.ledgers import DIGESTS
from typer.testing import CliRunner

from penstock.base.errors import InvalidInput, Refused
from penstock.cli.main import app
from penstock.mechanisms import Gibbs, SlicedWasserstein
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.events import Gaussian, PoissonGaussian, Unbounded, from_dict, to_dict
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.study.toml import draft_study, write_study
from penstock.wire.signatures import generate_key, public_hex, sign
from penstock_client.cli import budget_view
from penstock_client.gate.admission import consider
from penstock_client.gate.facts import read_facts
from penstock_client.ledger import picture, prospects, whatif
from penstock_client.ledger.budget import summarize_budget
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.records import RECORD
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import Charge, State
from penstock_client.site.policy import read_policy
from penstock_client.site.signers import read_trust
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import read_settings

RELEASE = (Gaussian(8.0), PoissonGaussian(0.02, 2.0, 50))
PRICE = epsilon(RELEASE, 1e-5)


@dataclass
class Said:
    code: int
    out: str
    err: str


@dataclass
class Steward:
    """A certified site whose ledger has a past."""

    root: Path
    ledger: Ledger
    signer: str

    def __call__(self, *args: object, code: int = 0, env: dict[str, str] | None = None) -> Said:
        command = ["site", "ledger", *(str(a) for a in args), "-d", str(self.root)]
        result = CliRunner().invoke(app, command, env=env)
        said = Said(result.exit_code, result.stdout, result.stderr)
        assert result.exception is None or isinstance(result.exception, SystemExit), said
        assert said.code == code, said
        assert "Traceback" not in said.err
        return said

    def json(self, *args: object, code: int = 0) -> Any:
        return json.loads(self(*args, "--json", code=code).out)

    def charge(self, name: str, *events: Any, study: str = "trial") -> None:
        charge = Charge(
            name, "main", 1, f"{study}/{name}", self.signer, "maf", events or RELEASE, 1e-5,
            study=study, **DIGESTS,
        )  # fmt: skip
        self.ledger.reserve(charge, signer_epsilon=10.0)


@pytest.fixture
def steward(world) -> Iterator[Steward]:
    """Four charges at half-yearly steps from today on, under a yearly allowance."""
    site = world.site("a")
    policy = site.paths.policy
    policy.write_text(policy.read_text() + "yearly_epsilon = 4.0\n")
    start = datetime(datetime.now(UTC).year + 1, 1, 5, tzinfo=UTC)
    ticks = iter(range(1000))

    def clock() -> str:
        moment = start + timedelta(days=60 * next(ticks))
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    with contextlib.closing(Database(site.paths.database)) as database:
        ledger = Ledger(database, site.paths.key(), clock)
        made = Steward(site.paths.root, ledger, public_hex(world.analyst))
        for name in ("r1", "r2"):
            made.charge(name)
            ledger.commit(name)
        made.charge("r3", study="other")
        ledger.burn("r3", "failed")
        made.charge("r4", study="other")
        yield made


# -- show --------------------------------------------------------------------------------------


def test_one_study_of_epsilon_one_was_shown_as_four_numbers(world):
    """1, 1.25, 1.55 and 4.09 were four accounts of one study; a steward wants one, and a share."""
    site = world.site("a")
    with contextlib.closing(Database(site.paths.database)) as database:
        made = Steward(
            site.paths.root, Ledger(database, site.paths.key()), public_hex(world.analyst)
        )
        made.charge("r1", Gaussian(noise_for(1.0)))
        made.ledger.commit("r1")
        said, detail, (row,) = made("show").out, made("show", "--detail").out, made.json("show")
    share = row["share_spent"]
    (line,) = [line for line in said.splitlines() if "trial" in line]
    assert line.split()[2:3] == ["1"]
    assert f"{100 * share:.2g} %" in line
    assert f"main: {100 * share:.2g} % of its life is used; ε ≤ 10 for life" in said
    names = ("spent_epsilon", "odometer_epsilon", "spent_epsilon_replace_one", "left_epsilon")
    for others in (f"{row[name]:.3g}" for name in names):
        assert others not in said
        assert others in detail
    assert row["charges"][0]["share_of_life"] == pytest.approx(share)


def test_shares_of_studies_add_up_to_the_headline(steward):
    (row,) = steward.json("show")
    parts = [c["share_of_life"] for c in row["charges"]]
    assert sum(parts) == pytest.approx(row["share_spent"])
    said = steward("show").out
    assert "shares add up" in said
    assert "burnt: failed" in said
    assert "reserved" in said
    assert max(len(line) for line in said.splitlines()) <= 80


def noise_for(price: float) -> float:
    """The noise multiplier whose release costs ε = ``price`` at δ = 1e-5, to three digits."""
    low, high = 0.1, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon((Gaussian(middle),), 1e-5) > price else (low, middle)
    return high


def test_show_says_what_is_spent_and_what_is_left(steward):
    said = steward("show", "--detail").out
    (row,) = steward.json("show")
    assert "ε ≤ 10 for life, at δ 1e-05" in said
    for words in (
        "of its life is used",
        f"ε {row['spent_epsilon']:.3g} (order",
        f"ε {row['left_epsilon']:.3g}",
        "valid whenever you look",
        "analyst",
        "trial",
        "200 (version 1)",
        *(c["request"] for c in row["charges"]),
    ):
        assert words in said
    assert f"of 4, {row['years'][-1]['left_epsilon']:.3g} left" in said
    assert max(len(line) for line in said.splitlines()) <= 80


def test_show_as_json_is_the_summary_as_it_is(steward):
    state, root = steward.ledger.state(), steward.root
    policy, trust = read_policy(root / "policy.toml"), read_trust(root / "trust.json")
    expected = json.loads(json.dumps(summarize_budget(state, policy, trust)))
    assert steward.json("show") == expected
    charges = expected[0]["charges"]
    assert [c["status"] for c in charges] == ["committed", "committed", "burnt", "reserved"]
    running = [c["spent_after"] for c in charges]
    assert running == sorted(running)
    assert running[-1] == expected[0]["spent_epsilon"]
    assert charges[-1]["odometer_after"] == expected[0]["odometer_epsilon"] > 0


def test_the_bar_needs_neither_colour_nor_more_than_ascii(steward, monkeypatch):
    assert "\x1b[" not in steward("show").out
    (row,) = steward.json("show")
    raw = io.BytesIO()
    plain = io.TextIOWrapper(raw, encoding="ascii")  # strict: anything else would raise
    monkeypatch.setattr(budget_view, "out", Console(file=plain, highlight=False, soft_wrap=True))
    budget_view._show_bar(row["share_spent"])
    plain.flush()
    assert set(raw.getvalue().decode().strip()) == {"#", "."}
    assert 0 < row["share_spent"] < 1
    assert raw.getvalue().count(b"#") == math.ceil(row["share_spent"] * budget_view.WIDTH)


def test_show_of_an_ended_budget(steward):
    steward.charge("end", Unbounded("told"))
    said = steward("show").out
    assert "its guarantee ended, by a release without one (ε = ∞)" in said
    assert "ended, by a release without one" in steward("show", "--detail").out
    (row,) = steward.json("show")
    assert row["closed"]
    assert row["charges"][-1]["epsilon"] is None


# -- the picture -------------------------------------------------------------------------------


def png(path: Path) -> tuple[int, int, int]:
    """Width, height, and how many different rows of pixels a PNG has (RFC 2083, no interlacing)."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, head = 8, b"", ()
    while at < len(data):
        (size,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(
            kind + body
        )
        head = struct.unpack(">IIBBBBB", body) if kind == b"IHDR" else head
        packed += body if kind == b"IDAT" else b""
        at += 12 + size
    width, height, depth, colour = head[:4]
    assert (depth, colour) == (8, 6)
    pixels, line = zlib.decompress(packed), 1 + 4 * width
    assert len(pixels) == height * line
    return width, height, len({pixels[y * line : (y + 1) * line] for y in range(height)})


def test_the_picture_is_a_real_png(steward, tmp_path):
    said = steward("show", "--plot", tmp_path / "budget.png")
    assert "drawn in" in said.out
    width, height, rows = png(tmp_path / "budget.png")
    assert min(width, height) > 500
    assert rows > 60  # an empty frame has few
    before = (tmp_path / "budget.png").read_bytes()
    assert "exists there already" in steward("show", "--plot", tmp_path / "budget.png", code=1).err
    assert (tmp_path / "budget.png").read_bytes() == before


def test_the_picture_says_what_is_in_it(steward, tmp_path):
    steward.ledger.add_version("main", 210, "g", new_frame=True)
    rows = steward.json("show", "--plot", tmp_path / "budget.svg")
    text = (tmp_path / "budget.svg").read_text(encoding="utf-8")
    assert text.lstrip().startswith("<?xml")
    for words in (
        "may never be crossed: ε = 10",
        "odometer",
        "burnt: charged, nothing released",
        "reserved: still running",
        "v1, n = 200",
        "v2, n = 210",
        f"of {rows[0]['years'][0]['allowance']:g}",
        "UTC",
    ):
        assert words in text, words


def made_up(charges: int, **changes: Any) -> dict[str, Any]:
    start = datetime(2024, 2, 3, tzinfo=UTC)
    times = [start + timedelta(days=17 * i + 1) for i in range(charges)]
    return {
        "lineage": "$\\frac{",
        "delta": 1e-5,
        "total_epsilon": 8.0,
        "spent_epsilon": 0.05 * charges,
        "exhausted": False,
        "years": [],
        "versions": [{"version": 1, "persons": 9, "time": start.isoformat()}],
        "charges": [
            {
                "time": time.isoformat(),
                "status": "committed",
                "epsilon": 0.1,
                "spent_after": 0.05 * (i + 1),
                "odometer_after": None if i > 30 else 0.07 * (i + 1),
            }
            for i, time in enumerate(times)
        ],
        **changes,
    }


@pytest.mark.parametrize(
    ("charges", "suffix"), [(0, ".png"), (1, ".svg"), (60, ".pdf"), (60, ".PNG")]
)
def test_pictures_of_any_ledger(charges, suffix, tmp_path):
    now = datetime(2026, 11, 21, tzinfo=UTC)
    years = [{"year": y, "allowance": 2.0, "spent_epsilon": 0.5} for y in (2024, 2025)]
    ended = made_up(3, exhausted=True, years=[{**years[0], "spent_epsilon": None}])
    ended["charges"][-1] |= {"epsilon": None, "spent_after": None}
    path = tmp_path / f"p{suffix}"
    picture.draw_budget([made_up(charges, years=years), ended], path, site="a\x1b", now=now)
    first = path.read_bytes()
    assert len(first) > 10_000
    picture.draw_budget([made_up(charges, years=years), ended], path, site="a\x1b", now=now)
    assert path.read_bytes() == first


def test_pictures_that_cannot_be(steward, tmp_path):
    said = steward("show", "--plot", tmp_path / "budget.jpeg", code=2)
    assert "not a kind of picture" in said.err
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInput, match="1 problem"):
        picture.draw_budget([], tmp_path / "p.png", site="a", now=datetime.now(UTC))


# -- what if -----------------------------------------------------------------------------------


def test_what_if_answers_as_the_ledger_would(steward):
    before = steward.ledger.records()
    found = steward.json("what-if", "--signer", "analyst")
    assert steward.ledger.records() == before
    assert found["admitted"]
    assert [r["reason"] for r in found["limits"]] == ["budget", "signer-budget", "yearly-budget"]
    assert found["epsilon"] <= 1.0
    events = tuple(from_dict(e) for e in found["events"])
    life, _, year = found["limits"]
    assert found["spent_after"] == life["after_epsilon"] > life["spent_epsilon"]
    assert found["buys"]["share_sd"] == pytest.approx(found["buys"]["count_sd"] / 200)
    # As many as it says fit, and not one more.
    lineage = steward.ledger.state().lineages["main"]
    for number, fits in ((life["more"], True), (life["more"] + 1, False)):
        assert lineage.filter.admits(lineage.events(), events * number) is fits
    assert found["releases_left"] == min(r["more"] for r in found["limits"])
    assert year["spent_epsilon"] == pytest.approx(
        steward.json("show")[0]["years"][-1]["spent_epsilon"]
    )
    steward.charge("next", *events)
    assert steward.json("show")[0]["spent_epsilon"] == pytest.approx(found["spent_after"])


def test_what_if_names_the_limit_that_refuses(steward):
    found = steward.json("what-if", "--epsilon", "3.5")
    assert not found["admitted"]
    assert found["refusals"][0]["reason"] == "study-budget"
    assert found["releases_left"] == 0
    policy = steward.root / "policy.toml"
    policy.write_text(policy.read_text().replace("yearly_epsilon = 4.0", "yearly_epsilon = 3.0"))
    found = steward.json("what-if", "--epsilon", "2.9")
    assert [r["reason"] for r in found["refusals"]] == ["yearly-budget"]
    assert "would be refused" in steward("what-if", "--epsilon", "2.9").out
    # The largest that fits does, and a little more does not.
    largest = found["largest_epsilon"]
    assert found["largest_limit"].startswith("the allowance of")
    assert steward.json("what-if", "--epsilon", largest)["admitted"]
    assert not steward.json("what-if", "--epsilon", largest * 1.02)["admitted"]


def test_what_if_counts_releases(steward):
    found = steward.json("what-if", "--epsilon", "0.5", "--releases", "3")
    assert found["releases_fit"]
    left = found["releases_left"]
    assert steward.json("what-if", "--epsilon", "0.5", "--releases", left)["releases_fit"]
    assert not steward.json("what-if", "--epsilon", "0.5", "--releases", left + 1)["releases_fit"]
    said = steward("what-if", "--epsilon", "0.5", "--releases", left + 1).out
    assert f"{left + 1} such releases do not fit; {left} would" in said
    assert "this year" in said
    assert "noise of sd" in said


def test_what_if_of_a_mechanism(steward):
    few = ("--mechanism", "maf", "--steps", "20", "--copies", "2")
    found = steward.json("what-if", *few)
    assert {e["label"] for e in found["events"]} >= {"margins", "moments", "flow, DP-SGD"}
    assert found["epsilon"] <= 1.0
    assert "a synthetic table (maf)" in steward("what-if", *few).out
    said = steward("what-if", *few, "--w", "0.5", code=3).err
    assert "use w below" in said
    assert "a step" not in said


@pytest.fixture
def study(steward, world, tmp_path) -> Path:
    text = draft_study(
        world.study().schema,
        name="trial",
        sites=("a",),
        federation="main",
        not_before="2026-01-01T00:00:00Z",
        expires="2099-01-01T00:00:00Z",
    )
    path = tmp_path / "study.toml"
    path.write_text(text)
    return path


def test_what_if_promised_what_a_gate_refuses(steward, world, tmp_path):
    """Noise, and what does not fit: said by what-if in the words of the gate's refusal."""
    question = (Estimand("e", "ols", "score", "sbp", adjust=("age", "sex")),)
    large = SlicedWasserstein(copies=1, refits=0, steps=10_000, bases=512, bins=1024)
    policy, settings = steward.root / "policy.toml", steward.root / "site.toml"
    names = '["maf", "gibbs", "sliced-wasserstein"]'
    policy.write_text(policy.read_text().replace('["maf"]', names))
    settings.write_text(settings.read_text() + "\nmemory_gb = 1\n")
    lineage = steward.ledger.state()
    paths = SitePaths(steward.root)
    facts = read_facts(paths, read_settings(paths), lineage, "2026-06-01T00:00:00Z")
    signer = next(iter(facts.trust.signers.values()))
    for code, words, changes in (
        ("hopeless", "ask for an ε of at least", {"mechanism": Gibbs(), "estimands": question}),
        ("memory", "for 200 persons, of 1 GB", {"mechanism": large}),
    ):
        signed = world.signed(privacy=PrivacyRequest(0.3, 1e-5), name=code, **changes)
        with pytest.raises(Refused) as caught:
            consider(signed, facts)
        assert caught.value.reason == code
        path = tmp_path / f"{code}.toml"
        path.write_text(write_study(signed.study))
        found = steward.json("what-if", "--study", path, "--signer", signer.label)
        assert not found["admitted"]
        (refusal,) = found["refusals"]
        assert refusal["reason"] == code
        assert words in refusal["why"]
        assert refusal["why"] in str(caught.value)
        assert (found["releases_left"], found["releases_fit"]) == (0, False)
        said = steward("what-if", "--study", path).out
        assert "would be refused" in said
        assert f"{code}: " in said
        # No ε makes room; a larger one makes an answer.
        assert (found["largest_epsilon"] > 0.3) is (code == "hopeless")


def test_what_if_of_a_study_file(steward, study):
    found = steward.json("what-if", "--study", study, "--signer", "analyst")
    assert found["mechanism"] == "structured"
    assert found["signer"] == "analyst"
    # The study of this name was charged before: its allowance counts.
    assert "study-budget" in [r["reason"] for r in found["limits"]]
    said = steward("what-if", "--study", study, "--epsilon", "1", code=2).err
    assert "says everything" in said
    study.write_text("nonsense = ")
    assert "study.toml" in steward("what-if", "--study", study, code=2).err
    steward("what-if", "--study", study.parent / "none.toml", code=1)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--epsilon", "nan"), "epsilon"),
        (("--epsilon", "-1"), "epsilon"),
        (("--epsilon", "inf"), "epsilon"),
        (("--epsilon", "a lot"), "--epsilon"),
        (("--delta", "0"), "delta"),
        (("--delta", "1"), "delta"),
        (("--delta", "nan"), "delta"),
        (("--mechanism", "magic"), "--mechanism"),
        (("--steps", "10"), "--mechanism maf"),
        (("--mechanism", "maf", "--w", "2"), "w"),
        (("--mechanism", "maf", "--rate", "0.1"), "rate"),
        (("--signer", "bob"), "known: analyst"),
        (("--releases", "0"), "--releases"),
        (("--releases", "1000000000"), "--releases"),
    ],
)
def test_what_if_of_nonsense(steward, args, words):
    said = steward("what-if", *args, code=2)
    assert words in said.err
    assert said.out == ""


def test_what_if_after_the_end(steward):
    steward.charge("end", Unbounded("told"))
    found = steward.json("what-if")
    assert [r["reason"] for r in found["refusals"]] == ["closed"]
    assert (found["releases_left"], found["largest_epsilon"], found["limits"]) == (0, 0.0, [])
    assert "would be refused" in steward("what-if").out


@pytest.mark.parametrize(
    ("args", "reason", "why"),
    [
        (("--epsilon", "0.01"), "least-epsilon", "a study may ask for ε at least 0.05"),
        (("--delta", "0.01"), "delta", "a study may ask for δ at most"),
        (("--delta", "0.01"), "study-budget", "a study may ask for δ at most"),
    ],
)
def test_what_if_knows_every_rule_of_the_policy_that_a_gate_refuses_by(steward, args, reason, why):
    """It said that a δ too large for so many persons, or an ε too small, would be admitted."""
    found = steward.json("what-if", *args)
    assert not found["admitted"]
    assert any(r["reason"] == reason and r["why"].startswith(why) for r in found["refusals"])


def test_what_if_of_no_data_set(steward):
    question = prospects.price_number(1.0, 1e-5)
    policy = read_policy(steward.root / "policy.toml")
    with pytest.raises(InvalidInput, match="ledger"):
        whatif.answer_prospect(question, State(), policy, "main", now="2026-01-01T00:00:00Z")


# -- verify and export -------------------------------------------------------------------------


def test_verify_replays_every_charge(steward, tmp_path):
    found = steward.json("verify")
    assert (found["ok"], found["charges"], found["findings"]) == (True, 4, [])
    assert found["head"] == steward.ledger.state().head
    steward("export", tmp_path / "l.json", "--decisions")
    assert steward.json("verify", tmp_path / "l.json") == found
    said = steward("verify", tmp_path / "l.json").out
    assert f"{found['records']} records, chain and signatures whole" in said
    assert "4 charges, each within" in said


def test_an_export_on_standard_output_is_the_same(steward, tmp_path):
    steward("export", tmp_path / "l.json")
    assert steward("export", "-").out == (tmp_path / "l.json").read_text()


def test_a_charge_that_was_never_admissible_is_found(steward, tmp_path):
    """Written with the gate's own key, past the ledger's checks: chain and signatures are whole."""
    fields = {
        "charge": "greed",
        "lineage": "main",
        "version": 1,
        "study_id": "s",
        "signer": steward.signer,
        "mechanism": "maf",
        "delta": 1e-5,
        "relation": "zero-out, public n",
        **DIGESTS,
    }
    greedy = [to_dict(Gaussian(0.1))]
    seq = steward.ledger.append("reserve", **fields, events=greedy).seq
    said = steward("verify", code=7)
    assert f"the first is record {seq}" in said.err
    assert "overspent" in said.out
    found = steward.json("verify", code=7)
    assert [f["record"] for f in found["findings"]] == [seq]
    assert not found["ok"]
    steward("export", tmp_path / "l.json", "--decisions")
    assert steward.json("verify", tmp_path / "l.json", code=7) == found
    other = {
        **fields,
        "charge": "alien",
        "relation": "add-remove",
        "events": [to_dict(Gaussian(90))],
    }
    seq = steward.ledger.append("reserve", **other).seq
    assert steward.json("verify", code=7)["findings"][-1]["record"] == seq


def test_a_broken_chain_is_found(steward, tmp_path):
    steward("export", tmp_path / "l.json")
    export = json.loads((tmp_path / "l.json").read_text())
    record = export["records"][3]
    record["body"] = record["body"].replace('"version":1', '"version":2')
    (tmp_path / "l.json").write_text(json.dumps(export))
    assert "record 4" in steward("verify", tmp_path / "l.json", code=7).err
    record["signature"] = sign(generate_key(), RECORD, record["hash"].encode())
    (tmp_path / "l.json").write_text(json.dumps(export))
    assert "record 4: its signature" in steward("verify", tmp_path / "l.json", code=7).err


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "x"}', '{"records": 3}', "NaN"])
def test_verify_of_what_is_no_export(steward, tmp_path, text):
    (tmp_path / "l.json").write_text(text)
    assert "not an exported ledger" in steward("verify", tmp_path / "l.json", code=7).err
    steward("verify", tmp_path / "none.json", code=1)


def test_a_running_gate_answers_the_same(world):
    site = world.site("a")

    def asked(*args: str) -> Any:
        command = ["site", "ledger", *args, "--json", "-d", str(site.paths.root)]
        said = CliRunner().invoke(app, command)
        assert said.exit_code == 0, said.stderr
        return json.loads(said.stdout)

    site.start()  # which notes the trust file that no command wrote
    site.close()
    alone = asked("show"), asked("what-if", "--signer", "analyst"), asked("verify")
    site.processes.clear()
    site.start()
    assert (asked("show"), asked("what-if", "--signer", "analyst"), asked("verify")) == alone
