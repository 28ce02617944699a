"""Recognizers on texts that were made to break them: slow shapes, disguises, and edges."""

from __future__ import annotations

import html
import itertools
import json
import random
import time
import unicodedata
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from langchain_dp.rapt.folding import readings
from langchain_dp.rapt.pseudonyms import PatternEntities, Pseudonymizer

SHAPES = {
    "digits": "1", "zeros": "0", "bits": "01", "decimals": "3.14159265", "groups": "11 ", "pairs": "12-34 ",
    "triples": "123 456 ", "plus": "+1 1 1 1 ", "parentheses": "(123) ", "open parentheses": "(", "trunk": "0 ",
    "cards": "4111 1111 1111 1112 ", "card groups": "411 ", "long groups": "4111111 ", "IBANs": "DE88 ",
    "IBAN groups": "AA00AA00AA00 ", "IBAN words": "GB82 west 1234 ", "colons": "a:", "hexadecimal": "abcd:",
    "dots": "1.", "machines": "1.1.1.1.", "local parts": "a.", "at": "@", "mails": "a@b.", "domains": "a@" + "b." * 9,
    "quotes": "'a", "underscores": "_", "www": "www.", "schemes": "https://", "addresses": "http://)", "slashes": "/",
    "dates": "12/12/", "months": "12 Jan", "ordinals": "3rd of ", "words": "account ", "codes": "ref FV-",
    "placeholders": "<A_1", "angles": "<", "labels": "<A_1_1_", "breaks": "\\n", "backslashes": "\\",
    "escapes": "\\u00e9", "cut": "\\u00", "entities": "&amp;", "ampersands": "&", "percents": "%25", "half": "%2",
    "marks": "a\u0301\u0323", "invisible": "\u200b", "blanks": "\u00a0 ",
    "wide": "\uff11", "jamo": "\u1112\u1161\u11ab",
    "ideographs": "\u738b", "sharp s": "\xdf", "ligatures": "\ufb03", "dashes": "\u2011", "ticks": "`",
    "streets": "12 Oak ", "towns": "Oak Lane, ", "houses": "1 Oak Lane, Leeds ", "units": "Apt 5 ", "lines": "1 A\n",
    "particles": "Rue de la ", "capitals": "A", "names": "Ab", "states": "NY 12345 ", "boxes": "PO Box 1 Leeds ",
    "calls": "call 12 34 56 ", "cues": "call ", "zips": "zip code 1234 ",
    "targets": "](<", "values": '="//', "parts of names": "Ann Smit", "first names": "Ann ",
}  # fmt: skip
ENDINGS = ("", "a", "_", "@", "-", "x", "\\", "\u00df", ">", ".")


def _text(unit: str, length: int) -> str:
    """Runs of one shape, each with another of the endings that could make a pattern fail."""
    most = length // len(ENDINGS)
    return "\n".join(f"{(unit * (most // len(unit)))}{ending}" for ending in ENDINGS)


def _seconds(text: str, tries: int) -> float:
    taken = []
    for _ in range(tries):
        made = Pseudonymizer(terms=["Ann Smith", "Jos\u00e9", "aaa", "AMW\xdf"])
        began = time.process_time()
        made.restore(made.invoke(text))
        taken.append(time.process_time() - began)
    return min(taken)


@pytest.mark.parametrize("unit", SHAPES.values(), ids=SHAPES)
def test_time_grows_no_faster_than_the_text(unit: str) -> None:
    """If it breaks, one message stops a server: some shape with some ending takes quadratic time, or worse."""
    assert _seconds(_text(unit, 100_000), 1) < 30 * _seconds(_text(unit, 10_000), 2) + 0.2


