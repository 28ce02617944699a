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
# # 1. Private few-shot classification in a chain
#
# **Who is kept from what.** Whoever asks questions and reads the labels must not learn whether any one message is among
# the examples, nor what it says. The model that sees the examples runs on this machine.

# %%
import os

from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

from langchain_dp import BudgetExceeded, DPICLClassifier, PrivacyBudget, PrivacyLedger
from langchain_dp.sample import LABELS, PROMPT, load

FULL = os.environ.get("COOKBOOK") == "full"
private, test = load()
asked = [*test[:30], *test[-30:]] if FULL else [*test[:2], *test[-2:]]
print(len(private), "private messages;", private[0])

# %% [markdown]
# ## A budget, in a file
#
# The ledger is a SQLite file. Every answer is charged to it before the model is asked; a crash costs budget and leaks
# nothing. The plan says what it will be like before anything is spent. Run this notebook twice in one folder, and the
# second run finds the budget spent: it is not forgotten. Remove `privacy.ledger` to begin anew.

# %%
ledger = PrivacyLedger(PrivacyBudget(epsilon=3.0, delta=1e-5), "privacy.ledger")
model = LlamaCppEnsemble(max_tokens=512, slots=16)
classifier = DPICLClassifier(
    model=model,
    examples=private if FULL else private[:320],
    labels=LABELS,
    prompt=PROMPT,
    ledger=ledger,
    max_queries=80 if FULL else 8,
    name="mailbox",
)
print(classifier.plan())

# %% [markdown]
# ## In a chain
#
# It is a Runnable: it takes a question and gives a label. Here the label decides who gets the message.


# %%
def route(message: dict[str, str]) -> str:
    """Where a message goes."""
    desk = {"complaint": "patient relations", "praise": "the ward's notice board"}[message["label"]]
    return f"{message['label']:10} to {desk:24} {message['text'][:60]}"


chain = {"text": RunnablePassthrough(), "label": classifier} | RunnableLambda(route)
for line in chain.batch([row["text"] for row in asked[:4]], {"max_concurrency": 1}):
    print(line)

# %% [markdown]
# ## How good, at which epsilon
#
# The same examples and the same model without noise, for comparison. Its certificate says that it promises nothing.
# (A handful of questions shows how it is done, not how good it is: see the README for a hundred, three times over.)

# %%
vote = classifier.baseline("vote", private=False)
right = {"vote without noise": 0, "DP-ICL, epsilon 3": 0}
for row in asked:
    right["vote without noise"] += vote.invoke(row["text"]) == row["label"]
    right["DP-ICL, epsilon 3"] += classifier.invoke(row["text"]) == row["label"]
for method, count in right.items():
    print(f"{method:20} {count} of {len(asked)}")
print(vote.certificate().reason)

# %% [markdown]
# ## A question asked again costs nothing
#
# What was released before is released again. The certificate counts.

# %%
before = classifier.certificate().remaining
classifier.invoke(asked[0]["text"])
print("left before and after:", before, classifier.certificate().remaining)
print(classifier.invoke_with_certificate(asked[0]["text"]).certificate)

# %% [markdown]
# ## The end of the budget
#
# The next new question is refused before the model sees it.

# %%
try:
    for number in range(1000):
        classifier.invoke(f"Message number {number}, thank you.")
except BudgetExceeded as refusal:
    print(refusal)

# %% [markdown]
# ## What was not protected
#
# - The questions: whoever handles them reads them.
# - The examples, from the operator of the model. Here that is you; with a cloud model they leave the building.
# - The number of examples, which is public under the default neighbors.
# - A person with several messages is protected one message at a time.

# %%
model.close()
ledger.close()
