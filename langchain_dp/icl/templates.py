"""LangChain's prompt templates as an ICLPrompt."""

from __future__ import annotations

import re
import string
from typing import NoReturn

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotPromptTemplate,
    HumanMessagePromptTemplate,
    PromptTemplate,
    SystemMessagePromptTemplate,
)

from langchain_dp.errors import InvalidParameter
from langchain_dp.icl.prompts import ICLPrompt

_CUE = "Label:"
_REMEDY = "Write ICLPrompt(instruction=..., question='Review: {text}', answer='Sentiment:')."


def prompt_from(given: object) -> ICLPrompt:
    """Return the prompt that a template stands for.

    A text is read from its end. Its last line is the cue before the label, if it names no variable except a final
    ``{label}``; otherwise the cue is "Label:". The question stands before it. Paragraphs before the first one with a
    variable are the instruction. In a chat template the system message is the instruction, and the one human message is
    such a text. In a few-shot template the prefix is the instruction, and the suffix is such a text; its own examples
    are not used. InvalidParameter for a template in another format, or one that cannot be read so.
    """
    if isinstance(given, ICLPrompt):
        return given
    if isinstance(given, str):
        return _read(given)
    if isinstance(given, FewShotPromptTemplate):
        return _few_shot(given)
    if isinstance(given, PromptTemplate):
        return _read(_plain(given))
    if isinstance(given, ChatPromptTemplate):
        return _chat(given)
    return _refuse(f"of type {type(given).__name__} to be an ICLPrompt, a str or a template of LangChain's")


def _read(text: str, instruction: str = "") -> ICLPrompt:
    lines = [line.rstrip() for line in re.sub(r"[ \t]*\{label\}\s*$", "", text).strip().splitlines()]
    paragraphs = "\n".join(lines).split("\n\n")
    first = next((place for place, paragraph in enumerate(paragraphs) if _variables(paragraph)), None)
    if first is None:
        _refuse("to name a variable, such as {text}, where the question stands")
    head = [_literal(paragraph) for paragraph in paragraphs[:first]]
    question, _, cue = "\n\n".join(paragraphs[first:]).rpartition("\n")
    if not question or not cue.strip() or _variables(cue):
        question, cue = "\n\n".join(paragraphs[first:]), _CUE
    whole = "\n\n".join(filter(None, (instruction.strip(), *head)))
    return ICLPrompt(question=question.strip(), answer=_literal(cue).strip(), instruction=whole)


def _chat(given: ChatPromptTemplate) -> ICLPrompt:
    system, human = [], []
    if given.partial_variables:
        _refuse("to have no partial variables")
    for message in given.messages:
        if isinstance(message, SystemMessage):
            system.append(str(message.text))
        elif isinstance(message, SystemMessagePromptTemplate) and isinstance(message.prompt, PromptTemplate):
            system.append(_fixed(_plain(message.prompt), "the system message"))
        elif isinstance(message, HumanMessagePromptTemplate) and isinstance(message.prompt, PromptTemplate):
            human.append(_plain(message.prompt))
        elif isinstance(message, (SystemMessagePromptTemplate, HumanMessagePromptTemplate)):
            _refuse("to hold text alone, not a message of blocks, such as an image")
        elif isinstance(message, HumanMessage):
            _refuse("to ask by ('human', 'Review: {text}'): in a HumanMessage LangChain fills in no variable")
        else:
            _refuse(f"to hold system messages and one human message with the question, not {type(message).__name__}")
    if len(human) != 1:
        _refuse(f"to hold one human message with the question, not {len(human)}")
    return _read(human[0], "\n".join(system))


def _few_shot(given: FewShotPromptTemplate) -> ICLPrompt:
    if given.template_format != "f-string" or given.partial_variables or given.example_separator != "\n\n":
        _refuse("to be in f-string format, without partial variables, and with a blank line between its examples")
    read = _read(given.suffix, _fixed(given.prefix, "the prefix"))
    example = _plain(given.example_prompt).strip()
    asked = f"{read.question}\n{read.answer.replace('{', '{{').replace('}', '}}')}"
    label = example.removeprefix(asked).strip()
    if not example.startswith(asked) or label != "{" + label.strip("{}") + "}":
        _refuse("to have a suffix that is its example prompt, to the letter, without the label at the end")
    return read


def _plain(template: PromptTemplate) -> str:
    if template.template_format != "f-string" or template.partial_variables:
        _refuse("to be in f-string format, without partial variables")
    return str(template.template)


def _fixed(text: str, what: str) -> str:
    if _variables(text):
        _refuse(f"to name variables in the question alone, not in {what}")
    return _literal(text)


def _variables(text: str) -> list[str]:
    try:
        return [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
    except ValueError:
        _refuse("to hold every brace that stands for itself twice")


def _literal(text: str) -> str:
    return text.format()


def _refuse(why: str) -> NoReturn:
    raise InvalidParameter(f"Expected prompt {why}. {_REMEDY}")
