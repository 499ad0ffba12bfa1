"""Control characters are others' to send, not to rule."""

import pytest

from penstock.base.printable import make_printable


@pytest.mark.parametrize(
    ("given", "instead", "keep", "found"),
    [
        ("plain ε < 1", "�", "", "plain ε < 1"),
        ("\x1b[31mred\x07", "�", "", "�[31mred�"),
        ("a\tb\nc", " ", "", "a b c"),
        ("a\tb\nc", "", "\n", "ab\nc"),
        ("\u202egnp.exe", "�", "", "�gnp.exe"),
        ("", "�", "", ""),
    ],
)
def test_only_control_characters_are_replaced(given, instead, keep, found):
    assert make_printable(given, instead, keep=keep) == found
