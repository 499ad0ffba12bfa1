"""What a steward writes: policy.toml, site.toml, trust.json. All problems at once, with lines."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from penstock.base.errors import InvalidInput
from penstock.base.files import write_atomic
from penstock.wire.signatures import fingerprint, generate_key, public_hex
from penstock_client.onboarding.new_site import SETTINGS_TEMPLATE
from penstock_client.site.policy import TEMPLATE, Policy, read_policy
from penstock_client.site.signers import Signer, Trust, read_trust, write_trust
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SiteSettings, read_settings

UNTIL = "2099-12-31T23:59:59.999999Z"


def policy_of(folder: Path, text: str) -> Policy:
    path = folder / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return read_policy(path)


def problem(folder: Path, text: str) -> str:
    with pytest.raises(InvalidInput) as error:
        policy_of(folder, text)
    assert str(folder / "policy.toml") in str(error.value)
    return str(error.value)


def test_the_drafted_policy_is_sound_and_cautious(tmp_path):
    assert policy_of(tmp_path, TEMPLATE) == Policy(
        ("structured",), ("formal",), "by-hand", 3.0, 1e-5, 10.0, 1e-5
    )


def test_a_no_is_told_unless_the_policy_says_otherwise(tmp_path):
    assert policy_of(tmp_path, TEMPLATE.replace('reject = "told"\n', "")).reject == "told"
    assert policy_of(tmp_path, TEMPLATE.replace('"told"\n', '"silent"\n')).reject == "silent"


@pytest.mark.parametrize("change", ["\ufeff" + TEMPLATE, TEMPLATE.replace("\n", "\r\n")])
def test_a_policy_saved_on_windows_is_the_same(tmp_path, change):
    (tmp_path / "policy.toml").write_bytes(change.encode())
    assert read_policy(tmp_path / "policy.toml") == policy_of(tmp_path, TEMPLATE)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "approval =",
            "aproval =",
            "line 18: aproval: is not a known key. Did you mean 'approval'",
        ),
        ('"by-hand"\n', '"auto"\n', "line 18: approval: is unknown, got 'auto'; one of automatic"),
        (
            'reject = "told"',
            'reject = "loud"',
            "got 'loud'; one of told, silent",
        ),
        (
            '["structured"]',
            '["structured", "gan"]',
            "line 11: mechanisms[2]: is unknown, got 'gan'",
        ),
        ('["formal"]', "[]", "line 15: guarantees: is missing or not a list"),
        ('["formal"]', '"formal"', "line 15: guarantees: is missing or not a list"),
        ("[limits]", "[limit]", "line 23: limit: is not a known key. Did you mean 'limits'?"),
        ("study_epsilon = 3.0", "", "line 23: limits.study_epsilon: is missing"),
        ("= 3.0", "= nan", "line 24: limits.study_epsilon: is out of range, got nan"),
        ("= 3.0", "= inf", "limits.study_epsilon: is out of range, got inf; a finite number"),
        ("= 3.0", "= 0", "limits.study_epsilon: is out of range, got 0; a finite number above 0"),
        ("= 3.0", "= true", "limits.study_epsilon: must be a number, got True"),
        ("= 3.0", '= "3"', "limits.study_epsilon: must be a number, got '3'"),
        ("= 3.0", "= 1" + "0" * 400, "limits.study_epsilon: is out of range"),
        ("= 3.0", "= 11", "is above what the data set may ever cost, got 11; at most total_eps"),
        ("total_delta = 1e-5", "total_delta = 1", "total_delta: is out of range, got 1; 1e-12 <="),
        ("total_delta = 1e-5", "total_delta = 0", "total_delta: is out of range, got 0"),
        ("[limits]", "[limits", "line 23: is not valid TOML"),
        ("# yearly_epsilon = 5.0", "yearly_epsilon = 0", "line 28: limits.yearly_epsilon: is out"),
        ("# yearly_epsilon = 5.0", "yearly_epsilon = nan", "yearly_epsilon: is out of range"),
        ("# yearly_epsilon = 5.0", "yearly_epsilon = 11", "is above what the data set may ever"),
        ("# yearly_epsilon = 5.0", "yearly_epsilon = 2.0", "leaves no room for a study, got 2"),
        ("# yearly_epsilon", "yearly_epsilom", "Did you mean 'yearly_epsilon'?"),
        (
            "least_epsilon = 0.05",
            "least_epsilon = 0",
            "limits.least_epsilon: is out of range, got 0",
        ),
        ("least_epsilon = 0.05", "least_epsilon = 4", "leaves no room for a study, got 4"),
        ("slot_seconds = 60", "slot_seconds = 0", "time.slot_seconds: is out of range, got 0"),
        ("slot_seconds = 60", "slot_secs = 60", "Did you mean 'slot_seconds'?"),
        ("# delta_times_persons = 0.1", "delta_times_persons = 0", "persons: is out of range"),
        ("# delta_times_persons = 0.1", "delta_times_persons = nan", "persons: is out of range"),
        ("# delta_times_persons = 0.1", "delta_times_persons = 2", "0 < δ·n <= 1"),
    ],
)
def test_each_mistake_is_named_with_its_line(tmp_path, old, new, words):
    assert old in TEMPLATE
    assert words in problem(tmp_path, TEMPLATE.replace(old, new, 1))


def test_what_is_optional_is_read(tmp_path):
    text = TEMPLATE.replace("# yearly_epsilon", "yearly_epsilon")
    assert policy_of(tmp_path, text).yearly_epsilon == 5.0


def test_what_no_mechanism_makes_use_of_is_not_on_offer():
    assert "strata" not in TEMPLATE
    assert "approximate_delta" not in TEMPLATE


def test_keys_of_earlier_versions_are_read_and_have_no_effect(tmp_path):
    text = TEMPLATE.replace("[limits]", "[limits]\napproximate_delta = 1e-6")
    text += '[strata]\nnames = ["north", "south"]\n'
    assert policy_of(tmp_path, text) == policy_of(tmp_path, TEMPLATE)


def test_a_mistake_is_named_once(tmp_path):
    assert "1 problem\n" in problem(tmp_path, TEMPLATE.replace("= 3.0", "= 11"))


def test_all_mistakes_come_together(tmp_path):
    text = (
        TEMPLATE.replace('"structured"', '"gan"')
        .replace("= 3.0", "= -1")
        .replace("= 10.0", "= nan")
    )
    assert "3 problems" in problem(tmp_path, text)


def test_a_policy_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(InvalidInput, match="no such file"):
        read_policy(tmp_path / "policy.toml")
    (tmp_path / "policy.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match="not UTF-8 text"):
        read_policy(tmp_path / "policy.toml")


# -- site.toml ---------------------------------------------------------------------------------

SETTINGS = SETTINGS_TEMPLATE.format(name='"ward-7"', federation='"main"', data='"data.csv"')


def settings_of(folder: Path, text: str) -> SiteSettings:
    paths = SitePaths(folder)
    paths.settings.write_text(text, encoding="utf-8")
    return read_settings(paths)


def test_the_drafted_settings_are_sound(tmp_path):
    assert settings_of(tmp_path, SETTINGS) == SiteSettings("ward-7", "main", "data.csv", "main")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("memory_bg = 4", "memory_bg: is not a known key. Did you mean 'memory_gb'?"),
        ("memory_gb = 0.5", "memory_gb: is out of range, got 0.5"),
        ("memory_gb = nan", "memory_gb: is out of range, got nan"),
        ("memory_gb = inf", "memory_gb: is out of range, got inf"),
        ("threads = 0", "threads: is out of range, got 0"),
        ("threads = 1.5", "threads: must be a whole number"),
        ('device = "gpu"', "device: is unknown, got 'gpu'; one of auto, cpu, cuda"),
        ("public_data = 3", "public_data: must be text"),
        ("insecure_seed = -1", "insecure_seed: is out of range, got -1"),
        ("insecure_seed = true", "insecure_seed: must be a whole number"),
    ],
)
def test_a_wrong_setting_is_named_with_its_line(tmp_path, line, words):
    with pytest.raises(InvalidInput) as error:
        settings_of(tmp_path, f"{SETTINGS}{line}\n")
    assert f"line {SETTINGS.count(chr(10)) + 1}: {words}" in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", "Ward 7"),
        ("name", ""),
        ("lineage", "../../etc"),
        ("federation", "a b"),
        ("data", ""),
    ],
)
def test_names_that_are_not_well_formed_are_refused(tmp_path, name, value):
    old = next(line for line in SETTINGS.splitlines() if line.startswith(f"{name} ="))
    with pytest.raises(InvalidInput, match=rf"line \d+: {name}: is"):
        settings_of(tmp_path, SETTINGS.replace(old, f'{name} = "{value}"'))


def test_settings_that_are_missing_are_all_named(tmp_path):
    with pytest.raises(InvalidInput) as error:
        settings_of(tmp_path, 'federation = "main"\n')
    assert [p.where for p in error.value.problems] == ["name", "data", "lineage"]


# -- trust -------------------------------------------------------------------------------------


def signer(label: str = "ann", epsilon: float = 2.0) -> Signer:
    return Signer(public_hex(generate_key()), label, epsilon, UNTIL)


def test_trust_is_written_and_read_back_for_its_owner_only(tmp_path):
    path = tmp_path / "trust.json"
    trust = Trust().add(signer("ann")).add(signer("bob", 0.5))
    write_trust(path, trust)
    assert read_trust(path) == trust
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_nobody_is_trusted_without_a_file(tmp_path):
    assert read_trust(tmp_path / "trust.json") == Trust()


def test_a_key_is_pinned_once_with_its_newest_allowance():
    ann = signer(epsilon=2.0)
    again = Signer(ann.key, "Ann", 3.0, UNTIL)
    assert Trust().add(ann).add(again).signers == {ann.key: again}


@pytest.mark.parametrize("how", ["key", "fingerprint", "label"])
def test_trust_is_taken_back_by_any_of_its_names(how):
    ann, bob = signer("ann"), signer("bob")
    left = Trust().add(ann).add(bob).revoke(getattr(ann, how))
    assert left.signers == {bob.key: bob}


def test_revoking_a_stranger_names_who_is_known():
    with pytest.raises(InvalidInput, match="not trusted, got eve; known: ann"):
        Trust().add(signer("ann")).revoke("eve")


def test_the_fingerprint_is_the_wires():
    ann = signer()
    assert ann.fingerprint == fingerprint(ann.key)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", float("nan")),
        ("epsilon", float("inf")),
        ("epsilon", 0.0),
        ("epsilon", -1.0),
        ("epsilon", "2"),
        ("key", "00" * 31),
        ("key", "AB" * 32),
        ("key", "zz" * 32),
        ("key", "-----BEGIN PRIVATE KEY-----"),
        ("label", ""),
        ("label", "a\nb"),
        ("expires", "2099-12-31"),
        ("expires", "tomorrow"),
    ],
)
def test_a_signer_that_is_not_sound_cannot_be_made(field, value):
    values = {"key": "ab" * 32, "label": "ann", "epsilon": 1.0, "expires": UNTIL}
    Signer(**values)
    with pytest.raises(InvalidInput, match=field):
        Signer(**{**values, field: value})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"signers": 3}',
        '{"signers": [{"key": "00"}]}',
        json.dumps(
            {"signers": [{"key": "ab" * 32, "label": "a", "epsilon": "9", "expires": UNTIL}]}
        ),
        json.dumps(
            {"signers": [{"key": "ab" * 32, "label": "a", "epsilon": 1e999, "expires": UNTIL}]}
        ),
    ],
)
def test_a_damaged_trust_file_trusts_nobody(tmp_path, text):
    path = tmp_path / "trust.json"
    path.write_text(text)
    with pytest.raises(InvalidInput) as error:
        read_trust(path)
    assert str(path) in str(error.value)


def test_a_file_that_cannot_be_replaced_stays_whole(tmp_path):
    path = tmp_path / "trust.json"
    write_atomic(path, b"old")
    with pytest.raises(TypeError):
        write_atomic(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["trust.json"]


@pytest.mark.parametrize("mechanism", ["gaussian", "gibbs", ""])
def test_a_mechanism_that_the_policy_does_not_name_breaks_it(mechanism):
    """Also the plain number, which is what-if's alone."""
    policy = Policy(("maf",), ("formal",), "automatic", 2.0, 1e-5, 10.0, 1e-5)
    assert [b.code for b in policy.find_kind_breaches(mechanism, "formal")] == ["mechanism"]
    assert list(policy.find_kind_breaches(None, "formal")) == []
