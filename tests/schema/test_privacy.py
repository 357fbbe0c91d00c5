"""What stands for a text that nobody may read."""

from __future__ import annotations

from calltape_schema.privacy import is_without_text, length_of_text, without_text


def test_only_the_length_of_a_text_stays() -> None:
    left = without_text("no user called quokka")
    assert left == "(21 characters, not kept)"
    assert is_without_text(left)
    assert without_text(left) == left


def test_a_text_that_looks_similar_is_a_text() -> None:
    for text in (
        "",
        "(21 characters, not kept) ",
        "(٢ characters, not kept)",
        "21 characters, not kept",
    ):
        assert not is_without_text(text)
        assert is_without_text(without_text(text))


def test_the_text_of_a_host_is_replaced_whatever_it_says() -> None:
    assert length_of_text("(4111 characters, not kept)") == "(27 characters, not kept)"


def test_a_number_that_is_no_length_of_a_text_is_a_text() -> None:
    assert not is_without_text("(4111111111111111 characters, not kept)")
