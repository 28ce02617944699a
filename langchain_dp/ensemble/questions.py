"""Questions in LangChain's forms, and their users."""

from __future__ import annotations

import contextlib
import string
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages, get_buffer_string
from langchain_core.prompt_values import PromptValue, StringPromptValue
from langchain_core.runnables import ConfigurableFieldSpec, RunnableConfig

from langchain_dp.accounting import LedgerPlan
from langchain_dp.errors import InvalidParameter
from langchain_dp.isolation.calls import in_own_thread
from langchain_dp.records import TEXT_OR_NUMBER, encodable, is_missing
from langchain_dp.records.files import fields_of

HISTORY = "history"

USER_ID = "user_id"

Question = str | Mapping[str, Any] | BaseMessage | Sequence[Any] | PromptValue | Document
"""A string, mapping of variables, message, messages, graph state, prompt value or document.

The last human message is the question. Objects with named fields count as mappings.
"""


def variables_of(template: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for _, name, _, _ in string.Formatter().parse(template) if name is not None))


def check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidParameter(f"Expected {name} of type {type(text).__name__} to be a str.")
    if not encodable(text):
        raise InvalidParameter(f"Expected {name} to be valid Unicode, but it has a lone surrogate. Take it out.")


def check_template(name: str, template: object, *, known: Collection[str] | None = None) -> None:
    """``known`` lists the allowed variables. None requires one."""
    check_text(name, template)
    template = str(template)
    try:
        variables = variables_of(template)
        template.format_map(dict.fromkeys(variables, "a"))
    except (LookupError, ValueError, TypeError, AttributeError):
        raise InvalidParameter(
            f"Expected {name}={template!r} to hold plain variables such as {{text}}: every value is a text, numbers "
            "too. Format them in the examples, and write every brace that stands for itself twice."
        ) from None
    if known is None and not variables:
        raise InvalidParameter(f"Expected {name}={template!r} to hold a variable, such as 'Review: {{text}}' has one.")
    if known is not None and not set(variables) <= set(known):
        raise InvalidParameter(f"Expected {name}={template!r} to hold no variable but {list(known)}. Drop the others.")


def question_fields(question: object, variables: Sequence[str], *, text_key: str = "text") -> dict[str, Any]:
    """A plain text fills ``text``, or else the first variable except ``history``."""
    main = "text" if "text" in variables else next((name for name in variables if name != HISTORY), variables[0])
    past = {HISTORY: ""} if HISTORY in variables and main != HISTORY else {}
    if isinstance(question, StringPromptValue):
        question = question.text
    elif isinstance(question, PromptValue):
        question = question.to_messages()
    elif not isinstance(question, (str, BaseMessage, Document)):
        fields = fields_of(question)
        question = question if fields is None else fields
    beside: dict[str, Any] = {}
    if isinstance(question, Mapping):
        if "messages" not in question or "messages" in variables or main in question or text_key in question:
            named = {"text": question[text_key]} if text_key in question else {}  # as PrivateRecords has it
            fields = {**past, **question, **named}
            if gone := [name for name in variables if name in fields and is_missing(fields[name])]:
                raise InvalidParameter(
                    f"Expected {gone} of the question to be text, but it is missing. Fill it in. Nothing was spent."
                )
            return fields
        beside = {name: value for name, value in question.items() if name != "messages"}
        question = question["messages"]
    if isinstance(question, str):
        return {**past, main: question}
    if isinstance(question, BaseMessage):
        return {**past, main: _text_of(question)}
    if isinstance(question, Document):
        return {**past, **question.metadata, main: question.page_content}
    earlier, last = _last_human(_messages(question))
    return {**beside, **({HISTORY: get_buffer_string(earlier)} if past else {}), main: _text_of(last)}


def question_texts(question: object, variables: Sequence[str], *, text_key: str = "text") -> dict[str, str]:
    fields = question_fields(question, variables, text_key=text_key)
    if missing := [name for name in variables if name not in fields]:
        alone = "a str or " if len([name for name in variables if name != HISTORY]) == 1 else ""
        raise InvalidParameter(
            f"Expected the question to be {alone}a mapping with {list(variables)}; missing: {missing}. Nothing was "
            "spent."
        )
    if odd := [name for name in variables if not isinstance(fields[name], TEXT_OR_NUMBER)]:
        raise InvalidParameter(f"Expected the question's {odd} to be text or numbers. Convert them. Nothing was spent.")
    texts = {name: str(fields[name]).strip() for name in variables}
    if not any(text for name, text in texts.items() if name != HISTORY):
        raise InvalidParameter("Expected the question to be a non-empty text, but it is blank. Nothing was spent.")
    if not all(encodable(text) for text in texts.values()):
        raise InvalidParameter("Expected the question to be valid Unicode: it has a lone surrogate. Nothing was spent.")
    return texts


