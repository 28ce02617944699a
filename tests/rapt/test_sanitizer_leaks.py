"""The sanitizer against every surface at once: what went in is seen by nobody that it did not have to be shown to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY, Reporting, leak_surfaces
from fakes.models import Chat
from fakes.rapt import CLOSE, refusing, sanitizer
from fakes.styles import STYLES, gathered, streamed
from langchain_core.documents import Document
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

from langchain_dp import private_run
from langchain_dp.errors import BudgetExceeded, InvalidParameter

TEXT = f"the patient {CANARY} has pain"
CALLS = STYLES | {
    "batch": lambda chain, given, config: chain.batch([given, given], config),
    "abatch": lambda chain, given, config: asyncio.run(chain.abatch([given, given], config)),
    "transform": lambda chain, given, config: list(chain.transform(iter([given, given]), config)),
    "atransform": lambda chain, given, config: asyncio.run(
        gathered(chain.atransform(streamed([given, given]), config))
    ),
}
INPUTS: dict[str, Any] = {
    "str": TEXT,
    "messages": [
        HumanMessage(TEXT, name=CANARY),
        AIMessage("", tool_calls=[{"name": "f", "args": {"q": TEXT}, "id": "c"}]),
        ToolMessage(TEXT, tool_call_id="c", artifact=CANARY),
    ],
    "prompt": ChatPromptTemplate.from_messages([("human", TEXT)]).invoke({}),
    "documents": [Document(page_content=TEXT, metadata={"a": CANARY})],
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("style", CALLS)
def test_no_callback_sees_what_came_and_no_error_holds_it(style: str, kind: str, tmp_path: Path) -> None:
    """If it breaks, the very step that removes private words hands them to a tracer, or a refusal quotes them."""
    empty = sanitizer(limit=CLOSE / 2)
    with leak_surfaces(tmp_path) as surfaces:
        released = CALLS[style](sanitizer(), INPUTS[kind], {"callbacks": surfaces.handlers})
        assert CANARY not in repr(released)
        assert {"tracer", "handler", "async_handler"} <= surfaces.where("RAPTSanitizer"), "the run itself must be seen"
        assert "withheld" in surfaces.by_name()["handler"]
        for made, error in ((empty, BudgetExceeded), (refusing(CANARY), InvalidParameter)):
            reporter = Reporting()
            with pytest.raises(error) as caught:
                CALLS[style](made, INPUTS[kind], {"callbacks": [reporter, *surfaces.handlers]})
            assert reporter.kept
            assert not [kept for kept in reporter.kept if CANARY in kept]
            assert caught.value.args
        outcomes = empty.batch([INPUTS[kind]] * 2, {"callbacks": [reporter]}, return_exceptions=True)
        assert [type(one) for one in outcomes] == [BudgetExceeded] * 2
        assert not [kept for kept in reporter.kept if CANARY in kept]
        assert surfaces.where(CANARY) == set()


@pytest.mark.parametrize("style", CALLS)
def test_the_root_run_of_a_chain_needs_a_private_run(style: str, tmp_path: Path) -> None:
    """If it breaks, either the documented remedy does not work, or the documented limit is no longer one."""
    for inside in (False, True):
        with leak_surfaces(tmp_path) as surfaces:
            chain, config = sanitizer() | Chat(), {"callbacks": surfaces.handlers}
            if inside:
                with private_run():
                    CALLS[style](chain, TEXT, config)
            else:
                CALLS[style](chain, TEXT, config)
            seen = surfaces.where(CANARY)
            assert seen == set() if inside else {"tracer", "handler", "async_handler"} <= seen
            # The root run is the only one that ever held it: model and cache have seen sanitized text.
            assert "cache" not in seen


def test_the_reporter_can_see_a_frame() -> None:
    """If it breaks, the tests above could not fail."""

    def work(text: str) -> None:
        raise ValueError(len(text))

    reporter = Reporting()
    with pytest.raises(ValueError, match=str(len(TEXT))):
        RunnableLambda(work).invoke(TEXT, {"callbacks": [reporter]})
    assert [kept for kept in reporter.kept if CANARY in kept]


def test_nothing_raw_is_kept_in_what_can_be_printed() -> None:
    """If it breaks, a repr or a dump of the sanitizer carries a text that passed through it."""
    made = sanitizer()
    made.invoke(TEXT, user=CANARY, document=CANARY)
    assert CANARY not in repr(made) + str(made.ledger) + repr(list(made.ledger.entries())) + dumps(made)
    assert CANARY not in repr(vars(made))
