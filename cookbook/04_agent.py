# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 4. An agent behind RAPTMiddleware
#
# **Who is kept from what.** The provider of an agent's model must not be certain of any word that a patient writes, or
# that the clinic's own tools answer. Every word is drawn anew, and many come out unchanged. The tools and the patient
# are on this side and work with the raw text.
#
# Runs on this machine alone. **The model is scripted**: it calls the tool once, with what it finds in the text that it
# was told, and then answers. A model small enough for this notebook calls tools by luck. What is shown, the text
# that leaves, does not depend on the model. In your application a chat model such as `ChatOpenAI` takes its place.

# %%
import dataclasses
import os
import re
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from pydantic import Field

from langchain_dp import BudgetExceeded, RAPTMiddleware, RAPTSanitizer, private_run
from langchain_dp.accounting import MetricLedger
from langchain_dp.rapt import Policies, load
from langchain_dp.sample import load as load_sample

FULL = os.environ.get("COOKBOOK") == "full"


class Provider(BaseChatModel):
    """The provider's side: it keeps what it is told, and follows a script."""

    told: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> BaseChatModel:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        self.told.append(messages)
        last = str(messages[-1].content)
        if isinstance(messages[-1], HumanMessage) and "booking" not in [call["name"] for call in calls_of(messages)]:
            number = next(iter(re.findall(r"\d+", last)), "unknown")
            call = {"name": "booking", "args": {"number": number, "reason": last[-30:]}, "id": "call-1"}
            answer = AIMessage("", tool_calls=[call])
        else:
            answer = AIMessage("I have noted this: " + " ".join(last.split()[:6]) + " ...")
        return ChatResult(generations=[ChatGeneration(message=answer)])


def calls_of(messages: list[BaseMessage]) -> list[Any]:
    """All tool calls in a history."""
    return [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]


BOOKINGS = {"4711": "Anna Weber, dermatology, Dr Petrov. She has had a rash since Friday and fears it is shingles."}


@tool
def booking(number: str, reason: str) -> str:
    """Look up a booking by its number."""
    return BOOKINGS.get(number, "There is no such booking.")


def show(messages: list[BaseMessage]) -> None:
    """One line a message, with tool calls."""
    for message in messages:
        calls = "".join(f"-> {call['name']}({call['args']})" for call in getattr(message, "tool_calls", []))
        print(f"{message.type:6} {message.text}{calls}")


QUESTION = HumanMessage("Booking 4711: my daughter Anna has a rash and cannot come on Monday, is there another day?")
LATER = HumanMessage("She is 9 and takes prednisone. Write to weber@example.org or look at https://example.org/anna")

# %% [markdown]
# ## Without the middleware
#
# Two turns. Before every answer the provider is told everything anew: the questions, the arguments of the tool calls,
# the record that the tool read.

# %%
bare = Provider()
agent = create_agent(bare, [booking], system_prompt="You help at the desk of a clinic.")
state = agent.invoke({"messages": [QUESTION]})
state = agent.invoke({"messages": [*state["messages"], LATER]})
print(len(bare.told), "calls; in the last one the provider was told:")
show(bare.told[-1])

# %% [markdown]
# ## With the middleware
#
# How noisy? Every word is drawn anew from a public vocabulary, and `target_replacement` says how often it comes out as
# another one. The calibration gives the eta for it, and what an attacker who knows the language still guesses.

# %%
vocabulary = load("glove")
calibration = RAPTSanitizer(vocabulary, target_replacement=0.5).calibration()
print(calibration)

# %% [markdown]
# What that does to messages, measured on the sample's:


# %%
def words(text: str) -> set[str]:
    """The words of a text, in lower case."""
    return set(re.findall(r"[a-z]+", text.lower()))


messages = [row["text"] for row in load_sample()[0]][: 640 if FULL else 20]
for target in (0.1, 0.5, 0.9):
    trial = RAPTSanitizer(vocabulary, target_replacement=target)
    released = trial.batch(messages)
    pairs = [(words(raw), words(told)) for raw, told in zip(messages, released, strict=True)]
    still = sum(len(raw & told) for raw, told in pairs) / sum(len(raw) for raw, _ in pairs)
    print(f"replaced {target:.0%}: {still:3.0%} of the words are still there   {released[0]}")

# %% [markdown]
# An agent needs some words as they are. Without the booking's number the tool finds nothing. So numbers are kept here,
# dates and addresses become placeholders, and two words of the trade stay in clear. Each of these choices is a hole
# made on purpose, and the certificate lists them.
#
# The middleware stands last in the list of middleware: what another one adds after it would pass it by.

# %%
ledger = MetricLedger(limit=8 * calibration.eta)  # for each patient: eight releases


def sanitizer(policies: Policies) -> RAPTSanitizer:
    """A sanitizer on the account of this notebook."""
    return RAPTSanitizer(vocabulary, eta=calibration.eta, ledger=ledger, policies=policies, keep=["booking", "day"])


@dataclasses.dataclass
class Desk:
    """What the application knows of a conversation."""

    patient: str


