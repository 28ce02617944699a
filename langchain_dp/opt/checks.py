"""Checks of the arguments, without text of a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from langchain_dp._util import validate
from langchain_dp.ensemble.engine_calls import LEAST, count_publicly
from langchain_dp.ensemble.questions import check_text
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt.settings import Settings
from langchain_dp.opt.templates import CUE, Demonstration, PromptAlternative
from langchain_dp.ports import LabelScorer, NextTokenVoter


def check_model(model: object, kbar: int = 0) -> None:
    """Require an engine that writes and scores, with more than kbar tokens."""
    validate.require_instance("model", model)
    if not (isinstance(model, NextTokenVoter) and isinstance(model, LabelScorer)):
        raise InvalidParameter(
            f"Expected model={type(model).__name__} to be a local engine that writes tokens and scores labels, such "
            "as LlamaCppEnsemble: the votes of hundreds of prompts are counted token by token."
        )
    if kbar >= model.vocabulary_size:
        raise InvalidParameter(
            f"Expected kbar={kbar} to be below the model's {model.vocabulary_size} tokens. Ten is plenty: lower it."
        )


def check_instruction(instruction: object) -> str:
    if not isinstance(instruction, str) or not instruction.strip():
        raise InvalidParameter(
            f"Expected instruction={instruction!r} to say what the task is. A plain sentence will do: it is public."
        )
    check_text("instruction", instruction)
    return instruction.strip()


_LIKE = 'an instruction (str), PromptAlternative("...", words={...}) and {"instruction": "...", "words": {...}}'


def alternatives(given: object) -> tuple[PromptAlternative, ...]:
    items = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, Mapping)) else None
    if items is None:
        raise InvalidParameter(f"Expected alternatives of type {type(given).__name__} to be a list, each of {_LIKE}.")
    prompts = []
    for place, item in enumerate(items):
        if isinstance(item, str):
            item = PromptAlternative(item)
        elif isinstance(item, Mapping) and item.keys() <= {"instruction", "words"}:
            item = PromptAlternative(**item)
        elif not isinstance(item, PromptAlternative):
            raise InvalidParameter(
                f"Expected alternatives[{place}] of type {type(item).__name__} to be one of {_LIKE}."
            )
        prompts.append(item)
    return tuple(prompts)


def check_room(model: NextTokenVoter, settings: Settings) -> None:
    """Require space in the context for each example's beginning."""
    if not settings.writes:
        return
    prompts = settings.prompts
    shortest = prompts.backward_body([Demonstration("a", "a", None)] * settings.shots)
    tails = [prompts.backward_tail(i, settings.instruction) for i in range(len(prompts.messages))]
    text = prompts.backward_head(settings.instruction) + shortest + max(tails, key=len) + CUE
    needed = count_publicly(model, text) + settings.shots * LEAST + settings.max_new_tokens
    if needed > model.max_prompt_tokens:
        raise InvalidParameter(
            f"Expected a prompt of one subset to fit into the model's {model.max_prompt_tokens} tokens, but with "
            f"shots={settings.shots} and max_new_tokens={settings.max_new_tokens} it needs more than {needed}, with "
            f"{LEAST} of each example. Give the engine more room (max_tokens=), or lower shots= or max_new_tokens=."
        )
