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
# # 6. Which of them fits?
#
# **Who is kept from what.** A clinic sorts messages into praise and complaint by 640 private examples. Four parts of
# the package could do it. They protect different things, and this notebook compares them on the same test messages.
#
# | | what is protected | from whom | what is paid, and when |
# |---|---|---|---|
# | `DPPrototypeClassifier` | the examples | everybody who has the classifier | epsilon, once |
# | `DPICLClassifier` | the examples | everybody who reads answers | epsilon, for a planned number of answers |
# | `DPPromptOptimizer` | the examples | everybody who reads the prompt | epsilon, once |
# | `RAPTSanitizer` | the words of one question | the model that answers it | eta, for each question |
#
# The first three trust the machine that holds the examples. Only the last one helps where the answering model is not
# yours. Eta counts nats per unit of distance between words, and no eta is as private as some epsilon.

# %%
import math
import os

from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from matplotlib import pyplot

from langchain_dp import DPICLClassifier, DPPromptOptimizer, DPPrototypeClassifier, PrivacyBudget, RAPTSanitizer
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt import load as load_table
from langchain_dp.sample import LABELS, PROMPT, load

train, test = load()
texts = [row["text"] for row in test]
voted = test if os.environ.get("COOKBOOK") == "full" else test[::20]  # a vote asks the language model ten times
EPSILONS = (1.0, 3.0)


def accuracy(answers, rows) -> tuple[float, float]:
    """Share of right answers, and its standard error with one right and one wrong answer added."""
    share = sum(answer == row["label"] for answer, row in zip(answers, rows, strict=True)) / len(rows)
    rate = (share * len(rows) + 1) / (len(rows) + 2)
    return share, math.sqrt(rate * (1 - rate) / (len(rows) + 2))


# %% [markdown]
# ## Ask for the plan first
#
# A plan spends nothing. It says what the noise would do at your number of examples.

# %%
for epsilon in EPSILONS:
    print(DPPrototypeClassifier.plan(len(train), labels=LABELS, budget=PrivacyBudget(epsilon)), end="\n\n")

# %%
model = LlamaCppEnsemble(max_tokens=384, slots=32)
votes = {
    epsilon: DPICLClassifier(
        model=model,
        examples=train,
        labels=LABELS,
        prompt=PROMPT,
        budget=PrivacyBudget(epsilon),
        max_queries=len(test),
    )
    for epsilon in EPSILONS
}
for epsilon, chain in votes.items():
    share = chain.plan().survival[0.7]
    print(f"epsilon {epsilon:g}, {len(test)} answers: a majority of 70% wins through the noise {share:.0%} of the time")

# %% [markdown]
# A prompt is written from votes about each word. The plan counts votes. It cannot say whether the words are worth
# them: the model of this notebook is so small that it repeats the instruction (notebook 2).

# %%
for epsilon in EPSILONS:
    writer = DPPromptOptimizer(
        model=model,
        allow_small_model=True,
        labels=LABELS,
        instruction="Is the message praise or complaint?",
        budget=PrivacyBudget(epsilon),
        shots=1,
        subsets=32,
        num_prompts=1,
        max_new_tokens=16,
    )
    try:
        plan = writer.plan(len(train))
        print(f"epsilon {epsilon:g}: a word that 70% of the subsets vote for is released {plan.chance(0.7):.0%}")
    except InvalidParameter as refusal:
        print(f"epsilon {epsilon:g}: {refusal}")

# %% [markdown]
# ## The same test messages
#
# Every line is a real release with fresh noise. Whoever sees several of them has seen the sum of their epsilons.

# %%
found = {}
for epsilon in EPSILONS:
    classifier = DPPrototypeClassifier.fit(train, labels=LABELS, budget=PrivacyBudget(epsilon))
    found["prototypes", epsilon] = accuracy(classifier.batch(texts), test)
for epsilon, chain in votes.items():
    found["vote", epsilon] = accuracy([chain.invoke(row["text"]) for row in voted], voted)
for (name, epsilon), (share, error) in found.items():
    asked = len(test if name == "prototypes" else voted)
    print(f"{name:10} epsilon {epsilon:g}: {share:.2f} ± {error:.2f} of {asked}")

# %% [markdown]
# RAPT changes the question instead. Here the last classifier stands for a model outside that answers it.

# %%
table = load_table("glove")
sanitized = {0.0: accuracy(classifier.batch(texts), test)}
for target in (0.1, 0.3, 0.5):
    sanitizer = RAPTSanitizer(table, target_replacement=target)
    sanitized[target] = accuracy(classifier.batch(sanitizer.batch(texts)), test)
    share, error = sanitized[target]
    print(f"{target:.0%} of words replaced, eta {sanitizer.calibration().eta:.1f}: {share:.2f} ± {error:.2f}")

# %%
figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
for name in ("prototypes", "vote"):
    shares, errors = zip(*(found[name, epsilon] for epsilon in EPSILONS), strict=True)
    left.errorbar(EPSILONS, shares, yerr=errors, marker="o", capsize=3, label=name)
left.set(xlabel="epsilon (delta 1e-5)", ylabel="share of right answers", ylim=(0, 1.05), xticks=EPSILONS)
left.legend(frameon=False, loc="lower right")
shares, errors = zip(*sanitized.values(), strict=True)
right.errorbar(list(sanitized), shares, yerr=errors, marker="o", capsize=3)
right.axhline(0.5, color="grey", linewidth=0.5)
right.set(xlabel="share of words that RAPT replaces; chance is 0.5")
pyplot.show()

# %% [markdown]
# ## Choose
#
# - Labels, and examples that are private: **prototypes**. If a language model knows your labels by name, add it with
#   `with_prior`, or try the **vote**.
# - A prompt for a cloud model, thousands of examples, and a local model that writes well: **DP-OPT** (notebook 2).
# - The question itself is private, and the model is not yours: **RAPT** (notebook 3).
# - Several of them on the same examples: one ledger (notebook 5).
#
# ## What was not protected
#
# - By the first three: the questions, the number of examples, and the examples from the model that reads them.
# - By RAPT: words that came out as themselves, the number of words, and all examples.
# - The comparison itself: its releases add up. Choose on public data, or pay for the choice.

# %%
model.close()