def guarded(model: Provider, policies: Policies) -> Any:
    """The same agent, with the middleware; each patient has an account."""
    middleware = RAPTMiddleware(sanitizer(policies), user=lambda request: request.runtime.context.patient)
    return create_agent(
        model,
        [booking],
        system_prompt="You help at the desk of a clinic.",
        middleware=[middleware],
        context_schema=Desk,
    )


NEEDED = Policies(numbers="keep", dates="placeholder", urls="placeholder")
provider = Provider()
agent = guarded(provider, NEEDED)
with private_run():  # a graph's own runs would show its raw state to tracers
    state = agent.invoke({"messages": [QUESTION]}, context=Desk("weber"))
    state = agent.invoke({"messages": [*state["messages"], LATER]}, context=Desk("weber"))
print("Told in the last call:")
show(provider.told[-1])

# %% [markdown]
# The agent's own state, here in this process, is raw: the questions, and what the tool found. The replies are what the
# model made of sanitized text. They come back as they are, and the drawn words in them are noise to the patient too.

# %%
show(state["messages"])

# %% [markdown]
# ## The whole history, every time
#
# A history may come from elsewhere: from a data base, or from a time before the middleware. It is sanitized as a whole,
# with tool calls, tool results and what a tool attached to them. Nobody has to remember which message was new.

# %%
old = [
    HumanMessage("My father Ivan fell in the night and nobody came when he rang."),
    AIMessage("", tool_calls=[{"name": "booking", "args": {"number": "4711", "reason": "Ivan fell"}, "id": "old"}]),
    ToolMessage("Ivan Petrov, ward 5, fell twice.", tool_call_id="old", artifact={"birthday": "3 May 1950"}),
    HumanMessage("Who was on duty?"),
]
reader = Provider()
with private_run():
    guarded(reader, NEEDED).invoke({"messages": old}, context=Desk("petrov"))
show(reader.told[-1])
before, after = (set().union(*(words(message.text) for message in said)) for said in (old, reader.told[-1][1:]))
print(f"\n{len(before & after)} of {len(before)} words are still there; the artifact: {reader.told[-1][3].artifact}")

# %% [markdown]
# The provider cannot be certain which words these are; what stands around them often tells.
#
# ## What each policy lets through

# %%
message = HumanMessage("On 3 March 2024 Anna paid 120 euros for booking 4711, see https://example.org/anna")
for policies in (Policies(), NEEDED, Policies(numbers="keep", dates="keep", urls="keep", punctuation="keep")):
    print(RAPTSanitizer(vocabulary, eta=calibration.eta, policies=policies, keep=["booking"]).invoke(message).content)

# %% [markdown]
# Without the number the tool has nothing to look up. That is the price, and it is paid in usefulness:

# %%
blind = Provider()
with private_run():
    state = guarded(blind, Policies()).invoke({"messages": [QUESTION]}, context=Desk("moreau"))
print(state["messages"][2].text)

# %% [markdown]
# ## One account for each patient
#
# A text that was released before is given out as it was, at no cost: so a growing history costs each message once, and
# the model's own replies cost nothing, for they come from sanitized text. What is new is charged before it leaves, and
# refused at the limit. The provider hears nothing of a refused turn.

# %%
for name in ("weber", "petrov", "moreau"):
    print(f"{name:7} spent {ledger.spent(user=name) / calibration.eta:.0f} releases of 8")

calls, history = len(provider.told), []
try:
    for day in range(20):
        asked = HumanMessage(f"Is there a free day in the week after day {day}?")
        with private_run():
            history = agent.invoke({"messages": [*history, asked]}, context=Desk("silva"))["messages"]
except BudgetExceeded as refusal:
    print(f"silva   was refused after {day} turns and {len(provider.told) - calls} calls:\n{refusal}")

calls = len(provider.told)
with private_run():
    agent.invoke({"messages": [HumanMessage("Is there a free day?")]}, context=Desk("okafor"))
print(f"okafor  is served: {len(provider.told) - calls} calls")

# %% [markdown]
# ## Which promise

# %%
print(sanitizer(NEEDED).certificate())

# %% [markdown]
# With the extra `presidio` there is another way: `Pseudonymizer(...)` replaces what a recognizer of names finds,
# and puts it back in the reply. It keeps far more meaning, promises nothing for what the recognizer misses, and its
# certificate says so.
#
# ## What was not protected
#
# - Numbers, the kept words, and that a date or an address stood where it stood: we let them through.
# - Every word that came out as itself, names among them. That some did, everybody knows; which ones, nobody outside
#   can be certain of, but the context often shows it.
# - The number of messages and of words in them, names of tools and of their arguments, keys of the JSON
#   that tools answer with, and the system prompt.
# - What an attacker guesses from the context: words around a word tell more than the calibration's single word.
# - What a tool does with arguments that the model made up. The tool above only reads; one that sends mail would need a
#   guard of its own.
# - The account counts in eta, nats per unit of distance between word vectors. It is no epsilon.
