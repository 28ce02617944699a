"""The page on a support agent, run with the embedded model: a canary in every private place shows nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.canary import CANARY, leak_surfaces
from fakes.tool_callers import ToolCaller
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langchain_dp import sample
from langchain_dp.audit.report.page import page

for extra in ("langchain", "langchain_openai", "langgraph", "llama_cpp"):
    pytest.importorskip(extra, reason=f"needs {extra}")

PAGE = Path(__file__).parents[2] / "docs" / "support-agent.md"
NAME = f"Ann {CANARY}"


class Cloud(ToolCaller):
    """Sorts the ticket by the tool, then answers whom it was told of with the label that it was told."""

    shown: ClassVar[list[list[BaseMessage]]] = []
    model: str = ""

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        self.shown.append(messages)
        last = messages[-1]
        if isinstance(last, ToolMessage):
            return AIMessage(f"Dear <PERSON_1>, thank you for your {last.content}.")
        return AIMessage("", tool_calls=[{"name": "sort_ticket", "args": {"text": str(last.content)}, "id": "1"}])


def code() -> str:
    """The page's one block."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return str(block)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, handlers: list[Any], **changes: str) -> dict[str, Any]:
    """Run the block with canaries: in every ticket, in the name, in what the tool inside is given."""
    monkeypatch.chdir(folder)
    Cloud.shown.clear()
    rows = [{**row, "text": f"{row['text']} {CANARY}"} for row in sample.load()[0][:80]]
    monkeypatch.setattr("langchain_dp.sample.load", lambda: (rows, []))
    monkeypatch.setattr("langchain_openai.ChatOpenAI", Cloud)
    block = (
        code()
        .replace("Ann Smith", NAME)
        .replace("count=4", "count=2")
        .replace("config = {", 'config = {"callbacks": HANDLERS, ')
    )
    for old, new in changes.items():
        assert SWAPS[old] in block
        block = block.replace(SWAPS[old], new)
    names: dict[str, Any] = {"HANDLERS": handlers}
    exec(compile(block, PAGE.name, "exec"), names)
    return names


SWAPS = {"around": "pseudonyms.around(\n", "term": f'terms={{"{NAME}": "PERSON"}}'}


def test_the_block_is_short() -> None:
    """If it breaks, the example is no longer one that a user reads at a glance."""
    assert len(code().splitlines()) < 60


def test_a_canary_in_every_private_place_shows_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a ticket or a name is in a trace, a log, a checkpoint, or at the provider."""
    with leak_surfaces(tmp_path) as surfaces:
        names = run(tmp_path, monkeypatch, surfaces.handlers)
        printed = surfaces.by_name().pop("streams")
        seen = {name: text for name, text in surfaces.by_name().items() if name != "streams"}
    answer = names["state"]["messages"][-1].content
    assert re.fullmatch(rf"Dear {NAME}, thank you for your (praise|complaint)\.", answer)
    assert printed.count(CANARY) == printed.splitlines().count(answer) == 1  # what the user is told, and nothing else
    assert {name for name, text in seen.items() if CANARY in text} == set()
    assert CANARY not in repr([list(names["memory"].list(None)), names["memory"].storage, names["memory"].blobs])
    assert len(Cloud.shown) == 2
    assert CANARY not in repr(Cloud.shown)
    assert "<PERSON_1>" in repr(Cloud.shown)
    assert "<PERSON_1>" in seen["handler"]  # the surfaces do see the run
    assert [line.split(":")[0] for line in printed.splitlines()[-2:]] == ["synthesis", "dp-icl"]
    assert "1 EMAIL, 1 PERSON hidden, not private" in printed
    assert "1 EMAIL, 1 PERSON" in page(names["shown"])
    assert CANARY not in page(names["shown"])
    written = b"".join(path.read_bytes() for path in tmp_path.glob("support.ledger*"))
    assert CANARY.encode() not in written


def test_a_leak_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, the test above could not fail: without the wrapper and the term the name shows everywhere."""
    with leak_surfaces(tmp_path) as surfaces:
        names = run(tmp_path, monkeypatch, surfaces.handlers, around="(\n", term="terms={}")
        seen = surfaces.by_name()
    assert CANARY in seen["handler"]
    assert CANARY in repr([list(names["memory"].list(None)), names["memory"].storage, names["memory"].blobs])
    assert CANARY in repr(Cloud.shown)
