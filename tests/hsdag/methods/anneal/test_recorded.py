"""Local searches: what is evaluated on small problems."""

from tests.hsdag.methods import recorded


def test_searches_do_what_they_did() -> None:
    recorded.check("local")
