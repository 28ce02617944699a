"""Texts in, privatized texts out: what may leave, what may not, and what is said about it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fakes import vocabularies
from fakes.vocabularies import WORDS, Letters
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import NotPrivateSeededRandomness
from langchain_dp.rapt import Policies, TextPrivatizer, Vocabulary, load

SMALL = vocabularies.small()
both_mechanisms = pytest.mark.parametrize("mechanism", ["laplace", "exponential"])
NO_NOISE = 1e12


def privatizer(eta: float = 2.0, *, seed: int | None = 1, vocabulary: Vocabulary = SMALL, **options) -> TextPrivatizer:
    rng = None if seed is None else NotPrivateSeededRandomness(seed)
    return TextPrivatizer(vocabulary, eta, rng=rng, **options)


def out(text: str, **options) -> str:
    """A text with next to no noise: what is left is tokenizing, policies and joining."""
    return privatizer(NO_NOISE, **options).privatize([text])[0]


@both_mechanisms
def test_without_noise_known_text_stays_and_unknown_words_never_leave(mechanism: str) -> None:
    """If it breaks, words move against their vectors, or a name that the table does not hold is sent out in clear."""
    text = "the doctor was at paris, u.s. (it isn't well-known)!"
    assert privatizer(NO_NOISE, mechanism=mechanism).privatize([text, "", " \n"]) == [text, "", ""]
    names = "Zebulon 4471 caf\u00e9 2024-03-05 x.y@z.org https://z.org `zq` \U0001f44d \u6771 \u05e9\u05dc \ud800"
    nearest = WORDS[int(SMALL.table.find(np.array([SMALL.unknown], dtype=float))[0])]
    assert out(names, mechanism=mechanism).split() == [nearest] * 13
    noisy = " ".join(privatizer(0.5, mechanism=mechanism).privatize([names] * 20))
    assert not any(word in noisy for word in ("Zeb", "zeb", "4471", "zq", "caf"))


@both_mechanisms
def test_the_content_of_one_text_leaves_the_noise_of_the_next_alone(mechanism: str) -> None:
    """If it breaks, noise is shared or drawn by content: equal token counts must give the second text equal words."""
    one, other = (
        privatizer(1.0, mechanism=mechanism).privatize([first, "the heart of the city"])
        for first in ("the dog", "Zebulon pill")
    )
    assert one[1] == other[1]
    assert one[0] != other[0]


def test_two_releases_differ_unless_seeded() -> None:
    """If it breaks, noise is reused: the difference of two texts is then released without any."""
    text = "the doctor and the nurse " * 10
    assert len({privatizer(1.0, seed=None).privatize([text])[0] for _ in range(3)}) == 3
    assert privatizer(1.0).privatize([text]) == privatizer(1.0).privatize([text])
    one = privatizer(1.0)
    assert one.privatize([text]) != one.privatize([text])
    assert (privatizer(1.0, seed=None).private, one.private) == (True, False)
    assert any("NOT private" in note for note in one.notes())


@both_mechanisms
def test_spaces_and_casing_do_not_leave(mechanism: str) -> None:
    """If it breaks, line breaks, indents or capitals of the private text pass in clear."""
    texts = ["the dog was at sea", "THE  Dog\twas\n\nat\u3000Sea ", "\u202ethe\x00dog was\u200bat sea"]
    assert len({privatizer(1.0, mechanism=mechanism).privatize([text])[0] for text in texts}) == 1


@pytest.mark.parametrize("kind", ["numbers", "dates", "urls", "punctuation", "code"])
@pytest.mark.parametrize("treatment", ["keep", "placeholder"])
def test_a_policy_reaches_its_own_kind_only(kind: str, treatment: str) -> None:
    """If it breaks, keeping numbers keeps dates too, or a placeholder shows what it stands for."""
    features = {"numbers": "4471", "dates": "2024-03-05", "urls": "https://z.org/q", "punctuation": ";", "code": "`zq`"}
    result = out(" ".join(features.values()), policies=Policies(**{kind: treatment}))
    shown = features[kind] if treatment == "keep" else f"[{kind.upper().removesuffix('S')}]"
    assert shown in result
    for other, feature in features.items():
        assert (feature in result) == (other == kind and treatment == "keep")


def test_kept_words_stay_and_are_named() -> None:
    """If it breaks, a word that must stay is lost, more stays than was chosen, or a certificate does not say so."""
    result = out("the IBUPROFEN, zq-7 zq", keep=["Ibuprofen", "zq-7"])
    assert result.startswith("the IBUPROFEN, zq-7 ")
    assert not result.endswith("zq")
    noisy = privatizer(0.5, keep=["ibuprofen"])
    assert all("ibuprofen" in text for text in noisy.privatize(["the ibuprofen heart"] * 20))
    assert any("1 chosen words" in note and "ibuprofen" in note for note in noisy.notes())
    assert any(note.endswith("....") for note in privatizer(keep=[f"w{i}" for i in range(30)]).notes())


@both_mechanisms
def test_a_fixed_length_hides_the_length(mechanism: str) -> None:
    """If it breaks, short texts show, a long text is not cut, or pads come out without noise."""
    long = "the doctor and the nurse was at the house"
    fixed = privatizer(1.0, mechanism=mechanism, length=5)
    assert len(set(fixed.privatize([""] * 30))) > 20, "pads get noise of their own"
    assert out(long, length=5, mechanism=mechanism) == "the doctor and the nurse"
    assert any("5 tokens" in note and "cut" in note for note in fixed.notes())
    assert not any("number of tokens of every text is in clear" in note for note in fixed.notes())
    kept = privatizer(NO_NOISE, length=4, keep=["zq"])
    texts = ["zq zq", "the zq zq dog zq zq", "zq " * 9, "the " * 9]
    assert [len(text.split()) for text in kept.privatize(texts)] == [4] * 4, "kept words count, too"
    assert kept.privatize(texts[1:2]) == ["the zq zq dog"]


def test_foreign_tokenizers_are_privatized_token_by_token() -> None:
    """If it breaks, byte pairs and sentence pieces cannot be used, or their special tokens come out."""
    letters = load(Letters())
    assert out("Hello, you", vocabulary=letters, policies=Policies(punctuation="keep")) == "hello, you"
    noisy = privatizer(0.01, vocabulary=letters).privatize(["hello \ud800 there"] * 30)
    assert not any("<" in text for text in noisy)


def test_notes_name_all_that_is_in_clear() -> None:
    """If it breaks, a certificate is silent about a feature that leaves."""
    assert privatizer(seed=None).notes() == ("The number of tokens of every text is in clear.",)
    loud = Policies(numbers="keep", dates="placeholder", urls="keep", punctuation="keep", code="placeholder")
    notes = " ".join(privatizer(policies=loud).notes())
    for name in ("Numbers are passed", "Dates are replaced", "Addresses", "Punctuation", "Code blocks are replaced"):
        assert name in notes


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(), max_size=60), st.integers(1, 12))
def test_any_text_goes_through(text: str, length: int) -> None:
    """If it breaks, one odd character stops a run, or reaches a wire that cannot carry it."""
    free = Policies(numbers="keep", dates="placeholder", code="keep", urls="keep", punctuation="keep")
    for options in ({}, {"policies": free}, {"length": length, "policies": free}):
        privatizer(1.0, **options).privatize([text])[0].encode("utf-8")


def test_ids_are_privatized_one_by_one() -> None:
    """If it breaks, a trainer that works on ids gets other tokens than texts do, or its own array is changed."""
    given_ids = np.array([5, -1, -2, 7])
    released = privatizer(NO_NOISE).release(given_ids)
    assert released[[0, 3]].tolist() == [5, 7]
    assert given_ids.tolist() == [5, -1, -2, 7]
    assert released.min() >= 0
    for bad in (np.array([len(SMALL)]), np.array([-3]), np.zeros((2, 2), dtype=int)):
        with pytest.raises(InvalidParameter, match="row of numbers"):
            privatizer().release(bad)


def test_threads_may_share_a_privatizer() -> None:
    """If it breaks, a server that privatizes in several threads mixes up its texts."""
    shared = privatizer(NO_NOISE, seed=None, mechanism="exponential")
    texts = [f"{word} " * 50 for word in WORDS[:12]]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(shared.privatize, [texts] * 4))
    assert results == [[text.strip() for text in texts]] * 4