NAMES = [
    "Ann Smith", "Jean-Luc Picard", "Zoë Müller", "Pat O'Neil", "José García", "Weiß", "\u738b\u5c0f\u660e",
    "\u0421\u0435\u0440\u0433\u0435\u0439 \u0418\u0432\u0430\u043d\u043e\u0432",
    "\u039d\u03af\u03ba\u03bf\u03c2 \u03a0\u03b1\u03c0\u03b1\u03b4\u03ac\u03ba\u03b7\u03c2", "Björk Guðmundsdóttir",
    "Mary-Jane Watson", "D'Arcy", "Nguy\u1ec5n Văn An", "Renée", "François Truffaut", "Søren", "Łukasz",
    "İbrahim Şahin", "Anne-Marie Straßer", "Tom", "Robert", "Nina", "Ted Quill", "Ursula Xu", "Project Heron",
    "ACME Ltd", "A. B. Yates", "Chloé O'Connor", "Märta", "\uae40\ubbfc\uc218", "\u7530\u4e2d \u592a\u90ce",
    "\u0e2a\u0e21\u0e0a\u0e32\u0e22", "\u05d3\u05d5\u05d3 \u05db\u05d4\u05df", "Amy", "Raj Patel", "Eve",
    "Kurt Gödel", "Noël", "Ines", "Oskar Mårtensson", "Peter-Paul Rubens", "Jürgen", "Mia", "Ruth", "Uwe", "Xenia",
    "Tara", "Noah Reed", "Rita", "Tina Turner",
]  # fmt: skip
VALUES = [
    "ann.o'neil+x@mail.example.org", "bob@test.org", "a&b@example.org", "+44 20 7946 0958", "(555) 123-4567",
    "1-800-555-0199", "1.800.555.0199", "03.91.12.17.13", "DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432",
    "4111-1111-1111-1111", "3782 822463 10005", "1990-02-03", "12-Mar-1985", "May 12, 1980", "192.168.1.10",
    "2001:db8::1", "https://example.org/a?b=ann", "20-00-00", "12345678",
]  # fmt: skip
_DASHES = "-\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"
_BLANKS = (" ", "  ", "\u00a0", "\u202f", "\u2009", "\u3000", "\t", " \u200b")
_INVISIBLE = "\u00ad\u200b\u200c\u200f\u2060\ufeff"


def _disguised(text: str, coins: random.Random, *, case: bool) -> str:
    """One of the many ways in which a text can be written so that a reader sees the same."""
    text = unicodedata.normalize(coins.choice(["NFC", "NFD"]), text)
    if case:
        text = coins.choice([str, str.upper, str.lower])(text)
    text = "".join(coins.choice(_DASHES) if mark == "-" and coins.random() < 0.5 else mark for mark in text)
    text = "".join(coins.choice(_BLANKS) if mark == " " and coins.random() < 0.5 else mark for mark in text)
    if coins.random() < 0.3:
        place = coins.randrange(1, len(text))
        text = text[:place] + coins.choice(_INVISIBLE) + text[place:]
    if coins.random() < 0.3:
        text = "".join(
            chr(ord(mark) + 0xFEE0) if "!" <= mark <= "~" and coins.random() < 0.5 else mark for mark in text
        )
    encode = coins.choice([
        str, str, lambda text: json.dumps(text)[1:-1], html.escape, lambda text: html.escape(html.escape(text)),
        lambda text: "".join(f"&#{ord(mark)};" for mark in text), lambda text: quote(text, safe=""),
        lambda text: "".join(f"\\u{ord(mark):04x}" if ord(mark) < 0x10000 else mark for mark in text),
    ])  # fmt: skip
    return encode(text)


_AROUND = [
    "{}", "so {} called", "'{}'", '"{}"', "({})", "_{}_", "**{}**", "[{}]", "{}.", "{}, and", '{{"who": "{}"}}',
    "x:\\n{}\\tz",
    "C:\\Users\\{}\\x", "<b>{}</b>", "\u201c{}\u201d", "\\u0022{}\\u0022", "&quot;{}&quot;", "%22{}%22",
]  # fmt: skip


def _cut(text: str, coins: random.Random) -> Iterator[str]:
    """Pieces of a text, cut at random places."""
    places = [0, *sorted(coins.randrange(len(text) + 1) for _ in range(coins.randrange(12))), len(text)]
    return (text[start:end] for start, end in itertools.pairwise(places))


