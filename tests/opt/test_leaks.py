"""The optimizer against every surface at once: its examples are seen by the local model and by nobody else."""

from __future__ import annotations

import copy
import gc
import io
import logging
import pickle
import types
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from fakes.asking import STYLES
from fakes.canary import CANARY, Reporting, leak_surfaces
from fakes.models import Chat
from fakes.next_token import WordEngine, agreeing
from fakes.optimizers import (
    SENTENCE,
    Broken,
    Looking,
    examples,
    ledger_in,
    optimizer,
)
from fakes.stops import press_ctrl_c
from langchain_core.globals import set_debug
from langchain_core.load import dumps
from langchain_core.runnables import RunnableLambda

from langchain_dp import PrivateRecords, private_run
from langchain_dp.errors import BudgetExceeded, InvalidParameter, ModelUnavailable, PlanError, UnsafeEnvironment
from langchain_dp.opt import DPPromptOptimizer, optimize_with_dln1, optimize_with_opt
from langchain_dp.opt.journal import Journal
from langchain_dp.redact import without_frames


class Talkative(WordEngine):
    """Does what a client of a server would do: logs and warns of its prompts, and asks a LangChain model about them.

    A global cache is beyond the package's reach: an engine that asks LangChain models must switch theirs off.
    """

    def __init__(self, *, failing: bool = False, caching: bool = False) -> None:
        super().__init__(agreeing(SENTENCE))
        self._caching = caching
        self._failing = failing

    def _tell(self, body: str) -> None:
        logging.getLogger("openai._base_client").debug("Request options: %s", {"json_data": body})
        warnings.warn(f"Odd prompt: {body}", stacklevel=1)
        Chat(cache=None if self._caching else False).invoke(body)
        if self._failing and CANARY in body:
            raise Broken(body)

    def next_tokens(self, asked: Any, decoding: Any) -> Any:
        for one in asked[:2]:
            self._tell(one.prompt.body)
        return super().next_tokens(asked, decoding)

    def score_labels(self, prompts: Any, words: Any, **options: Any) -> Any:
        self._tell(prompts[0].body)
        return super().score_labels(prompts, words, **options)


ENGINES: dict[str, Callable[[], WordEngine]] = {
    "plain": lambda: WordEngine(agreeing(SENTENCE)),
    "talkative": Talkative,
    "failing": lambda: Talkative(failing=True),
}


@pytest.mark.parametrize(
    ("style", "engine"), [*((style, "plain") for style in STYLES), ("invoke", "talkative"), ("ainvoke", "failing")]
)
def test_no_example_is_seen_anywhere(style: str, engine: str, tmp_path: Path) -> None:
    """If it breaks, examples reach a tracer, a handler, a cache, a log, a warning or a terminal."""
    with leak_surfaces(tmp_path) as surfaces:
        made = optimizer(ENGINES[engine](), progress=True)
        released = STYLES[style](made, examples(), surfaces.config)
        assert surfaces.where(CANARY) == set()
        assert surfaces.where("<private examples>") >= {"tracer", "handler"}, "the run itself must be seen"
        # LangChain gives the input back to the caller of astream_events himself
        assert style == "astream_events" or CANARY not in repr(released)


@pytest.mark.parametrize("baseline", [optimize_with_opt, optimize_with_dln1])
def test_the_baselines_print_no_example(baseline: Any, tmp_path: Path) -> None:
    """If it breaks, a method that promises nothing also prints the examples into logs and traces."""
    with leak_surfaces(tmp_path) as surfaces:
        baseline(optimizer(Talkative()), examples())
        assert surfaces.where(CANARY) == set()


@pytest.mark.parametrize("style", STYLES)
def test_no_example_is_seen_through_a_chain_over_private_records(style: str, tmp_path: Path) -> None:
    """If it breaks, `optimizer | chain` hands the examples to the callbacks of the whole, or prints their number."""
    with leak_surfaces(tmp_path) as surfaces:
        chain = optimizer(progress=True) | RunnableLambda(lambda prompt: prompt.format(text="x"))
        released = STYLES[style](chain, PrivateRecords(examples()), surfaces.config)
        assert surfaces.where(CANARY) == set()
        assert CANARY not in repr(released)
        assert "PrivateRecords(<private>)" in surfaces.everything()


