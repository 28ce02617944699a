"""Chat models that answer typed questions by what a text says, and conversations for them."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from langchain_dp.aggregate import Question

CHOICES = ("red", "green", "blue")


class ReadingChat(BaseChatModel):
    """Answers question number k by the k-th letter after "says" in the text: r, g, b, or x to fail."""

    keeps_no_prompts: ClassVar[bool] = True

    @property
    def _llm_type(self) -> str:
        return "reading"

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        prompt = str(messages[-1].content)
        number = int((re.search(r"color (\d+)", prompt) or ["", "0"])[1])
        said = re.search(r"says (\w+)", prompt)
        letter = said[1][number % len(said[1])] if said else "r"
        if letter == "x":
            raise ValueError(f"cannot read {prompt}")
        answers = {"r": "red", "g": "Green.", "b": "blue", "o": "purple", "t": "red or blue"}
        return ChatResult(generations=[ChatGeneration(message=AIMessage(answers[letter]))])


def colors(count: int = 2, **below: Any) -> list[Question]:
    """Questions about colors; the first may have finer choices."""
    return [
        Question(f"color {place}", CHOICES, below=below.get("below") if place == 0 else None) for place in range(count)
    ]
