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
# # 11. A classifier for your CSV: pay once, query without limit
#
# **Who is kept from what.** A shop routes support tickets by examples of its customers. Whoever uses the classifier, or
# gets its file, must learn nearly nothing about any one customer, however many tickets that customer wrote.
#
# Runs in seconds, without a language model: `pip install ".[encoder]"`.

# %%
import csv
from pathlib import Path

from langchain_core.runnables import RunnableLambda

from langchain_dp import DPLabelNamer, DPPrototypeClassifier, PrivacyBudget, PrivacyLedger, PrivateRecords
from langchain_dp.sample import load_tickets

# %% [markdown]
# ## Your file
#
# Replace these lines by the path of your own file. Here, a CSV is made of 1,003 invented tickets. Their queues have
# codes.

# %%
tickets, test = load_tickets()
codes = {queue: f"queue {place}" for place, queue in enumerate(sorted({row["label"] for row in tickets}), 1)}
with Path("tickets.csv").open("w", newline="", encoding="utf-8") as file:
    writer = csv.writer(file)
    writer.writerow(["customer", "message", "queue"])
    writer.writerows((row["customer"], row["text"], codes[row["label"]]) for row in tickets)

records = PrivateRecords("tickets.csv", text_key="message", label_key="queue", user_key="customer")
labels = list(codes.values())

# %% [markdown]
# ## What to expect
#
# The plan uses public numbers alone, and spends nothing.

# %%
customers = 617
print(DPPrototypeClassifier.plan(customers, labels=labels, budget=PrivacyBudget(3.0)))

# %% [markdown]
# ## One ledger, two releases
#
# Names for the codes cost epsilon 1, the classifier epsilon 3. The ledger is a file: running this notebook again
# returns the same results and spends nothing.

# %%
ledger = PrivacyLedger(PrivacyBudget(4.0), "tickets.ledger")
names = DPLabelNamer().fit(records, labels=labels, budget=PrivacyBudget(1.0, 5e-6), ledger=ledger)
print(names)

# %%
classifier = DPPrototypeClassifier.fit(records, labels=labels, budget=PrivacyBudget(3.0, 5e-6), ledger=ledger)
print(classifier.certificate())

# %% [markdown]
# ## Ask as often as you like
#
# The test tickets are by other customers. Answers cost nothing, alone or in a chain.

# %%
answers = classifier.batch([row["text"] for row in test])
right = sum(answer == codes[row["label"]] for answer, row in zip(answers, test, strict=True))
print(f"right on {right} of {len(test)}; by guessing, {len(test) // len(codes)}")

chain = classifier | RunnableLambda(lambda label: names.names[label])
print(chain.invoke("I forgot my password and the reset mail never comes."))
print(classifier.probabilities("I forgot my password and the reset mail never comes."))

# %% [markdown]
# Where it is unsure, a person should decide.

# %%
careful = classifier.abstaining(below=0.4, otherwise="a person")
print(careful.batch([row["text"] for row in test[:8]]))

# %% [markdown]
# ## Keep it
#
# The file holds noisy sums and the certificate, and may be shown to anybody.

# %%
classifier.save("tickets.json")
print(DPPrototypeClassifier.load("tickets.json"))
print("charged so far:", ledger.spent())

# %% [markdown]
# ## What was not protected
#
# The queues, the number of customers and the public topics. New tickets that are classified: whoever runs the
# classifier sees them. And what all customers have in common: the classifier is there to learn it.
