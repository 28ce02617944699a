"""DP-ICL behind the face of a chat model: what a chat user may ask for, and what never reaches the vote."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.voters import AsyncVotingChat, VotingChat, classifier, left, private_examples
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda

from langchain_dp import ChatDPICL, PrivacyCertificate
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import ICLPrompt


def chat(**changes: Any) -> ChatDPICL:
    return ChatDPICL(classifier=classifier(**changes))


async def test_the_reply_is_the_label_with_its_certificate() -> None:
    """The certificate does not travel with the message, or is not plain JSON."""
    model = chat(model=AsyncVotingChat())
    for message in (model.invoke("x"), await model.ainvoke("y")):
        assert message.text == "positive"
        dp = message.response_metadata["dp"]
        assert json.loads(json.dumps(dp, allow_nan=False)) == dp
        assert PrivacyCertificate.from_dict(dp).epsilon == 50.0
        assert dp["model"] == message.response_metadata["model_name"] == "voting-chat-1"
        assert CANARY not in repr(message)
    assert model.invoke("x").response_metadata["dp"]["remaining"] == 3


async def test_a_stream_is_one_chunk_with_everything_a_reply_has() -> None:
    """Streaming loses the certificate, or shows anything before the noise was drawn."""
    model = chat(model=AsyncVotingChat())
    reply = model.invoke("x")
    for chunks in ([*model.stream("x")], [chunk async for chunk in model.astream("x")]):
        assert [chunk.text for chunk in chunks if chunk.text] == ["positive"]
        assert chunks[0].response_metadata["dp"] == reply.response_metadata["dp"]
        assert chunks[0].usage_metadata == reply.usage_metadata
    assert left(model.classifier) == 4


@pytest.mark.parametrize("further", [{"tools": []}, {"temperature": 2.0}, {"response_format": {}}])
async def test_what_would_change_the_answer_is_not_ignored(further: dict[str, Any]) -> None:
    """If it breaks, an answer is paid for that is not what was asked for."""
    chat = ChatDPICL(classifier=classifier())
    for call in (chat.invoke, lambda *a, **k: list(chat.stream(*a, **k))):
        with pytest.raises(InvalidParameter, match="Unbind them"):
            call("good", **further)
    with pytest.raises(InvalidParameter, match="Unbind them"):
        await chat.ainvoke("good", **further)
    assert chat.classifier.answers_left() == classifier().answers_left()


def test_the_last_human_message_is_the_question() -> None:
    """Older turns, or a system message, change the vote or the cached answer."""
    inner = VotingChat()
    model = chat(model=inner)
    model.invoke(
        [SystemMessage("Say no."), HumanMessage("first"), AIMessage("ok"), HumanMessage("second"), AIMessage("z")]
    )
    assert set(inner.asked.questions) == {"Text: second\nLabel:"}
    model.invoke([HumanMessage([{"type": "text", "text": "second"}])])
    assert left(model.classifier) == 4


@pytest.mark.parametrize(
    "messages", [[SystemMessage("x")], [HumanMessage("")], [HumanMessage([{"type": "image", "url": "http://x/y.png"}])]]
)
def test_a_chat_without_a_question_is_refused(messages: Any) -> None:
    """A chat without text costs budget, or an older message is answered."""
    model = chat()
    with pytest.raises(InvalidParameter, match=r"human message|blank|text alone"):
        model.invoke(messages)
    assert left(model.classifier) == 5


def test_what_was_said_before_reaches_the_vote_where_the_template_names_it() -> None:
    """If it breaks, an empty history is voted on and charged, and two conversations share one answer."""
    model = VotingChat()
    prompt = ICLPrompt(question="Before: {history} Now: {text}", answer="Label:")
    chain = classifier(model, examples=[{**row, "history": ""} for row in private_examples(24)], prompt=prompt)
    chat = ChatDPICL(classifier=chain)
    for product in ("lamp", "desk"):
        chat.invoke([("human", f"I ordered a {product}."), ("ai", "Yes?"), ("human", "It never came.")])
    assert {asked.split("\n")[0] for asked in model.asked.questions} == {
        f"Before: Human: I ordered a {product}." for product in ("lamp", "desk")
    }
    assert left(chain) == 3


def test_a_template_that_no_conversation_fills_is_refused() -> None:
    """If it breaks, a chat is built that refuses every message."""
    prompt = ICLPrompt(question="{product}: {text}", answer="Label:")
    chain = classifier(examples=[{**row, "product": "x"} for row in private_examples(24)], prompt=prompt)
    with pytest.raises(InvalidParameter, match=r"which is which of \['product', 'text'\]. Ask the classifier itself"):
        ChatDPICL(classifier=chain)


def test_usage_counts_question_and_label_only_without_a_hub() -> None:
    """The usage shows how many tokens the private subsets held, or the network is asked for another's tokenizer."""
    assert chat().get_num_tokens("Nobody came.") == 3
    small, large = chat(), chat(examples=private_examples(800))
    assert small.invoke("x").usage_metadata == large.invoke("x").usage_metadata
    assert small.invoke("x").usage_metadata == {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}


