"""How texts are cut and joined: every script, nothing lost, and no text that takes forever."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from fakes.rapt import CLOSE, TABLE
from hypothesis import given
from hypothesis import strategies as st

from langchain_dp.rapt import Policies, TextPrivatizer, tokenize


def cut(text: str, *, code: bool = True) -> list[tuple[str, str]]:
    return [(feature.kind, text[feature.start : feature.end]) for feature in tokenize.features(text, code=code)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ann's dog-house, U.S.A.", ["word Ann's", "word dog-house", "punctuation ,", "word U.S.A."]),
        ("I don\u2019t", ["word I", "word don\u2019t"]),
        ("3.5 of 1,000 at 12:30", ["number 3.5", "word of", "number 1,000", "word at", "number 12:30"]),
        ("2nd covid19 7x", ["word 2nd", "word covid19", "word 7x"]),
        ("on 2024-03-05.", ["word on", "date 2024-03-05", "punctuation ."]),
        ("5.3.2024 or 5/3/24", ["date 5.3.2024", "word or", "date 5/3/24"]),
        ("5th of March 2024, Mar 5, 2024", ["date 5th of March 2024", "punctuation ,", "date Mar 5, 2024"]),
        ("may I dismay 5", ["word may", "word I", "word dismay", "number 5"]),
        ("see https://x.org/a?b=1, ok", ["word see", "url https://x.org/a?b=1", "punctuation ,", "word ok"]),
        ("(www.x.org)", ["punctuation (", "url www.x.org", "punctuation )"]),
        ("mail a.b+c@d-e.org!", ["word mail", "url a.b+c@d-e.org", "punctuation !"]),
        ("run `x = 1` now", ["word run", "code `x = 1`", "word now"]),
        ("```py\nx\n``` and ```y", [
            "code ```py\nx\n```", "word and", "punctuation ``", "punctuation `", "word y",
        ]),
        ("I can`t, it isn`t", [
            "word I", "word can", "punctuation `", "word t", "punctuation ,",
            "word it", "word isn", "punctuation `", "word t",
        ]),
        ("``a'' or ``b''", [
            "punctuation ``", "word a", "punctuation ''", "word or", "punctuation ``", "word b", "punctuation ''",
        ]),
        ("$5 -- 6% ...", [
            "punctuation $", "number 5", "punctuation --", "number 6", "punctuation %", "punctuation ...",
        ]),
        ("\u6771\u4eac\u3078\u3002", ["word \u6771", "word \u4eac", "word \u3078", "punctuation \u3002"]),
        ("\u05e9\u05dc\u05d5\u05dd \u05e2", ["word \u05e9\u05dc\u05d5\u05dd", "word \u05e2"]),
        ("\u0915\u094d\u092f\u093e \u0939\u0948\u0964", [
            "word \u0915\u094d\u092f\u093e", "word \u0939\u0948", "punctuation \u0964",
        ]),
        ("ok \u212a \u212b\u00e5", ["word ok", "word \u212a", "word \u212b\u00e5"]),
        ("\u281a\u2815\u2813\u281d \u24d9\u24de\u24d7\u24dd 5\xbd, foo\u2122!", [
            "word \u281a\u2815\u2813\u281d", "word \u24d9\u24de\u24d7\u24dd", "number 5", "word \xbd",
            "punctuation ,", "word foo", "word \u2122", "punctuation !",
        ]),
        ("cafe\u0301", ["word cafe\u0301"]),
        ("\U0001f469\u200d\U0001f4bb\U0001f44d\U0001f3fd\U0001f1e9\U0001f1ea", [
            "word \U0001f469\u200d\U0001f4bb", "word \U0001f44d\U0001f3fd", "word \U0001f1e9\U0001f1ea",
        ]),
        ("a\x00b\u200bc\ufeff\u2028d", ["word a", "word b", "word c", "word d"]),
        ("", []),
        (" \t\r\n\x0b\x85\xa0\u3000", []),
    ],
)  # fmt: skip
def test_features_of_every_script_and_kind(text: str, expected: list[str]) -> None:
    """If it breaks, a number, date or address passes its policy by as words, or a script is lost."""
    assert [kind for kind, _ in cut("`a b`", code=False)] == ["punctuation", "word", "word", "punctuation"]
    assert [f"{kind} {surface}" for kind, surface in cut(text)] == expected


@given(st.text(max_size=200))
def test_nothing_but_space_lies_between_features(text: str) -> None:
    """If it breaks, a part of a text is neither privatized nor kept: it is lost, or it never was charged."""
    end = 0
    for feature in tokenize.features(tokenize.clean(text)):
        between = tokenize.clean(text)[end : feature.start]
        assert end <= feature.start < feature.end
        assert not any(letter.isalnum() for letter in between), between
        end = feature.end
    assert not any(letter.isalnum() for letter in tokenize.clean(text)[end:])


@pytest.mark.parametrize(
    "piece",
    ["a", "a.", "a-", "1.", "1:", "1", "`", "``", "'", "a@", "@a.", "http://", "www.", "5 mar ", "\u200d",
     "\u2600\u200d"],
)  # fmt: skip
@pytest.mark.parametrize("end", ["", "x", " "])
def test_no_text_takes_forever(piece: str, end: str) -> None:
    """If it breaks, one message of 100,000 letters stops the process: a pattern tries every way to fail."""
    text = piece * (100_000 // len(piece)) + end
    assert sum(1 for _ in tokenize.features(text)) >= 1


def test_lone_surrogates_become_a_mark_that_can_be_written() -> None:
    """If it breaks, a broken emoji stops the tokenizer, or reaches a wire that cannot encode it."""
    assert tokenize.clean("a\ud83d b\udc4d \U0001f44d") == "a\ufffd b\ufffd \U0001f44d"
    tokenize.clean("\ud800").encode()


def test_words_are_compared_in_one_form() -> None:
    """If it breaks, the same word in another casing or composition is unknown, or not kept."""
    assert tokenize.normal("Caf\u0065\u0301") == tokenize.normal("CAF\u00c9") == "caf\u00e9"
    assert tokenize.normal("Don\u2019t") == "don't"
    assert tokenize.ending("don\u2019t") == ["do", "n't"]
    assert tokenize.ending("'s") == ["'s"]
    assert tokenize.joints("state-of-art's") == ["state", "-", "of", "-", "art", "'", "s"]


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["she", "did", "n't", ",", "though", "."], "she didn't, though."),
        (["(", "a", ")", "$", "5", "%", "!"], "(a) $5%!"),
        (['"', "yes", '"', "he", "said"], '"yes" he said'),
        (["it", "'", "s", "'", "x"], "it's ' x"),
        (["a", "`x`", "b", "```\ny\n```", "c"], "a `x` b\n```\ny\n```\nc"),
        (["##ing", "a", "##"], "##ing a ##"),
        (["play", "\x00ing", "\x00.", "##ing"], "playing. ##ing"),
        ([], ""),
    ],
)
def test_words_are_joined_as_running_text(pieces: list[str], text: str) -> None:
    """If it breaks, what a model reads is not spaced as text is, or subwords stand apart."""
    assert not list(tokenize.features(tokenize.GLUE)), "no text may bring the mark along"
    assert tokenize.join(pieces) == text


def _says(letter: str) -> bool:
    """Whether a character is, or stands for, a letter or a digit: by its category, its compatible form, or its name."""
    name = unicodedata.name(letter, "")
    return (
        any(unicodedata.category(each)[0] in "LN" for each in unicodedata.normalize("NFKC", letter))
        or not {"LETTER", "DIGIT", "NUMERAL", "CAPITAL", "BRAILLE", "APL"}.isdisjoint(name.replace("-", " ").split())
        or name.startswith("SYMBOL FOR ")
    )


def test_no_character_of_unicode_passes_as_a_mark_that_says_a_letter_or_a_digit() -> None:
    """If it breaks, kept punctuation lets a name through in braille, or in circled, letterlike or script letters."""
    for point in range(sys.maxunicode + 1):
        letter = chr(point)
        found = [feature.kind for feature in tokenize.features(letter)]
        if found == ["punctuation"]:
            assert unicodedata.category(letter)[0] in "PS", hex(point)
            assert not _says(letter), hex(point)
        elif not found:  # dropped as space: it must say nothing
            assert unicodedata.category(letter)[0] in "ZC", hex(point)
        else:
            assert found in (["word"], ["number"]), hex(point)


@pytest.mark.parametrize("policy", ["punctuation", "numbers"])
def test_a_name_in_other_letters_is_sanitized_where_marks_or_numbers_are_kept(policy: str) -> None:
    """If it breaks, who keeps punctuation, or numbers, lets names through that are written in symbols."""
    privatizer = TextPrivatizer(TABLE, CLOSE, policies=Policies(**{policy: "keep"}))
    for name in (
        "\u281a\u2815\u2813\u281d",  # braille
        "\u24bf\u24de\u24d7\u24dd \u24a5\u24aa\u24a3\u24a9",  # circled, in parentheses
        "\U0001f139\U0001f13e\U0001f137\U0001f13d \U0001f159\U0001f15e\U0001f157\U0001f15d",  # squared, black
        "\uff2a\uff2f\uff28\uff2e \U0001d409\U0001d428\U0001d421\U0001d427",  # wide, bold
        "\u2110\u212f\u210e\u2115",  # letterlike
        "\u2460\u2461\u2462 \u2168\u2160 \u2776\u2777 \xb2\xb3\xb9 \xbd",  # numbers
        "\u237a\u2375\u2373 \u240a\u2400",  # of APL, pictures of controls
    ):
        assert not set(privatizer.privatize([name])[0]) & set(name.replace(" ", ""))
    assert {"punctuation": ",", "numbers": "2"}[policy] in privatizer.privatize(["one, 2 three"])[0]
