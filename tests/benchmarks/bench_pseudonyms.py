"""What recognizers find of entities that are known, in English texts made from templates; no text is downloaded.

Run: ``python tests/benchmarks/bench_pseudonyms.py --out tests/benchmarks/results/pseudonyms.jsonl``. Peers that are not
installed are left out. The templates are of two authors: our own, and those of the package presidio-evaluator, which
fills them with names and companies of many countries; its rows are left out where it is not installed. With
LANGCHAIN_DP_DATA, a folder of seven sets, findings in public texts are counted as well. An entity counts
as found if every character of it is covered; as leaked if one is not, blanks apart. A finding counts as right if it
touches an entity. Presidio is run without a language model, which none of its packages brings: its recognizers of
patterns alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from made import made

from langchain_dp.rapt.folding import united
from langchain_dp.rapt.pseudonyms import PatternEntities, TermEntities
from langchain_dp.rapt.pseudonyms.recognize import AllEntities, Recognizer
from langchain_dp.records import read_jsonl

Finder = Callable[[str], list[tuple[int, int, str]]]
Texts = list[tuple[str, list[tuple[int, int, str]]]]
"""Texts, each with where its entities are."""

FORMED = {
    "CREDIT_CARD", "DOMAIN_NAME", "EMAIL", "EMAIL_ADDRESS", "IBAN", "IBAN_CODE", "IP", "IP_ADDRESS", "PHONE",
    "PHONE_NUMBER", "URL",
}  # fmt: skip
"""Kinds that have a form of their own in both sources."""

FIRST = [
    "Ann",
    "Omar",
    "Li",
    "Maria",
    "Jonas",
    "Priya",
    "Kofi",
    "Elena",
    "Tom",
    "Ines",
    "Sven",
    "Aisha",
    "Pedro",
    "Yuki",
    "Noor",
    "Grace",
]
LAST = [
    "Smith",
    "Haddad",
    "Wei",
    "Rossi",
    "Berg",
    "Nair",
    "Mensah",
    "Petrova",
    "Baker",
    "Duarte",
    "Lund",
    "Khan",
    "Alves",
    "Sato",
    "Rahman",
    "O'Neill",
]
STREETS = ["Oak Lane", "Station Road", "Mill Street", "King's Avenue", "Harbour Drive", "Church Row"]
TOWNS = ["Leeds", "Boston", "Cork", "Dunedin", "Halifax", "Bristol"]
TEMPLATES = [
    "My name is {PERSON}, born {BIRTH}, and I live at {ADDRESS}.",
    "Please call {PERSON} back on {PHONE} before 5 pm; ticket 4711 is still open.",
    "Refund 49.90 to IBAN {IBAN} of {PERSON}, thank you.",
    "{PERSON} wrote from {EMAIL} that order 20 of 300 never came.",
    "The card {CREDIT_CARD} was declined twice on version 3.14.15.",
    "Login from {IP} at 12:30:45, see {URL} for the log.",
    "Send the parcel to {ADDRESS} and text {PHONE}.",
    "Hi, this is {PERSON}. Contact: {EMAIL}, {PHONE}. DOB {BIRTH}.",
    "Customer {NUMBER} asked {PERSON} about {URL}.",
    "Nothing private here: the meeting on page 12 takes 90 minutes, room 3.",
]


def texts(count: int, seed: int) -> Texts:
    """Texts and where their entities are."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        text, spans = "", []
        for piece in TEMPLATES[number % len(TEMPLATES)].split("{"):
            kind, closed, rest = piece.partition("}")
            if closed:
                value = _value(kind, rng)
                spans.append((len(text), len(text) + len(value), kind))
                text += value + rest
            else:
                text += piece
        made.append((text, spans))
    return made


def _digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choices("0123456789", k=count))


def _value(kind: str, rng: random.Random) -> str:
    first, last = rng.choice(FIRST), rng.choice(LAST)
    if kind == "PERSON":
        return f"{first} {last}"
    if kind == "BIRTH":
        year, month, day = rng.randint(1940, 2005), rng.randint(1, 12), rng.randint(1, 28)
        return rng.choice([f"{year}-{month:02}-{day:02}", f"{day:02}/{month:02}/{year}", f"{day} May {year}"])
    if kind == "ADDRESS":
        return f"{rng.randint(1, 200)} {rng.choice(STREETS)}, {rng.choice(TOWNS)}"
    if kind == "PHONE":
        return rng.choice(
            [
                f"+44 20 7946 0{_digits(rng, 3)}",
                f"(555) 01{_digits(rng, 1)}-{_digits(rng, 4)}",
                f"+49 30 {_digits(rng, 7)}",
                f"212-555-0{_digits(rng, 3)}",
                f"020 7946 0{_digits(rng, 3)}",
            ]
        )
    if kind == "EMAIL":
        host = rng.choice(["example.org", "mail.example.co.uk", "example.com"])
        return f"{first.lower()}{rng.choice(['.', '_', '+'])}{last.lower().replace(chr(39), '')}@{host}"
    if kind == "IBAN":
        account = _digits(rng, 18)
        code = f"DE{98 - int(account + '131400') % 97:02}{account}"
        return rng.choice([code, " ".join(code[start : start + 4] for start in range(0, len(code), 4))])
    if kind == "CREDIT_CARD":
        head = "4" + _digits(rng, 14)
        luhn = sum(sum(divmod(int(mark) * (2 - place % 2), 10)) for place, mark in enumerate(head))
        code = head + str(-luhn % 10)
        return rng.choice([code, *(mark.join(code[start : start + 4] for start in range(0, 16, 4)) for mark in " -")])
    if kind == "IP":
        return rng.choice([".".join(str(rng.randint(1, 254)) for _ in range(4)), f"2001:db8::{rng.randint(1, 9999)}"])
    if kind == "URL":
        return rng.choice([f"https://example.org/u/{last.lower()[:2]}?id={_digits(rng, 3)}", "www.example.com/account"])
    return _digits(rng, 8)


