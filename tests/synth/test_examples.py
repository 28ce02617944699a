"""Released examples: filters, files, and each place where LangChain takes examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.synthesizers import synthesizer
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumps, loads
from langchain_core.prompts import ChatPromptTemplate

from langchain_dp.accounting import Neighbors, PrivacyCertificate
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import ICLPrompt
from langchain_dp.synth import (
    AnswerPrompts,
    SynthesisPrompts,
    SyntheticExample,
    SyntheticExamples,
)
from langchain_dp.synth.journal import WrittenText
from langchain_dp.synth.runnable import judged

PAPER = PrivacyCertificate(mechanism="a test", epsilon=3.0, delta=1e-5, neighbors=Neighbors.REPLACE_ONE)
LABELS = {"delivery": "complaints about late parcels", "billing": "questions about invoices"}


def made() -> SyntheticExamples:
    """Six kept texts, and one that was not."""
    texts = ["my parcel is late", "where is the parcel", "the box was broken"]
    bills = ["the invoice is wrong", "please refund me", "I have paid twice"]
    listed = [SyntheticExample(text, "delivery") for text in texts] + [SyntheticExample(t, "billing") for t in bills]
    return SyntheticExamples([*listed, SyntheticExample("so", "billing", "short")], PAPER, {"labels": LABELS})


def written(*texts: str, label: str = "delivery", ended: str = "end") -> list[WrittenText]:
    return [WrittenText(i, label, text, ended) for i, text in enumerate(texts)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "empty"), ("...", "empty"), ("late parcel", "short"), ("the parcel is late", ""),
     ("Complaints about  late parcels", "repeats the request"), ("我的包裹还没有到谢谢。", ""), ("包裹", "short"),
     ("荷物がまだ届いていません。", ""), ("พัสดุของฉันยังไม่มาถึงเลย", "")],
)  # fmt: skip
def test_each_text_is_kept_or_left_out_for_one_reason(text: str, reason: str) -> None:
    """If it breaks, a worthless text is an example, or a good one is lost."""
    assert [why for _, why in judged(written(text), 3, LABELS.values(), cue="Text:")] == [reason]
    texts = written("the parcel is late", "The parcel  is late", "it is late again")
    assert [why for _, why in judged(texts, 3, LABELS.values(), cue="Text:")] == ["", "twice", ""]


@pytest.mark.parametrize(
    ("text", "kept"),
    [("It is late. I have paid and", "It is late."), ("It is late and I have", "It is late and I have"),
     ('He said "late." and then', 'He said "late."'), ("It is late.", "It is late."),
     ('It is late. He said "Go."', 'It is late. He said "Go."'), ("It cost 3.50 in all", "It cost 3.50 in all"),
     ("我的包裹还没有到。我已经付", "我的包裹还没有到。"), ("「もう遅い。」と言った。まだ", "「もう遅い。」と言った。"),
     ("मेरा पार्सल नहीं आया। मैंने", "मेरा पार्सल नहीं आया।"), ("أين طردي؟ لقد", "أين طردي؟")],
)  # fmt: skip
def test_a_text_that_ran_out_of_tokens_ends_with_a_sentence(text: str, kept: str) -> None:
    """If it breaks, examples stop in mid-sentence, or lose a sentence that was whole."""
    [(own, why)] = judged(written("the parcel is late Text: D. J."), 3, LABELS.values(), cue="Text:")
    assert (own.text, why) == ("the parcel is late", ""), "where the prompt's next turn begins the text has ended"
    [(one, _)] = judged(written(text, ended="length"), 3, LABELS.values(), cue="Text:")
    assert one.text == kept


def test_what_was_dropped_is_no_example_and_is_shown() -> None:
    """If it breaks, what has left is nowhere to be seen."""
    examples = made()
    assert len(examples) == 6
    assert [one.dropped for one in examples.dropped] == ["short"]
    assert [one.label for one in examples.balanced(4)] == ["delivery", "billing"] * 2
    assert "6 kept, 1 dropped" in repr(examples)
    first, *rest = str(examples).split("\n")
    assert first == f"{examples[0].label}: {examples[0].text}"
    assert "Privacy certificate" in rest
    assert rest[-1] == "6 examples, 1 left out by the filters (1 short)"


def test_schemas_say_that_rows_come_out() -> None:
    """If it breaks, what serves a chain by its schemas fails on one that ends in the synthesizer."""
    said = synthesizer().get_output_jsonschema()
    assert said["type"] == "array"
    assert set(said["items"]["properties"]) == {"text", "label"}


def test_a_file_brings_back_what_it_was(tmp_path: Path) -> None:
    """If it breaks, examples lose their certificate on the way."""
    path = tmp_path / "made.jsonl"
    made().save(path)
    back = SyntheticExamples.load(path)
    assert list(back) == list(made())
    assert back.dropped == made().dropped
    assert back.certificate == PAPER
    assert back.labels == ("delivery", "billing")
    assert back == made()
    assert hash(back) == hash(made())
    assert back != SyntheticExamples(list(made())[:1], PAPER, made().settings)
    assert back != list(made())
    odd = SyntheticExamples([SyntheticExample("a\u2028b\u2029c\u0085d\x1ce", "billing")], PAPER)
    odd.save(path)
    assert list(SyntheticExamples.load(path)) == list(odd)


def test_what_the_faces_cannot_use_is_said() -> None:
    """If it breaks, a slip ends in an AttributeError or KeyError of others' code, or -1 gives all but one."""
    with pytest.raises(InvalidParameter, match="model of type NoneType"):
        made().chain(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="PathLike"):
        SyntheticExamples.load(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match=r"count=-1 to be a whole number of at least 0"):
        made().as_chat_prompt(-1)
    with pytest.raises(InvalidParameter, match="count=-1"):
        made().balanced(-1)