@pytest.mark.parametrize("seed", range(10))
def test_disguises_hide_nothing_from_recognizers(seed: int) -> None:
    """If it breaks, a name or a number passes in clear as it is written in other characters, or as a stream cuts it."""
    coins = random.Random(f"disguises {seed}")
    for number in range(50):
        entity = coins.choice(NAMES if number % 2 else VALUES)
        written = _disguised(entity, coins, case=entity in NAMES)
        text = coins.choice(_AROUND).format(written)
        made = Pseudonymizer(terms=NAMES)
        hidden = "".join(made.transform(_cut(text, coins)))
        assert made.restore(hidden) == text
        assert "".join(made.restorer().transform(_cut(hidden, coins))) == text
        seen = readings(hidden)[0].text.casefold()
        for part in readings(entity)[0].text.casefold().replace("-", " ").split():
            assert part not in seen or len(part) < 3, (entity, text, hidden)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("{'email': 'ann@example.org'}", "{'email': '<EMAIL_1>'}"),
        ("_ann@x.org_, -ann@x.org, 'ann@x.org' or ann@x.org", "_<EMAIL_1>_, -<EMAIL_1>, '<EMAIL_1>' or <EMAIL_1>"),
        (r"\u0022ann@x.org\u0022", r"\u0022<EMAIL_1>\u0022"),
        ("<ann@x.org>, (ann@x.org).", "<<EMAIL_1>>, (<EMAIL_1>)."),
        ("mail ann.o'neil+x@mail.example.org now", "mail <EMAIL_1> now"),
        ("192.168.1.1:8080 10.0.0.0/8", "<IP_1>:8080 <IP_2>/8"),
        ("::ffff:192.0.2.1 [2001:db8::1]:443 fe80::1%eth0", "<IP_1> [<IP_2>]:443 <IP_3>%eth0"),
        ("1-800-555-0199, 1.800.555.0199", "<PHONE_1>, <PHONE_1>"),
        ("+44 (0)20 7946 0958; 00447946095800", "<PHONE_1>; <PHONE_2>"),
        ("DE89-3704-0044-0532-0130-00 or de89370400440532013000.", "<IBAN_1> or <IBAN_1>."),
        ("GB82 WEST 1234 5698 7654 32 is mine", "<IBAN_1> is mine"),
        ("GB82WEST12345698765432. DE89 3704 0044 0532 0130 00 OF", "<IBAN_1>. <IBAN_2> OF"),
        ("no IBAN: DE88 3704 0044 0532 0130 00", "no IBAN: DE88 <PHONE_1> 0130 00"),
        ("4111 1111 1111 1111 12/27", "<CREDIT_CARD_1> 12/27"),
        ("2 4111 1111 1111 1111", "2 <CREDIT_CARD_1>"),
        ("born 12-Mar-1985, 12-MAR-85, 12 MAR 1985", "born <DATE_1>, <DATE_2>, <DATE_3>"),
        ("12/29/1944, 12.05.1980 and 8/9/89", "<DATE_1>, <DATE_2> and <DATE_3>"),
        ("May 12, 1980, or the 3rd of Sept.", "<DATE_1>, or the <DATE_2>"),
        ("at 2010-01-03 15:08:59.236877", "at <DATE_1>"),
        ("call 03.91.12.17.13, 475-661-2500x905, (555) 123-4567", "call <PHONE_1>, <PHONE_2>, <PHONE_3>"),
        ("HTTPS://A.org/x, ftp://a.org/y (www.a.org)", "<URL_1>, <URL_2> (<URL_3>)"),
        ("account 12345, ref FV-20418, sort code 20-00-00", "account <NUMBER_1>, ref <NUMBER_2>, sort code <NUMBER_3>"),
        ("her number is +46 (0)8 208 337 43", "her number is <PHONE_1>"),
        ("please call 98 91 97; Mobile: 21 229 319 6112", "please call <PHONE_1>; Mobile: <PHONE_2>"),
        ("not answering at 05.12.73.93.30", "not answering at <PHONE_1>"),
        ("my license number is J736775180860", "my license number is <NUMBER_1>"),
        ("at 12 Oak Lane, Leeds. Or 7 St. John Street", "at <ADDRESS_1>. Or <ADDRESS_2>"),
        ("to 814 Chalkokondili 81 Suite 421\nFindlay, OH\n82657 now", "to <ADDRESS_1> now"),
        ("Hauptstraße 5, 10115 Berlin; 12 rue de la Paix", "<ADDRESS_1>; <ADDRESS_2>"),
        ("PO Box 131; PSC 1234, Box 56\nAPO AE 09012", "<ADDRESS_1>; <ADDRESS_2>"),
        ("to Ilichova 59\nLjubljana, Slovenia 10000", "to <ADDRESS_1>"),
        ("zip code: 49620, Boston MA 02139, LS2 9JT", "zip code: <ADDRESS_1>, Boston <ADDRESS_2>, <ADDRESS_3>"),
        ("5 Oak Lane, Leeds 07946 095812", "<ADDRESS_1> <PHONE_1>"),
        ("221B Baker Street, London NW1 6XE now", "<ADDRESS_1> now"),
        ("5 Main Road, Leeds, West Yorkshire LS1 4AP; 24 Sussex Drive, Ottawa K1M 1M4", "<ADDRESS_1>; <ADDRESS_2>"),
        ("000123_x and ann@example.org_", "<NUMBER_1>_x and <EMAIL_1>_"),
        *((text, text) for text in (
            "std::vector, a::b, 3.14159265, 20 of 300, v1.10.2024",
            "10 000 000, 1,234,567.89, 2024 2025, 12:30:45, 999.1.1.1",
            "on Wall Street, 20 years in the Road, a 2 way street, call 12 of 300, 3 Doors Down, the 7 Samurai",
            "13/13/1999, 2026-13-45, 00/00/2000, may 12, 1/2, Mark 3, order 12-05-2020-7",
        )),
    ],
)  # fmt: skip
def test_edges_stay_outside_and_forms_are_whole(text: str, hidden: str) -> None:
    """If it breaks, half of a number stays, a quotation mark goes with an address, or plain figures are hidden."""
    made = Pseudonymizer()
    assert made.invoke(text) == hidden


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (r"C:\Users\nina\x.txt", r"C:\Users\<TERM_1>\x.txt"),
        (r"ACME\robert", r"ACME\<TERM_1>"),
        (r"so\nrobert\tnina", r"so\n<TERM_1>\t<TERM_2>"),
        (r"so\\nrobert O\\u0027Brien", r"so\\n<TERM_1> <TERM_2>"),
        ('1 row: [{"name": "Zo\\u00eb M\\u00fcller"}]', '1 row: [{"name": "<TERM_1>"}]'),
        ('```json\n{"a": "O\\u0027Brien"}\n', '```json\n{"a": "<TERM_1>"}\n'),
        ("Wei\u00df and WEISS", "<TERM_1> and <TERM_2>"),
        ("Smith\u00b9 and Smith\u2122", "<TERM_1>\u00b9 and <TERM_1>\u2122"),
        ("O&#39;Brien&nbsp;", "<TERM_1>&nbsp;"),
        ("robert%20said", "<TERM_1>%20said"),
        ("roberta, O'Briens", "roberta, O'Briens"),
    ],
)
def test_terms_are_found_in_escapes_and_beside_them(text: str, hidden: str) -> None:
    """If it breaks, a name passes in clear behind a backslash, in JSON that is cut off, or in another case."""
    terms = ["nina", "robert", "Zo\u00eb M\u00fcller", "O'Brien", "Wei\u00df", "Smith"]
    made = Pseudonymizer(terms=terms)
    assert made.invoke(text) == hidden


