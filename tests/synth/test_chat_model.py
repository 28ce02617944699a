"""Private answers behind the face of a chat model, also in LangChain's own suites for chat models."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.scorer import WordScorer
from fakes.standard import TextsOnly
from fakes.synthesizers import ANSWERS as BUDGET
from fakes.synthesizers import generator, replies
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from langchain_dp import ChatDPGenerator, DPAnswerGenerator, PrivacyCertificate, PrivacyLedger
from langchain_dp.accounting import Quotas
from langchain_dp.errors import InvalidParameter
from langchain_dp.synth import AnswerPrompts


def chat(**changes: Any) -> ChatDPGenerator:
    return ChatDPGenerator(generator=generator(**changes))


def question(text: str = "Where is it?") -> list[Any]:
    return [SystemMessage("Be short."), HumanMessage("Hello"), AIMessage("Hello."), HumanMessage(text)]


@pytest.mark.asyncio
async def test_the_reply_is_the_answer_with_its_certificate() -> None:
    """If it breaks, a chat user gets another answer than the chain's, or one whose promise is lost."""
    model = chat()
    answer = model.generator.invoke("Where is it?")
    for message in (model.invoke(question()), await model.ainvoke(question())):
        assert message.text == answer
        dp = message.response_metadata["dp"]
        assert json.loads(json.dumps(dp, allow_nan=False)) == dp
        assert PrivacyCertificate.from_dict(dp).epsilon == BUDGET.epsilon
        assert dp["model"] == message.response_metadata["model_name"]
    assert model.generator.answers_left() == 4


@pytest.mark.asyncio
async def test_a_stream_shows_each_token_as_it_is_drawn_and_the_promise_at_its_end() -> None:
    """If it breaks, the user waits for the whole answer, or its certificate is lost."""
    engine = WordScorer()
    model = chat(model=engine)
    seen: list[int] = []
    chunks = []
    for chunk in model.stream(question()):
        seen.append(len(engine.asked))
        chunks.append(chunk)
    assert len(set(seen)) >= 3
    text = "".join(chunk.text for chunk in chunks)
    assert text == model.generator.invoke("Where is it?")
    assert all("dp" not in chunk.response_metadata for chunk in chunks[:-1])
    assert chunks[-1].response_metadata["dp"]["epsilon"] == BUDGET.epsilon
    assert chunks[-1].usage_metadata == model.invoke(question()).usage_metadata
    assert "".join([chunk.text async for chunk in model.astream(question())]) == text
    assert model.generator.answers_left() == 4


def test_a_stop_string_cuts_what_was_released_and_the_rest_is_kept() -> None:
    """If it breaks, the same question is paid for twice, or what a caller stops at is shown."""
    model = chat()
    whole = model.generator.invoke("Where is it?")
    stop = whole[len(whole) // 2 :][:3]
    cut = whole[: whole.index(stop)]
    assert model.invoke(question(), stop=[stop]).text == cut
    assert "".join(chunk.text for chunk in model.stream(question(), stop=["", stop])) == cut
    assert "".join(chunk.text for chunk in model.stream(question("Another?"), stop=[" "])).isalpha()
    left = model.generator.answers_left()
    assert model.invoke(question("Another?")).text
    assert model.generator.answers_left() == left  # the rest was written, and kept


def test_tokens_are_counted_by_the_engine() -> None:
    """If it breaks, LangChain asks the network for another model's tokenizer."""
    engine = WordScorer()
    assert chat(model=engine).get_num_tokens("my parcel is late") == engine.count_tokens("my parcel is late")


def test_what_was_said_before_counts_where_the_template_names_it() -> None:
    """If it breaks, a conversation is answered by its last line alone, or every template is given all of it."""
    engine = WordScorer()
    prompts = AnswerPrompts(question="{history}\nMessage: {text}\nReply:")
    with_history, without = chat(model=engine, prompts=prompts), chat()
    asked = with_history.generator.prompts.asked(question())
    assert "Hello." in asked
    assert "Hello" not in without.generator.prompts.asked(question())
    assert with_history.invoke(question()).text


@pytest.mark.parametrize("further", [{"tools": []}, {"max_tokens": 2}, {"response_format": {}}])
def test_what_would_change_the_answer_is_not_ignored(further: dict[str, Any]) -> None:
    """If it breaks, an answer is paid for that is not what was asked for."""
    chat = ChatDPGenerator(generator=generator())
    with pytest.raises(InvalidParameter, match="Unbind them"):
        chat.invoke("please send the parcel", **further)
    with pytest.raises(InvalidParameter, match="Unbind them"):
        list(chat.stream("please send the parcel", **further))
    assert chat.generator.answers_left() == generator().answers_left()


def test_what_is_no_generator_and_any_cache_are_refused() -> None:
    """If it breaks, answers of forgotten records are kept where nobody can take them out."""
    with pytest.raises(InvalidParameter, match="generator=str"):
        ChatDPGenerator(generator="x")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="generator without quotas="):
        chat(quotas=Quotas(default=2))
    for cache in (True, InMemoryCache()):
        with pytest.raises(InvalidParameter, match="cache=False"):
            ChatDPGenerator(generator=generator(), cache=cache)


