"""The page that goes through PRISMA-IPD has all of its items, and names sections that are there."""

from __future__ import annotations

import re
from pathlib import Path

from penstock_server.report import sections

PAGE = Path(__file__).parents[2] / "docs" / "report-checklist.md"
ITEMS = [*range(1, 12), "A1", *range(12, 15), "A2", *range(15, 19), "A3", *range(19, 27), "A4", 27]
PARTS = {"Title and abstract", "Introduction", "Methods", "Results", "Discussion", "Funding"}
ANSWERS = {"report", "in part", "authors", "no"}


def test_every_item_has_an_answer_in_order() -> None:
    lines = re.findall(r"^\| (A?\d+) \| (.+?) \| (.*?) \| (.*?) ?\|$", PAGE.read_text(), re.M)
    assert [item for item, *_ in lines] == [str(item) for item in ITEMS]
    assert {answer for _, _, answer, _ in lines} == ANSWERS
    for item, _, answer, where in lines:
        assert where or answer == "authors", item


def test_every_section_that_it_names_is_on_the_page() -> None:
    text = re.sub(r"\s+", " ", PAGE.read_text())
    named = set(re.findall(r"\*\*(.+?)\*\*", text)) - PARTS - {"Bold"}
    templates = [path.read_text() for path in Path(sections.__file__).parent.glob("*.html.j2")]
    heads = {h for text in templates for h in re.findall(r"<h2[^>]*>(.+?)</h2>", text)}
    heads = {re.sub(r"\{\{.*?\}\}", "s", head) for head in heads}  # Answer, or Answers
    assert len(named) > 8
    assert named <= heads, named - heads
