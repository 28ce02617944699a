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
# # 9. Forgetting a record
#
# **Who is kept from what.** Somebody asks to be forgotten. From now on nobody who reads answers must learn anything new
# about their message, and nothing of it may stay in the caches.

# %%
import os

from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

from langchain_dp import DPICLClassifier, PrivacyBudget, PrivacyLedger
from langchain_dp.sample import LABELS, PROMPT, load

FULL = os.environ.get("COOKBOOK") == "full"
private = load()[0][: 640 if FULL else 320]
model = LlamaCppEnsemble(max_tokens=512, slots=32)
ledger = PrivacyLedger(PrivacyBudget(3.0))
classifier = DPICLClassifier(
    model=model, examples=private, labels=LABELS, prompt=PROMPT, ledger=ledger, max_queries=10, name="mailbox"
)
print(classifier.invoke("The new scanner was quick and the staff were kind."))

# %% [markdown]
# ## A record comes, and goes
#
# `add` gives the record a name. It sits in one subset, by a coin of its own, so that no other record moves.

# %%
record = classifier.add(
    {"text": "Mrs Okonjo-Reyes lost her hearing aid on ward 5 and was blamed for it.", "label": "complaint"}
)
print("records:", classifier.plan().records, "spent:", ledger.spent())
print(classifier.invoke("They blamed me for losing my glasses."))

# %% [markdown]
# `forget` takes it out of its subset, and what the model had evaluated of that subset is dropped. No other subset is
# touched: their caches stay.

# %%
classifier.forget(record)
print("records:", classifier.plan().records, "spent:", ledger.spent())
print(classifier.invoke("They blamed me for losing my umbrella."))

# %% [markdown]
# ## What forgetting cannot do
#
# The budget stays spent: what was released while the record was there has been seen. That is what the promise was for:
# whoever guesses what the record said, and sees all ten answers that the plan allows, gains at most a factor of exp(3),
# some twenty, on the odds of that guess, except with a chance of about delta, here 1 in 100,000.

# %%
print(classifier.certificate())

# %% [markdown]
# ## What was not protected
#
# - Your own copies of the record: the file it came from, backups, the process's memory until it is written over.
# - Answers given before: they were private then, and still are, at the price already paid.
# - When it was forgotten, from somebody who times the next answer: its subset is evaluated anew.
# - That there was one more record for a while: under these neighbors, which replace one record, the number of records
#   is public, as the certificate says. Add/remove neighbors hide it; the number of subsets is then to be given.

# %%
model.close()
