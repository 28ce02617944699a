"""What is not handed over, and that the reason is told: by released text alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import INSTRUCTION, LABELS, examples, optimizer

from langchain_dp import PrivacyBudget
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt import Decoding, OptPrompts, load_prompt
from langchain_dp.opt.filters import Echo, candidate_fault, request_echo, whole_sentences
from langchain_dp.opt.templates import CUE, MESSAGES
from langchain_dp.opt.text import Text

START = "Read the review, then choose whether it is negative or positive."


@pytest.mark.parametrize(
    ("candidate", "complete", "fault"),
    [
        ("Decide whether the review praises the film.", True, ""),
        ("Say negative if the critic is bored, else positive.", False, ""),
        ("Choose", True, ""),
        (START, True, ""),
        ("", True, "it has no text"),
        *((message, True, "it repeats the request") for message in MESSAGES),
        ("The student turns an input text into an output text of the review.", True, "it repeats the request"),
        ("Input: a dull film Output: negative.", True, "it repeats the request"),
        ("Read the review. Better instruction: read the review.", True, "it repeats the request"),
        ("Read the review and decide if the", False, "it stops in mid-sentence"),
        ("Read the review and choose one of the following:", True, "it stops in mid-sentence"),
        ("Make it more concise.", True, "it no longer names the task"),
        ("Give positively short answers.", True, "it no longer names the task"),  # no label as a word of its own
    ],
)
def test_a_candidate_is_dropped_for_a_reason(candidate: str, complete: bool, fault: str) -> None:
    """If it breaks, an echo of the request, half a sentence or a sentence about nothing becomes the prompt."""
    found = candidate_fault(candidate, instruction=START, words=LABELS, prompts=OptPrompts(), complete=complete)
    assert found == fault
    shared = "An input text into an output text: read the review."
    said = {"words": LABELS, "prompts": OptPrompts()}
    assert candidate_fault(shared, instruction=shared, **said) == ""  # type: ignore[arg-type]  # what the task itself says
    assert candidate_fault(shared, instruction=START, **said) == "it repeats the request"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("candidate", "instruction", "words", "complete"),
    [
        ("请判断文本是正面还是负面。", "这篇评论怎么样\uff1f", ["正面", "负面"], True),
        ("请判断文本的情感。", "判断这条评论的情感。", ["1", "2"], True),
        ("肯定か否定かを答えてください。", "レビューを分類する。", ["肯定", "否定"], True),
        ("समीक्षा को अच्छी या बुरी कहें।", "यह समीक्षा अच्छी है?", ["अच्छी", "बुरी"], False),
        ("قل جيد أو سيئ؟", "هل هو جيد؟", ["جيد", "سيئ"], False),
        ("Say cafe\u0301.", "What is it?", ["caf\u00e9", "bar"], True),
    ],
)
def test_a_candidate_in_any_writing_is_kept(candidate: str, instruction: str, words: list[str], complete: bool) -> None:
    """If it breaks, all that is written in Chinese or Japanese is paid for and dropped."""
    said = {"instruction": instruction, "words": words, "prompts": OptPrompts(), "complete": complete}
    assert candidate_fault(candidate, **said) == ""  # type: ignore[arg-type]  # of several types
    assert candidate_fault("请用更少的词。", **said) == "it no longer names the task"  # type: ignore[arg-type]


@pytest.mark.parametrize("written", ["Say yes or no.", "Classify this, good film."])
def test_dropped_candidates_stay_in_the_result_and_are_not_chosen(written: str, tmp_path: Path) -> None:
    """If it breaks, what was paid for is lost, or a dropped candidate is handed over all the same."""
    made = optimizer(WordEngine(agreeing(written)), filtered=True).optimize(examples())
    dropped = written.startswith("Say")
    assert [(each.text, each.dropped) for each in made.candidates] == [
        (written, "it no longer names the task" if dropped else "")
    ] * 2
    assert made.instruction in ({INSTRUCTION} if dropped else {INSTRUCTION, written})
    assert ("dropped: it no longer names" in str(made.candidates[0])) is dropped
    made.save(tmp_path / "prompt.json")
    assert load_prompt(tmp_path / "prompt.json").candidates == made.candidates


REQUEST = "Say only the words that the student needs."
"""Five words of it are asked for by one of the requests."""


@pytest.mark.parametrize("filtered", [True, False])
def test_what_would_be_dropped_as_an_echo_is_not_written(filtered: bool) -> None:
    """If it breaks, a whole text is paid for and dropped, where its next best token would have made it of use."""
    engine = WordEngine(agreeing(REQUEST), extra=REQUEST)
    made = optimizer(
        engine, filtered=filtered, max_new_tokens=9, budget=PrivacyBudget(400.0, 0.1), epsilon0=9.0
    ).optimize(examples())
    request = request_echo(OptPrompts(), INSTRUCTION)
    assert [request(each.text) for each in made.candidates] == [not filtered] * 2
    assert all(each.text.startswith("Say only the words that") is not filtered for each in made.candidates)
    assert not any(each.dropped == "it repeats the request" for each in made.candidates)


@pytest.mark.parametrize(
    ("text", "kept", "cut"),
    [
        ("Is the film good? Answer with one", "Is the film good?", "Answer with one"),
        ('Say "good." Or say', 'Say "good."', "Or say"),
        ("Judge it. All of it.", "Judge it. All of it.", ""),
        ("Judge the film, e.g. its plot. Then its", "Judge the film, e.g. its plot.", "Then its"),
        ("1. Judge the film", "1. Judge the film", ""),
        ("Rate it from 1 to 5. Say", "Rate it from 1 to 5.", "Say"),
        ('Say "yes" or "no". Do', 'Say "yes" or "no".', "Do"),
        ("Say **good** (or **bad**)? Then", "Say **good** (or **bad**)?", "Then"),
        ("Is it good vs. bad and why", "Is it good vs. bad and why", ""),
        ("Is it... or is it not", "Is it... or is it not", ""),
        ("Ask Mr. Smith", "Ask Mr. Smith", ""),
        ("समीक्षा अच्छी है। फिर", "समीक्षा अच्छी है।", "फिर"),
        ("Rate it from 1.5 to", "Rate it from 1.5 to", ""),
        ("判断文本。然后", "判断文本。", "然后"),
        ("", "", ""),
    ],
)
def test_an_unfinished_sentence_is_cut_off(text: str, kept: str, cut: str) -> None:
    """If it breaks, a whole instruction is dropped for the sentence after it, or half of one is handed over."""
    assert whole_sentences(text) == (kept, cut)
    assert text.replace(" ", "") == (kept + cut).replace(" ", "")


def test_what_was_cut_off_stays_in_the_result(tmp_path: Path) -> None:
    """If it breaks, something that was released stands nowhere."""
    said = "Classify this film. Answer yes or no"
    made = optimizer(WordEngine(agreeing(said), extra=said), filtered=True, max_new_tokens=6)
    result = made.optimize(examples())
    assert [(each.text, each.cut, each.dropped) for each in result.candidates] == [
        ("Classify this film.", "Answer yes", "")
    ] * 2
    assert made.released() == ["Classify this film. Answer yes"] * 2
    assert "unfinished end 'Answer yes'" in str(result.candidates[0])
    result.save(tmp_path / "prompt.json")
    assert load_prompt(tmp_path / "prompt.json").candidates == result.candidates


def test_a_prompt_as_system_and_human_message() -> None:
    """If it breaks, the task stands in the wrong message, or in both."""
    made = optimizer(prompts=OptPrompts(system=True)).optimize(examples())
    first, second = made.template().format_messages(text="a film")
    assert (first.type, second.type) == ("system", "human")
    assert first.content == f"Instruction: {made.instruction}\nAnswer with one of: negative, positive."
    assert second.content == "Input: a film\n\nOutput:"
    for wrong in ({"answer": "Answer."}, {"answer": "{labels}\n"}, {"system": "yes"}):
        with pytest.raises(InvalidParameter):
            OptPrompts(**wrong)  # type: ignore[arg-type]  # wrong on purpose
    assert "Answer with" not in OptPrompts(answer="").forward_parts("Say it.", LABELS)[0]


@pytest.mark.parametrize(
    ("carries", "given", "asked"),
    [(True, None, True), (False, None, False), (True, Decoding(chat=False), False), (False, Decoding(chat=True), True)],
)
def test_a_model_with_a_chat_template_is_asked_in_it(carries: bool, given: Any, asked: bool) -> None:
    """If it breaks, an instruction-tuned model is asked to continue a text, or a base model to chat."""
    engine = WordEngine(agreeing("Classify it."))
    engine.chats = carries  # type: ignore[attr-defined]  # the attribute of engines
    settings = {} if given is None else {"decoding": given}
    made = optimizer(engine, **settings)
    assert made.settings.decoding.chat is asked
    made.invoke(examples())
    assert {rule.chat for rule in engine.decodings} == {asked}


def test_the_request_stands_not_next_to_the_cue() -> None:
    """If it breaks, what is copied by a model that copies is the request again."""
    prompts = OptPrompts()
    for place, message in enumerate(MESSAGES):
        tail = prompts.backward_tail(place, "Is it spam?")
        assert tail.startswith(message)
        assert "Is it spam?" in tail[len(message) :]
        assert CUE not in tail  # it begins the model's own turn
        assert not any(word in message for word in ("Rewrite", "Be concise", "Clarify", "Improve the", "Shorten"))
    assert prompts.meta.index("no more errors") < prompts.meta.index("Below")


def text(engine: WordEngine | None = None, stop: Sequence[str] = ("\n",), **decoding: Any) -> Text:
    return Text(engine or WordEngine(), Decoding(**decoding), stop)


def test_an_instruction_ends_before_the_first_stop_string_or_half_a_letter() -> None:
    """If it breaks, what follows the instruction is handed over with it, or it ends in a replacement character."""
    assert text().instruction([*WordEngine().tokenize("Say"), 2]) == "Say"
    assert text().instruction([*WordEngine().tokenize("Say"), 2, 3]) == "Say\u00e9"
    engine = WordEngine()
    for said, left in [
        ("Say yes.\nInput: Read", "Say yes."),
        ("\n\nSay yes.\n", "Say yes."),
        ("Say yes", "Say yes"),
        ("\n\n", ""),
    ]:
        tokens = engine.tokenize(said)
        assert text(engine).instruction(tokens) == left
        assert text(engine).stops(tokens) == ("\n" in said.lstrip())
    both = text(engine, ["Input", "\n"])
    assert both.instruction(engine.tokenize(["Say", "Input", "\n"])) == "Say"
    assert text(engine, ()).instruction(engine.tokenize("Say\n\nRead")) == "Say\n\nRead"


def test_a_candidate_does_not_begin_with_its_end() -> None:
    """If it breaks, models that begin on a new line write nothing; or a banned token comes back in mid-sentence."""
    engine = WordEngine()
    opening = text(engine, ["#", "or"], banned=frozenset({9}))
    first, then = opening.decoding([]), opening.decoding([5])
    assert then.banned == {9}
    for token in range(4, engine.vocabulary_size):
        spelt = engine.detokenize([token])
        assert (token in first.banned) == ("\n" in spelt or "#" in spelt or "or" in spelt or token == 9)
    assert not first.banned & engine.end_tokens
    assert opening.decoding([]) is first


ASKED = "Say of each output which inputs belong to it."
ECHO = Echo([ASKED], known="Which inputs belong to me?", headings=["Input:", "# Student"])


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ("", False),
        ("Say of each OUTPUT what it is", True),
        ("Tell of each output which one fits", True),
        ("say of each", False),
        ("Say which inputs belong to whom", False),  # the task itself says so
        ("Say: input: a film", True),
        ("Do as a # student does", True),
    ],
)
def test_four_words_in_a_row_or_a_heading(text: str, repeats: bool) -> None:
    """If it breaks, what was asked is handed over as if it had been learned, or what is new is dropped."""
    assert ECHO(text) is repeats


@pytest.mark.parametrize(
    "tokens",
    [
        ["Say", " of", " each", " output", " what"],
        ["Tell", " of", " each", " output", " wh", "ich"],
        ["Say", " of", " each", " out", "put", "s"],
        ["Say", " input", ":"],
        ["Do", " #", " Stu", "dent"],
    ],
)
def test_no_text_repeats_that_was_not_near_it_one_token_before(tokens: list[str]) -> None:
    """If it breaks, the token that makes a text repeat is drawn, or the vocabulary is spelt for every token."""
    assert not any(ECHO.near(text) for text in ("Is it a good film", "Say of", "in", "#1 of all"))
    assert not Echo().near("")
    assert not Echo()("")
    texts = ["".join(tokens[:at]) for at in range(len(tokens) + 1)]
    repeating = next(at for at, text in enumerate(texts) if ECHO(text))
    assert ECHO.near(texts[repeating - 1])