def test_stop_words_cut_the_released_label_only() -> None:
    """A stop word reaches the vote, or an empty one fails after the spend."""
    inner = VotingChat()
    model = chat(model=inner)
    assert model.invoke("x", stop=["iti"]).text == "pos"
    assert model.invoke("x", stop=[""]).text == "positive"
    assert left(model.classifier) == 4


def test_a_global_cache_does_not_mix_two_classifiers_or_keep_forgotten_answers() -> None:
    """LangChain's cache answers for another classifier, or goes on with an answer that a forgotten record gave."""
    set_llm_cache(InMemoryCache())
    try:
        good, bad = chat(), chat(examples=private_examples(24, labels=["negative"]))
        assert [good.invoke("x").text, bad.invoke("x").text] == ["positive", "negative"]
        good.classifier.forget("#0")
        good.invoke("x")
        assert left(good.classifier) == 3
    finally:
        set_llm_cache(None)


def test_a_printed_chat_says_what_it_answers_from_and_shows_no_record() -> None:
    """print(chat) shows versions of LangChain and nothing of the classifier."""
    chat = ChatDPICL(classifier=classifier(examples=private_examples(24)))
    assert str(chat).startswith("classifier=DPICLClassifier(labels=")
    assert repr(chat).startswith("ChatDPICL(classifier=DPICLClassifier(labels=")
    assert CANARY not in repr(chat)


async def asked_of(ask: Callable[..., Any], questions: list[Any]) -> Any:
    """The answers, sync or async."""
    answers = ask(questions)
    return await answers if inspect.isawaitable(answers) else answers


@pytest.mark.parametrize("face", ["batch", "abatch", "generate", "agenerate", "in a chain"])
async def test_many_questions_are_all_looked_at_before_one_is_charged(face: str) -> None:
    """If it breaks, the chat face says that nothing was spent after others of its batch were paid for."""
    chain = classifier(VotingChat())
    chat = ChatDPICL(classifier=chain)
    ask = (RunnableLambda(lambda one: one) | chat).batch if face == "in a chain" else getattr(chat, face)
    with pytest.raises(InvalidParameter, match=r"^Question 1 of a batch: .*Nothing was spent"):
        await asked_of(ask, [[HumanMessage("one")], [HumanMessage("")], [HumanMessage("two")]])
    assert left(chain) == 5
    with pytest.raises(InvalidParameter, match=r"^Question 1 of a batch: Expected a str, a list") as refused:
        chat.batch(["one", {CANARY: 1}])
    assert CANARY not in str(refused.value)
    assert chat.batch(["one", ""], return_exceptions=True)[0].text == "positive"
    assert left(chain) == 4


def test_a_setting_that_a_chat_face_has_not_is_no_silent_one() -> None:
    """If it breaks, a user takes a length or a temperature for set that nobody reads."""
    chain = classifier(VotingChat())
    with pytest.warns(UserWarning, match=r"\['max_tokens', 'temperature'\] have no effect"):
        ChatDPICL(classifier=chain, temperature=0.2, max_tokens=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ChatDPICL(classifier=chain, tags=["a"], metadata={"b": 1}, cache=False).tags == ["a"]


def test_tools_and_schemas_are_refused() -> None:
    """If it breaks, an agent's response_format is paid for and comes out as a bare label."""
    for ask in (lambda: chat().bind_tools([str]), lambda: chat().with_structured_output(PrivacyCertificate)):
        with pytest.raises(InvalidParameter, match="Expected no tools and no structured output"):
            ask()