def test_usage_counts_question_and_answer_only() -> None:
    """If it breaks, the usage shows how many tokens the private records held."""
    small, large = chat(), chat(examples=[{**row, "text": f"{row['text']} " * 9} for row in replies(60)])
    for model in (small, large):
        reply = model.invoke(question())
        asked = model.generator.prompts.asked("Where is it?")
        assert reply.usage_metadata["input_tokens"] == model.generator.count_tokens(asked)
        assert reply.usage_metadata["output_tokens"] == model.generator.count_tokens(reply.text)


def test_an_answer_leaves_where_its_tokens_cannot_be_counted() -> None:
    """If it breaks, a server that is gone keeps back what was paid for."""
    engine = WordScorer()
    model = chat(model=engine)
    answer = model.invoke(question())

    def gone(text: str) -> int:
        raise ConnectionError(text)

    engine.count_tokens = gone  # type: ignore[method-assign]
    again, streamed = model.invoke(question()), "".join(chunk.text for chunk in model.stream(question()))
    assert (again.text, streamed) == (answer.text, answer.text)
    assert (again.usage_metadata, again.response_metadata["dp"]["private"]) == (None, True)


def test_no_record_is_in_a_trace_or_a_repr(capsys: pytest.CaptureFixture[str]) -> None:
    """If it breaks, a private row is printed by whoever watches the chat."""
    from langchain_core.tracers.stdout import ConsoleCallbackHandler

    rows = [{**row, "text": f"{row['text']} {CANARY}"} for row in replies(60)]
    model = chat(examples=rows)
    reply = model.invoke(question(), {"callbacks": [ConsoleCallbackHandler()]})
    shown = capsys.readouterr().out
    assert "Where is it?" in shown
    assert CANARY not in shown + repr(model) + repr(reply)
    assert repr(model).startswith("ChatDPGenerator(generator=DPAnswerGenerator(<private>, ")


# ------------------------------------------------------------------------------------------- LangChain's own suites


@pytest.fixture(scope="module")
def answers() -> DPAnswerGenerator:
    return generator(ledger=PrivacyLedger(BUDGET), max_queries=200, max_new_tokens=3)


class _Standard(TextsOnly):
    """What both suites are told about ChatDPGenerator."""

    @pytest.fixture(autouse=True)
    def _give_answers(self, answers: DPAnswerGenerator) -> None:
        self._answers = answers

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatDPGenerator

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"generator": self._answers}


class TestUnit(_Standard, ChatModelUnitTests):
    """The unit suite."""

    @pytest.mark.xfail(reason="a call cannot choose another model: traces name the one that writes", strict=True)
    def test_standard_params_model_override(self, model: BaseChatModel) -> None:
        """See ``supports_model_override``, which the suite does not ask here."""
        super().test_standard_params_model_override(model)


class TestIntegration(_Standard, ChatModelIntegrationTests):
    """The integration suite."""
