"""What pages name is there: files, headings behind links, and the headings that code points to."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
ROOTS = ("shared", "client", "server", "tests", "deploy", "docs")
FILES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*"), *(path for root in ROOTS for path in (ROOT / root).rglob("*")))
    if path.is_file() and "__pycache__" not in path.parts
)
FOLDERS = {str(parent) for file in FILES for parent in PurePosixPath(file).parents}
PAGES = sorted(
    file
    for file in FILES
    if file.endswith(".md") and not file.startswith("tests/results/") and file != "CHANGELOG.md"
)
SOURCE = re.compile(r"[\w./-]+\.(py|cpp|h|proto|j2|css|R)")


def named_paths(text: str) -> list[str]:
    """Source files and the repository's folders among what stands in back quotes."""
    quoted = re.findall(r"(?<!`)`([^`\s]+)`(?!`)", text)
    return [
        name
        for name in quoted
        if SOURCE.fullmatch(name)
        or (name.split("/")[0] in ROOTS and re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", name))
    ]


def meant(name: str) -> list[str]:
    """The files, or folders, whose path is this or ends so."""
    known = FOLDERS if name.endswith("/") else FILES
    bare = name.rstrip("/")
    return [path for path in known if path == bare or path.endswith(f"/{bare}")]


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {
        re.sub(r"[^\w\- ]", "", title.replace("`", "")).strip().lower().replace(" ", "-")
        for title in titles
    }


@pytest.mark.parametrize("page", PAGES)
def test_a_path_that_a_page_names_is_one_file(page: str) -> None:
    found = {name: meant(name) for name in named_paths((ROOT / page).read_text())}
    exact = {name for name in found if name.rstrip("/") in FOLDERS}
    wrong = {name: paths for name, paths in found.items() if len(paths) != 1 and name not in exact}
    assert not wrong, "name the one that is meant, by more of its path"


@pytest.mark.parametrize("page", PAGES)
def test_a_link_of_a_page_leads_somewhere(page: str) -> None:
    source = ROOT / page
    text = re.sub(r"^```.*?^```", "", source.read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (source.parent / path).resolve() if path else source
        assert target.exists(), link
        if anchor:
            assert anchor in headings(target), link


def test_what_code_says_of_pages_is_there() -> None:
    nowhere = "privacy " + "contract"  # a document that readers of this repository do not have
    said = re.compile(r"(docs/[\w-]+\.md),\s*(?:#\s*)?\"([^\"]+)\"")
    found = 0
    for file in FILES:
        if file.endswith(".py"):
            text = (ROOT / file).read_text()
            assert nowhere not in text, f"{file}: name a page and its heading"
            for page, heading in said.findall(text):
                titles = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.M)
                assert " ".join(heading.split()) in titles, f"{file}: {page} has no {heading!r}"
                found += 1
    assert found >= 5


def test_a_wrong_path_would_be_seen() -> None:
    assert named_paths("`gate/gone.py` and `tests/nowhere/`") == ["gate/gone.py", "tests/nowhere/"]
    assert meant("gate/gone.py") == meant("tests/nowhere/") == []
    assert len(meant("plan.py")) > 1
