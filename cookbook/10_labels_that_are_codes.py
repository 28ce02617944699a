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
# # 10. Labels that are codes
#
# **Who is kept from what.** Customers of an online shop write to "queue A" to "queue F". No model knows what that
# means, and the tickets that would tell must not leave. Whoever sees the names that come out must not learn whether any
# one ticket was used.
#
# `DPLabelNamer` counts which public topics the tickets of a queue are nearest to, and draws one name per queue with
# noise. It takes seconds and asks no model. The names cost epsilon 1, once.

# %%
from langchain_core.language_models import FakeListChatModel

from langchain_dp import DPICLClassifier, DPLabelNamer, PrivacyBudget, PrivacyLedger
from langchain_dp.icl import ICLPrompt
from langchain_dp.sample import load_tickets

QUEUES = {
    "account": "queue A",
    "billing": "queue B",
    "cancellation": "queue C",
    "delivery": "queue D",
    "returns": "queue E",
    "technical": "queue F",
}
LABELS = list(QUEUES.values())
tickets = [{"text": row["text"], "label": QUEUES[row["label"]]} for row in load_tickets()[0]]
print(len(tickets), "private tickets;", tickets[0])

# %% [markdown]
# ## Names
#
# The candidates are some 200 public topics that ship with the package. They must not be read off the tickets. All
# releases of this notebook share one ledger.

# %%
ledger = PrivacyLedger(PrivacyBudget(epsilon=4.0, delta=1e-5), "queues.ledger")
named = DPLabelNamer().fit(tickets, labels=LABELS, budget=PrivacyBudget(1.0, 1e-6), ledger=ledger)
print(named)

# %% [markdown]
# Look at the names before you use them. They are released, so that costs nothing. The name of queue F is too narrow:
# its tickets are about technical problems of all that the shop sells, and the list has topics for single devices. The
# names are public now, so anybody may correct one.

# %%
names = {**named.names, "queue F": "technical problem"}
print(named.certificate)

# %% [markdown]
# ## A vote that answers with names
#
# `ICLPrompt(words=...)` shows and asks for names, and the classifier returns the queue. `plan()` says what a promise
# buys, and asks no model.

# %%
prompt = ICLPrompt("Ticket: {text}", "Topic:", "Sort the tickets of an online shop by topic.", words=names)
classifier = DPICLClassifier(
    model=FakeListChatModel(responses=["delivery"]),  # stands for your own: it sees the tickets
    examples=tickets,
    labels=LABELS,
    prompt=prompt,
    budget=PrivacyBudget(2.0, 5e-6),
    ledger=ledger,
    max_queries=100,
    subsets=20,
    made_with=named.certificate,
)
print(classifier.plan())
print("epsilon of names and votes:", classifier.certificate().epsilon)

# %% [markdown]
# ## The same descriptions for synthetic examples
#
# `DPExampleSynthesizer(labels=...)` tells a local model what each label means. The texts carry their cost: the
# certificate of its examples adds the epsilon of the names to its own.
#
# ```python
# synthesizer = DPExampleSynthesizer(
#     model=engine, labels=named.descriptions, count=36, ledger=ledger, budget=PrivacyBudget(1.0, 1e-6)
# )
# examples = synthesizer.invoke(tickets)
# ```

# %%
print({label: text.costs[0].epsilon for label, text in named.descriptions.items()})

# %% [markdown]
# ## What was not protected
#
# - The number of tickets, the labels and the candidates, which are public.
# - The new tickets that a classifier is asked about, from its model.
# - A customer with several tickets, who is protected one ticket at a time. `PrivateRecords(user_key="customer")`
#   protects the customer: it counts one ticket of each.
# - The ledger's key: who holds it together with the ledger can test guesses at the tickets.

# %%
ledger.close()
