"""What a study has measured is there when it goes on, and not when its source has changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.studies import kept
from tests.studies.kept import Store


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    monkeypatch.setattr(kept, "FOLDER", tmp_path / "kept")
    file = tmp_path / "room" / "a.py"
    file.parent.mkdir()
    file.write_text('"""One."""\n\n\ndef f() -> int:\n    """Two."""\n    return 1\n')
    return file


def test_answers_are_there_again(source: Path) -> None:
    store = Store("study", ["room"])
    assert store.read() == {}
    store.keep("a", {"x": 1.5})
    store.keep("b", {"x": float("nan")})
    found = Store("study", ["room/a.py"]).read()
    assert found["a"] == {"x": 1.5}
    assert found["b"]["x"] != found["b"]["x"]
    assert Store("other", ["room"]).read() == {}


def test_a_change_of_the_source_makes_them_stale_and_a_comment_does_not(source: Path) -> None:
    Store("study", ["room"]).keep("a", {"x": 1.5})
    source.write_text(source.read_text().replace("Two", "Three") + "# four\n")
    assert "a" in Store("study", ["room"]).read()
    source.write_text(source.read_text().replace("return 1", "return 2"))
    assert Store("study", ["room"]).read() == {}


def test_a_source_that_is_not_there_is_told(source: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Store("study", ["rooms"])


def test_answers_may_stay_in_a_folder_of_their_own(source: Path, tmp_path: Path) -> None:
    store = Store("peers", ["room"], tmp_path / "data")
    store.keep("a", {"x": 1.5})
    assert store.path.parent == tmp_path / "data"
    assert Store("peers", ["room"], tmp_path / "data").read() == {"a": {"x": 1.5}}
    assert Store("peers", ["room"]).read() == {}