def _text_of(message: BaseMessage) -> str:
    """Refuse an image instead of ignoring it."""
    blocks = message.content if isinstance(message.content, list) else []
    if any(not isinstance(block, str) and block.get("type") != "text" for block in blocks):
        raise InvalidParameter(
            "Expected the question to be text alone, but its message holds a block of another kind, such as an image. "
            "Say in words what it shows. Nothing was spent."
        )
    return str(message.text)


def user_of(plan: LedgerPlan, config: RunnableConfig | None) -> str | None:
    if plan.quotas is None:
        return None
    account = plan.account_of(((config or {}).get("configurable") or {}).get(USER_ID))
    return None if account is None else account[0]


def user_specs(plan: LedgerPlan) -> list[ConfigurableFieldSpec]:
    if plan.quotas is None:
        return []
    return [ConfigurableFieldSpec(id=USER_ID, annotation=str, name="User", description="The user whose quota is used.")]


def as_messages(given: Sequence[Any]) -> list[BaseMessage] | None:
    """Return None on failure: LangChain's error may quote the text."""
    with contextlib.suppress(Exception):
        return convert_to_messages(list(given))
    return None


def _messages(given: object) -> list[BaseMessage]:
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        raise InvalidParameter(
            f"Expected the question to be a str or a mapping, not {type(given).__name__}; or a message, a list of "
            "messages, a prompt value or a document. Nothing was spent."
        )
    if any(isinstance(one, str) for one in given):
        raise InvalidParameter(
            "Expected the question to be one str or a list of messages, not a list with str. Ask many questions by "
            "batch(). Nothing was spent."
        )
    messages = as_messages(given)
    if messages is None:
        raise InvalidParameter(
            f"Expected the question of type {type(given).__name__} to hold messages alone. Nothing was spent."
        )
    return messages


def _last_human(messages: Sequence[BaseMessage]) -> tuple[list[BaseMessage], BaseMessage]:
    for place in range(len(messages) - 1, -1, -1):
        if isinstance(messages[place], HumanMessage):
            return list(messages[:place]), messages[place]
    raise InvalidParameter("Expected a human message with the question, but found none. Add HumanMessage(question).")


class ChecksBatches:
    """Checks all questions of a batch before the first charge."""

    def batch(self, inputs: list[Any], *args: Any, return_exceptions: bool = False, **kwargs: Any) -> list[Any]:
        questions = self._looked_at(inputs, return_exceptions)
        return super().batch(questions, *args, return_exceptions=return_exceptions, **kwargs)  # type: ignore[misc, no-any-return]  # of the Runnable beside it

    async def abatch(self, inputs: list[Any], *args: Any, return_exceptions: bool = False, **kwargs: Any) -> list[Any]:
        questions = await in_own_thread(self._looked_at, inputs, return_exceptions)
        return await super().abatch(questions, *args, return_exceptions=return_exceptions, **kwargs)  # type: ignore[misc, no-any-return]

    def batch_as_completed(
        self, inputs: Sequence[Any], *args: Any, return_exceptions: bool = False, **kwargs: Any
    ) -> Iterator[Any]:
        questions = self._looked_at(inputs, return_exceptions)
        return super().batch_as_completed(questions, *args, return_exceptions=return_exceptions, **kwargs)  # type: ignore[misc, no-any-return]

    def abatch_as_completed(
        self, inputs: Sequence[Any], *args: Any, return_exceptions: bool = False, **kwargs: Any
    ) -> AsyncIterator[Any]:
        questions = self._looked_at(inputs, return_exceptions)
        return super().abatch_as_completed(questions, *args, return_exceptions=return_exceptions, **kwargs)  # type: ignore[misc, no-any-return]

    def _looked_at(self, inputs: object, return_exceptions: bool) -> list[Any]:
        if isinstance(inputs, (str, bytes, Mapping, BaseMessage)) or not isinstance(inputs, Iterable):
            raise InvalidParameter(
                f"Expected a list of questions, not {type(inputs).__name__}. Ask a single one by invoke(). Nothing was "
                "spent."
            )
        questions = list(inputs)
        for place, question in enumerate(questions if not return_exceptions else ()):
            try:
                self._checked_question(question)
            except InvalidParameter as refused:
                raise InvalidParameter(f"Question {place} of a batch: {refused}") from None
        return questions

    def _checked_question(self, question: Any) -> str:
        raise NotImplementedError
