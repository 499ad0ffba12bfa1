"""Keys of masks and letters: for two sites, one round and one purpose."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from penstock.aggregation import masks
from penstock.base.errors import UploadRejected

A, B, C = (X25519PrivateKey.generate() for _ in range(3))
PUBLIC = {key: masks.public_bytes(key) for key in (A, B, C)}
ADDRESS = ("roster", 3, "north", "south")


def test_two_sites_find_one_key_with_opposite_signs() -> None:
    ours = masks.pair_mask(A, PUBLIC[B], "context", "north", "south")
    theirs = masks.pair_mask(B, PUBLIC[A], "context", "south", "north")
    assert ours.key == theirs.key
    assert ours.added is not theirs.added
    others = [
        masks.pair_mask(A, PUBLIC[B], "another", "north", "south"),
        masks.pair_mask(A, PUBLIC[C], "context", "north", "south"),
        masks.pair_mask(A, PUBLIC[B], "context", "north", "east"),
    ]
    assert ours.key not in {each.key for each in others}


def test_a_self_mask_is_of_one_context_and_site() -> None:
    made = {
        masks.self_mask(seed, context, site).key
        for seed in (bytes(32), bytes(31) + b"1")
        for context in ("x", "y")
        for site in ("north", "south")
    }
    assert len(made) == 8


def test_a_letter_is_read_by_its_receiver_at_its_address_alone() -> None:
    sealed = masks.seal_letter(A, PUBLIC[B], ADDRESS, b"text")
    assert masks.open_letter(B, PUBLIC[A], ADDRESS, sealed) == b"text"
    assert masks.open_letter(C, PUBLIC[A], ADDRESS, sealed) is None
    assert masks.open_letter(B, PUBLIC[C], ADDRESS, sealed) is None
    for place, other in enumerate(("another", 4, "south", "north")):
        moved = (*ADDRESS[:place], other, *ADDRESS[place + 1 :])
        assert masks.open_letter(B, PUBLIC[A], moved, sealed) is None  # type: ignore[arg-type]
    for i in range(len(sealed)):
        changed = sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :]
        assert masks.open_letter(B, PUBLIC[A], ADDRESS, changed) is None
    assert masks.open_letter(B, PUBLIC[A], ADDRESS, b"") is None
    assert masks.seal_letter(A, PUBLIC[B], ADDRESS, b"text") != sealed, "a nonce of its own"


def test_commitments_and_tags_hold_to_all_they_are_about() -> None:
    args = ("roster", 1, "north")
    commitments = {
        masks.commit(seed, *other)
        for seed in (bytes(32), b"1" * 32)
        for other in (args, ("x", 1, "north"), ("roster", 2, "north"), ("roster", 1, "south"))
    }
    assert len(commitments) == 8
    tag = masks.tag_share(bytes(32), "roster", 1, "north", "south", "self")
    for changed in (
        (b"1" * 32, "roster", 1, "north", "south", "self"),
        (bytes(32), "roster", 2, "north", "south", "self"),
        (bytes(32), "roster", 1, "south", "north", "self"),
        (bytes(32), "roster", 1, "north", "south", "pair"),
    ):
        assert masks.tag_share(*changed) != tag


@pytest.mark.parametrize("public", [bytes(32), b"\x01" + bytes(31), b"short"])
def test_a_key_that_is_none_is_refused(public: bytes) -> None:
    """With a point of low order everybody agrees on zero: the mask would be known to all."""
    with pytest.raises(UploadRejected, match="north"):
        masks.check_public_key(public, "north")
    with pytest.raises(UploadRejected):
        masks.agree(A, public)
