"""Examples in docstrings are run: what a reader tries out does what the page says."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

MODULES = (
    "penstock.analyst.client",
    "penstock.privacy.accounting.accountant",
    "penstock.privacy.calibration",
    "penstock.privacy.events",
    "penstock.privacy.filters",
    "penstock.questions.estimands",
    "penstock.schema.columns",
    "penstock.schema.compare",
    "penstock.schema.encoding",
    "penstock.schema.tables",
    "penstock.study.toml.dictionary",
    "penstock.study.toml.study_file",
    "penstock.wire.canonical",
    "penstock.wire.signatures",
    "penstock.inference.pooling",
    "penstock.inference.heterogeneity",
    "penstock.inference.fourfold",
    "penstock.inference.vectors",
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_do_what_they_say(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CONFIG", "/nonexistent")
    found = doctest.testmod(import_module(name))
    assert found.attempted > 0, "an example is gone; take the module out of the list"
    assert found.failed == 0, capsys.readouterr().out