def test_a_chain_over_plain_examples_needs_private_run(tmp_path: Path) -> None:
    """If it breaks, the warning in the docstring is wrong, one way or the other."""
    rows = examples()
    with leak_surfaces(tmp_path) as surfaces:
        chain = optimizer() | RunnableLambda(lambda prompt: "done")
        chain.invoke(rows, surfaces.config)  # what the docstring warns of
        assert {"tracer", "handler"} <= surfaces.where(CANARY)
    with leak_surfaces(tmp_path) as surfaces, private_run():
        chain = optimizer() | RunnableLambda(lambda prompt: "done")
        assert chain.invoke(rows, surfaces.config) == "done"
        assert surfaces.where(CANARY) == set()


def test_the_canary_can_be_seen(tmp_path: Path) -> None:
    """If it breaks, the tests above could not fail: outside of a run the same engine tells everybody."""
    with leak_surfaces(tmp_path) as surfaces:
        Talkative(caching=True)._tell(CANARY)
        assert {"tracer", "cache", "log", "warnings"} <= surfaces.where(CANARY)


def test_debug_mode_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    """If it breaks, set_debug(True) prints prompts while a run pays for them."""
    engine, out = Looking(), io.StringIO()
    with ledger_in(tmp_path) as ledger:
        made = optimizer(engine, ledger=ledger)
        set_debug(True)
        try:
            with redirect_stdout(out), pytest.raises(UnsafeEnvironment, match="set_debug"):
                made.invoke(examples())
        finally:
            set_debug(False)
        assert ledger.plans() == []
    assert engine.shown == []
    assert CANARY not in out.getvalue()


class Interrupting(WordEngine):
    def next_tokens(self, asked: Any, decoding: Any) -> Any:
        body = asked[0].prompt.body
        if CANARY in body:
            press_ctrl_c()
        return super().next_tokens(asked, decoding)


@pytest.mark.parametrize("what", ["interrupt", "bad row", "too few", "refused"])
def test_errors_hold_no_example(what: str, tmp_path: Path) -> None:
    """If it breaks, an error handler, a tracer or a chained exception carries private text out."""
    rows, engine, changes = examples(), WordEngine(agreeing(SENTENCE)), {}
    if what == "interrupt":
        engine = Interrupting(agreeing(SENTENCE))
    elif what == "bad row":
        rows.append({"text": CANARY, "label": CANARY})
    elif what == "too few":
        changes = {"partitions": None, "sampling_probability": None, "subsets": 99}
    else:
        changes = {"epsilon0": 0.001}
    with leak_surfaces(tmp_path) as surfaces:
        made = optimizer(engine, **changes)
        with pytest.raises((InvalidParameter, KeyboardInterrupt)) as caught:
            made.invoke(rows, surfaces.config)
        assert surfaces.where(CANARY) == set()
        if what == "bad row":
            assert surfaces.where("example 40") == set(), "what is wrong with an example is no callback's business"
    link: BaseException | None = caught.value
    while link is not None:
        assert CANARY not in repr(link)
        link = link.__cause__ or link.__context__


def test_nothing_private_is_serialized_or_printed(tmp_path: Path) -> None:
    """If it breaks, a pickle, a copy, a dump or a repr carries examples out of the process."""
    made = optimizer()
    prompt = made.optimize(examples())
    prompt.save(tmp_path / "prompt.json")
    held: list[Any] = [made, made | RunnableLambda(str), prompt, prompt.template(), made.certificate(), made._private]
    for one in held:
        assert CANARY not in repr(one) + str(one) + dumps(one)
    for text in (vars(made._private), made.released(), made.settings, (tmp_path / "prompt.json").read_text()):
        assert CANARY not in str(text)
    for carry in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            carry(made)


def test_nothing_of_a_record_stays_in_the_optimizer_after_a_run() -> None:
    """If it breaks, a long-lived optimizer keeps the examples in memory, where a dump finds them."""
    made = optimizer(Looking())
    rows = PrivateRecords(examples())
    made.invoke(rows)
    assert not held_by(made, PrivateRecords)
    made.invoke = lambda: rows  # type: ignore[method-assign, assignment]  # planted
    assert held_by(made, PrivateRecords)