@pytest.mark.parametrize("text", ["", "{}", "[1]\n", '{"certificate": {}, "settings": {}}', "no json"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    """If it breaks, any file counts as private examples."""
    path = tmp_path / "made.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidParameter, match=r"made\.jsonl"):
        SyntheticExamples.load(path)


def test_a_few_shot_prompt_stands_before_a_question() -> None:
    """If it breaks, the first use of the examples does not work."""
    prompt = ChatPromptTemplate.from_messages([("system", "Sort."), made().as_few_shot_prompt(2), ("human", "{text}")])
    turns = prompt.invoke({"text": "where is it"}).to_messages()
    assert [turn.content for turn in turns] == [
        "Sort.", "my parcel is late", "delivery", "the invoice is wrong", "billing", "where is it",
    ]  # fmt: skip


def test_a_chat_prompt_can_be_stored() -> None:
    """If it breaks, a prompt of released text does not go into a file, or to where a team keeps its prompts."""
    prompt = made().as_chat_prompt(2)
    asked = {"text": "where is it"}
    assert loads(dumps(prompt), allowed_objects="core").invoke(asked) == prompt.invoke(asked)


def test_a_notebook_shows_what_print_shows() -> None:
    """If it breaks, the last line of a cell is a heap of constructors."""
    printer = Printer()
    made()._repr_pretty_(printer, cycle=False)
    assert printer.said == str(made())
    made()._repr_pretty_(printer, cycle=True)
    assert printer.said == repr(made())


class Printer:
    """IPython's, as far as it is asked."""

    said = ""

    def text(self, said: str) -> None:
        self.said = said


def test_braces_in_a_text_are_text() -> None:
    """If it breaks, a released text is read as a template."""
    examples = SyntheticExamples([SyntheticExample("pay {amount} now", "billing")], PAPER)
    assert examples.as_chat_prompt().invoke({"text": "b"}).to_messages()[1].content == "pay {amount} now"
    assert examples.as_few_shot_prompt().invoke({}).to_messages()[0].content == "pay {amount} now"


def test_a_classifier_on_examples_is_told_what_labels_mean_and_gives_labels_back(tmp_path: Path) -> None:
    """If it breaks, a model is asked for codes and not told what they mean, though names were paid for."""
    said = {"delivery": "late parcels, lost boxes", "billing": "billing"}
    coded = SyntheticExamples(list(made()), PAPER, {"labels": said})
    assert coded.descriptions == said
    chain = coded.chain(FakeListChatModel(responses=["Billing."]), 2)
    assert chain.invoke({"text": "my bill"}) == "billing"
    system, *turns, question = coded.as_chat_prompt(2).format_messages(text="my bill")
    assert system.content == coded.instruction
    assert system.content.endswith("- delivery: late parcels, lost boxes\n- billing")
    assert [turn.content for turn in turns[1::2]] == ["delivery", "billing"]
    assert question.content == "my bill"
    coded.save(tmp_path / "made.jsonl")
    assert SyntheticExamples.load(tmp_path / "made.jsonl").descriptions == said
    by_hand = SyntheticExamples(list(made()), PAPER)
    assert by_hand.descriptions == {label: label for label in by_hand.labels}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: synthesizer(labels={"a": "\ud800", "b": "y"}), "valid Unicode"),
        (lambda: synthesizer(labels={"\ud800": "x", "b": "y"}), "labels"),
        (lambda: SynthesisPrompts(before=5), "before of type int"),
        (lambda: SynthesisPrompts(head="\ud800"), "head to be valid Unicode"),
        (lambda: AnswerPrompts(end=None), "end of type NoneType"),
        (lambda: ICLPrompt(question="{text}", answer="\ud800"), "answer to be valid Unicode"),
    ],
)
def test_public_texts_that_could_not_be_kept_are_refused(call: Any, said: str) -> None:
    """If it breaks, a run is paid for whose result cannot be saved, or a mistake ends in an AttributeError."""
    with pytest.raises(InvalidParameter, match=said):
        call()
