"""Ids: short, random from the first character (so that short prefixes are unique), never reused."""

from __future__ import annotations

import hashlib

# Crockford's base 32: no i, l, o, u, so that an id can be read aloud and holds no words.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
ID_LENGTH = 12


def new_id(now_ns: int, entropy: bytes) -> str:
    """Return a 12-character id (60 bits) that depends on nothing but its arguments."""
    digest = hashlib.sha256(now_ns.to_bytes(16, "big", signed=True) + entropy).digest()
    number = int.from_bytes(digest[:8], "big")
    return "".join(_ALPHABET[(number >> (5 * place)) & 31] for place in range(ID_LENGTH))