def held_by(root: object, kind: type) -> list[object]:
    """Objects of a kind that the garbage collector finds behind ``root``, modules and classes apart."""
    found, seen, todo = [], {id(root)}, [root]
    while todo:
        for each in gc.get_referents(todo.pop()):
            if id(each) not in seen and not isinstance(each, (type, types.ModuleType, types.FrameType)):
                seen.add(id(each))
                if isinstance(each, kind):
                    found.append(each)
                if not (isinstance(each, dict) and "__builtins__" in each):  # the globals of a module
                    todo.append(each)
    return found


def test_it_is_a_runnable_like_any_other() -> None:
    """If it breaks, drawing the graph of a chain, or asking for its schema, raises."""
    made: DPPromptOptimizer = optimizer(name="writer")
    chain = made | RunnableLambda(lambda prompt: "done")
    assert len(chain.get_graph().nodes) == 4
    assert made.get_name() == "writer"
    assert made.get_input_schema() is not None
    assert made.with_retry().invoke(examples()) == made.invoke(examples())


def test_an_error_reporter_sees_no_record_and_no_key(tmp_path: Path) -> None:
    """If it breaks, what serializes the frames of an error sends records, or the key that lets guesses be tested."""
    rows = [{**row, "text": f"{row['text']} {CANARY}"} for row in examples()]
    with ledger_in(tmp_path) as ledger:
        reporter = Reporting()
        with pytest.raises(KeyboardInterrupt):
            optimizer(Looking(lambda bodies: press_ctrl_c()), ledger=ledger).invoke(rows, {"callbacks": [reporter]})
        with pytest.raises(PlanError, match="other examples"):
            optimizer(ledger=ledger).invoke(examples(31), {"callbacks": [reporter]})
        plan = ledger.plan("dp-opt")
        assert plan is not None
        run = Journal.load(ledger, plan)
        assert run is not None
        keys = (run.key, bytes.fromhex((tmp_path / "ledger.db.key").read_text().split()[1]))
    assert len(reporter.kept) > 4
    secrets = (CANARY, *map(repr, keys), *(key.hex() for key in keys))
    assert not [kept for kept in reporter.kept for secret in secrets if secret in kept]


def test_errors_keep_what_they_say_without_their_frames() -> None:
    """If it breaks, who catches BudgetExceeded of a run does not learn what would still fit."""
    made = BudgetExceeded("too much", asked="a", spent=(1.0, 0.0), budget=(2.0, 0.0), fits=3)
    found = without_frames(made, "here")
    assert (type(found), str(found), vars(found)) == (BudgetExceeded, "too much", vars(made))
    assert found.__traceback__ is None
    assert without_frames(PermissionError(13, "no", "file"), "here").__class__ is PermissionError
    assert str(without_frames(ValueError(CANARY), "here")) == "ValueError here, text withheld."


@pytest.mark.parametrize("fails", [False, True])
def test_a_plan_counts_tokens_of_records_unseen(fails: bool, tmp_path: Path) -> None:
    """If it breaks, what an engine logs, or raises, while it counts the tokens of an example leaves with its text."""

    class Telling(WordEngine):
        def count_tokens(self, text: str) -> int:
            logging.getLogger("client").error("POST /tokenize %s", text)
            if fails and CANARY in text:
                raise ValueError(text)
            return super().count_tokens(text)

    rows = [{**row, "text": f"{row['text']} {CANARY}"} for row in examples()]
    with leak_surfaces(tmp_path) as surfaces:
        made = optimizer(Telling(agreeing("Read it.")))
        if fails:
            with pytest.raises(ModelUnavailable, match="failed to count tokens") as caught:
                made.plan(rows)
            assert caught.value.__context__ is None
        else:
            assert made.plan(rows).subset_tokens > 0
        assert surfaces.where(CANARY) == set()
        logging.getLogger("client").error(CANARY)
        assert "log" in surfaces.where(CANARY)