def made_by_others(count: int, seed: int, which: slice = slice(None)) -> Texts:
    """Texts of some templates of the package presidio-evaluator and where their entities are."""
    from presidio_evaluator.data_generator import PresidioSentenceFaker, presidio_sentence_faker

    templates = presidio_sentence_faker.presidio_templates_file_path.read_text(encoding="utf-8").splitlines()[which]
    made = PresidioSentenceFaker(
        locale="en_US", lower_case_ratio=0.05, random_seed=seed, sentence_templates=[*map(str.strip, templates)]
    )
    return [
        (one.full_text, [(span.start_position, span.end_position, span.entity_type) for span in one.spans])
        for one in made.generate_new_fake_sentences(count)
    ]


SOURCES: dict[str, Callable[[int, int], Texts]] = {
    "own": texts,
    "presidio-evaluator": made_by_others,
    "presidio-evaluator, seen half": lambda count, seed: made_by_others(count, seed, slice(0, None, 2)),
    "presidio-evaluator, held out half": lambda count, seed: made_by_others(count, seed, slice(1, None, 2)),
}
"""Patterns were mended on every other template alone."""


def found_in_public_texts(find: Finder, folder: Path) -> dict[str, Any]:
    """Number of findings of each kind in 2,002 public texts, 286 of each of seven sets, which hold few entities."""
    counts, number = Counter[str](), 0
    for path in sorted(folder.glob("*/train.jsonl")):
        every = [row["text"] for row in read_jsonl(path)]
        for text in random.Random(7).sample(every, 286):
            number += 1
            counts.update(kind for _, _, kind in find(text))
    return {"texts": number, "findings": dict(sorted(counts.items()))}


def measured(find: Finder, given: Texts) -> dict[str, Any]:
    """Recall of each kind, precision, and in how many texts something leaked."""
    there, found, findings, right, leaky = Counter[str](), Counter[str](), 0, 0, 0
    begun = time.perf_counter()
    for text, spans in given:
        spotted = find(text)
        covered = {place for start, end, _ in spotted for place in range(start, end)}
        whole = [all(place in covered or text[place] == " " for place in range(a, b)) for a, b, _ in spans]
        there.update(kind for _, _, kind in spans)
        found.update(kind for (_, _, kind), hit in zip(spans, whole, strict=True) if hit)
        leaky += not all(whole)
        findings += len(spotted)
        right += sum(any(a < end and start < b for a, b, _ in spans) for start, end, _ in spotted)
    return {
        "texts": len(given),
        "entities": there.total(),
        "recall": round(found.total() / there.total(), 4),
        "recall_formed": round(sum(found[kind] for kind in FORMED) / sum(there[kind] for kind in FORMED), 4),
        "precision": round(right / findings, 4) if findings else None,
        "leaky_texts": leaky,
        "recall_by_kind": {kind: round(found[kind] / count, 4) for kind, count in sorted(there.items())},
        "milliseconds_per_text": round(1000 * (time.perf_counter() - begun) / len(given), 3),
    }


def _presidio() -> Finder:
    import spacy
    from langchain_dp.integrations.presidio import PresidioEntities
    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import SpacyNlpEngine

    class Blank(SpacyNlpEngine):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.nlp = {"en": spacy.blank("en")}

        def load(self) -> None:
            pass

    return PresidioEntities(AnalyzerEngine(nlp_engine=Blank()), score_threshold=0.3).find


def _langchain() -> Finder:
    from langchain.agents.middleware._redaction import BUILTIN_DETECTORS

    return lambda text: [
        (one["start"], one["end"], one["type"]) for detect in BUILTIN_DETECTORS.values() for one in detect(text)
    ]


def _ours(*further: Recognizer) -> Finder:
    """As a Pseudonymizer looks."""
    find = AllEntities([PatternEntities(), *further]).find
    return lambda text: united(text, find)


def _with_terms(given: Texts, kinds: Sequence[str]) -> Finder:
    return _ours(TermEntities(sorted({text[a:b] for text, spans in given for a, b, kind in spans if kind in kinds})))


ARMS: dict[str, Callable[[Texts], Finder]] = {
    "PatternEntities": lambda _: _ours(),
    "PatternEntities, and all names of people as terms": lambda given: _with_terms(given, ["PERSON"]),
    "PatternEntities, and all names as terms": lambda given: _with_terms(given, ["PERSON", "ORGANIZATION", "GPE"]),
    "langchain PIIMiddleware, all its detectors": lambda _: _langchain(),
    "Presidio without a language model": lambda _: _presidio(),
    "PatternEntities and Presidio without a language model": lambda _: _ours(_presidio()),
}


def main() -> None:
    """Measure every arm that is installed and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=300)
    given = parser.parse_args()
    rows = []
    data = os.environ.get("LANGCHAIN_DP_DATA")
    for name in ("PatternEntities", "langchain PIIMiddleware, all its detectors") if data else ():
        find = ARMS[name]([])
        rows.append({"key": [name, "public texts"], **found_in_public_texts(find, Path(data or "")), **made()})
        print(json.dumps(rows[-1]))
    for source, write in SOURCES.items():
        for name, make in ARMS.items():
            try:
                some = write(given.texts, 19)
                row = {"key": [name, source], **measured(make(some), some), **made()}
            except ImportError as missing:
                print(f"left out: {name}, {source} ({missing.name})")
                continue
            rows.append(row)
            print(json.dumps(row))
    given.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
