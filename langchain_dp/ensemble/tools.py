"""A private chain as an agent's tool, and the end of its budget."""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NoReturn, get_args

from dp_accounting.dp_event import DpEvent
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import BaseModel, Field, create_model

from langchain_dp._util import forks, validate
from langchain_dp._util.callers import warn_caller
from langchain_dp.accounting import LedgerPlan
from langchain_dp.ensemble.questions import user_of
from langchain_dp.errors import BudgetExceeded, BudgetLowWarning, InvalidParameter, PrivateDataError, QuotaExceeded

ExitBehavior = Literal["error", "end", "continue"]

_SOFT = 0.8
_FEW = 10  # smaller plans get no warning


class BudgetMonitor:
    """Warns once when 80% of a plan or quota is used."""

    def __init__(self, plan: LedgerPlan, event: DpEvent, most: int) -> None:
        self._plan, self._event, self._most = plan, event, most
        self._lock = threading.Lock()
        forks.renew_lock(self)
        # By user, None for the plan. The value None ends the checks.
        self._charges_to_look: dict[str | None, int | None] = {}

    def answers(self, user_id: str | None = None) -> int:
        return self._plan.remaining(self._event, user_id=user_id)

    def warn_if_low(self, user_id: str | None = None) -> None:
        """Call this before every charge."""
        watched: list[tuple[str | None, int, str]] = [(None, self._most, "")]
        if user_id is not None and (quotas := self._plan.quotas) is not None:
            watched.append((user_id, quotas.of(user_id) or 0, "this user's share of "))
        for user, most, of in watched:
            with self._lock:
                charges = self._charges_to_look.get(user, 0 if most >= _FEW else None)
                self._charges_to_look[user] = None if charges is None else charges - 1
                if charges is None or charges > 0:
                    continue
                left = self.answers(user)
                low = left <= (1 - _SOFT) * most + 1e-9
                # The ledger may be remote: it is asked after every hundredth part of the plan.
                self._charges_to_look[user] = None if low else most // 100
            if low:
                warn_caller(
                    f"{left:,} of {most:,} answers are left in {of}the plan {self._plan.name!r}. The budget of these "
                    "examples is not refilled: plan for later records.",
                    BudgetLowWarning,
                )


class _PrivateTool(StructuredTool):
    """A tool of a private chain, which cannot be pickled."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError(
            "A tool of a private chain holds the chain and its records, and cannot be pickled. Build it where it "
            "is used."
        )


def private_tool(
    ask: Callable[[dict[str, Any], RunnableConfig | None], str],
    aask: Callable[[dict[str, Any], RunnableConfig | None], Awaitable[str]],
    *,
    plan: LedgerPlan,
    variables: Sequence[str],
    name: str,
    description: str,
    exit_behavior: ExitBehavior,
    args_schema: type[BaseModel] | None = None,
) -> BaseTool:
    """Refused questions become messages. A config without a user raises."""
    validate.one_of("exit_behavior", exit_behavior, get_args(ExitBehavior))
    for given, value in (("name", name), ("description", description)):
        if not isinstance(value, str) or not value.strip():
            raise InvalidParameter(f"Expected {given} of the tool to be a non-empty str.")
    if taken := sorted({"config", "run_manager", "self"}.intersection(variables)):
        raise InvalidParameter(f"Expected no variable {taken}: a tool gets LangChain's own. Rename it in the template.")
    if args_schema is None:
        fields: dict[str, Any] = {one: (str, Field(description=f"the {one} to be answered")) for one in variables}
        args_schema = create_model("Question", **fields)
    elif not isinstance(args_schema, type) or not issubclass(args_schema, BaseModel):
        raise InvalidParameter("Expected args_schema to be a pydantic model, a class.")
    elif missing := [one for one in variables if one not in args_schema.model_fields]:
        raise InvalidParameter(f"Expected args_schema to have the fields {list(variables)}; missing: {missing}.")

    # An agent can end only if built with a tool that returns directly, and checks the tool after each call. So every
    # call sets it.
    def answered(text: str) -> str:
        tool.return_direct = False
        return text

    def misread(error: Any) -> str:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        return answered(f"No answer: Expected other arguments. {faults}. Nothing was spent.")

    def refused(error: BudgetExceeded | InvalidParameter) -> ToolException:
        if isinstance(error, InvalidParameter):
            return ToolException(answered(f"No answer: {error}"))
        if exit_behavior == "error":
            raise error
        what = "this user's share of the privacy budget of this tool"
        if not isinstance(error, QuotaExceeded):
            what = "the privacy budget of this tool"
        tool.return_direct = exit_behavior == "end"
        return ToolException(
            f"No answer: {what} is used up, and it is not refilled. Do not call it again. Go on without it, and say "
            "that it could not answer."
        )

    # Errors are raised outside of the handler, so that a tracer sees no chain of frames. A caller's tool.invoke("text")
    # comes as an argument without a name.
    def call(*texts: str, config: RunnableConfig, **arguments: Any) -> str:
        user_of(plan, config)
        try:
            return answered(ask({**dict(zip(variables, texts, strict=False)), **arguments}, config))
        except (BudgetExceeded, InvalidParameter) as error:
            stop = refused(error)
        raise stop

    async def acall(*texts: str, config: RunnableConfig, **arguments: Any) -> str:
        user_of(plan, config)
        try:
            return answered(await aask({**dict(zip(variables, texts, strict=False)), **arguments}, config))
        except (BudgetExceeded, InvalidParameter) as error:
            stop = refused(error)
        raise stop

    tool = _PrivateTool.from_function(
        func=call,
        coroutine=acall,
        name=re.sub(r"[^\w-]", "_", name, flags=re.ASCII),
        description=description,
        args_schema=args_schema,
        infer_schema=False,
        return_direct=exit_behavior == "end",
        handle_tool_error=True,
        handle_validation_error=misread,
    )
    return tool