def test_a_kind_of_ones_own_takes_the_place_of_the_built_in_one() -> None:
    """If it breaks, two patterns of one kind are looked for, or the caller's is ignored."""
    made = PatternEntities(["EMAIL", "NUMBER"], {"number": r"#\d+"})
    assert made.find("#12 of 12345678 at a@b.org") == [(19, 26, "EMAIL"), (0, 3, "NUMBER")]


def test_regions_say_which_numbers_are_phones_without_a_country_code() -> None:
    """If it breaks, numbers of a region that nobody named are hidden, or those of a named one pass in clear."""
    assert Pseudonymizer(PatternEntities(regions=["MX"])).invoke("55 1234 5678") == "<PHONE_1>"
    assert Pseudonymizer(PatternEntities(["PHONE"], regions=["IS"])).invoke("0171 2345678") == "0171 2345678"


def test_ten_times_the_placeholders_take_ten_times_as_long() -> None:
    """If it breaks, an answer with many placeholders is put back in quadratic time, whole or in pieces."""

    def taken(count: int) -> float:
        made = Pseudonymizer(PatternEntities(["EMAIL"]))
        hidden = made.invoke(" ".join(f"u{number}@example.org" for number in range(count)))
        text = f"{hidden} a < b "
        began = time.process_time()
        assert made.restore(hidden).endswith(f"u{count - 1}@example.org")
        pieces = (text[place : place + 4] for place in range(0, len(text), 4))
        assert "".join(made.restorer().transform(pieces)).count("@") == count
        return time.process_time() - began

    assert taken(5_000) < 30 * min(taken(500) for _ in range(3)) + 0.1
