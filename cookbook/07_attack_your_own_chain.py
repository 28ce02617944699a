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
# # 7. Audit and attack your own chain
#
# **Who is kept from what.** Somebody who reads a chain's labels must not learn whether one message was among its
# examples. This notebook takes that reader's side. It tries to disprove the epsilon, and to get at the messages.
#
# Runs without a language model: a stub does the worst that a model could do. `pip install ".[minilm,plot]"`.

# %%
import warnings

from langchain_core.runnables import RunnableLambda

from langchain_dp import DPICLClassifier, PrivacyBudget, PrivacyLedger, RAPTSanitizer
from langchain_dp.accounting import NoisyMaxEvent, calibrate_noisy_max, epsilon
from langchain_dp.attacks import find_leaks, invert_vectors, invert_words, unigram_prior
from langchain_dp.audit import audit_mechanism, canary_pair, worst_margin
from langchain_dp.audit.report import report
from langchain_dp.audit.report.page import page
from langchain_dp.icl import ModelCallOptions, SamplingOptions
from langchain_dp.rapt import load as load_table
from langchain_dp.sample import LABELS, PROMPT, load

warnings.simplefilter("ignore")  # an audit promises little on purpose, and uses budgets up
private, test = load()
texts = [row["text"] for row in private]

# %% [markdown]
# ## The worst model
#
# Noise must hold whatever the model does. So the auditor's model repeats the label of the last example in its prompt.
# With one example per subset, each record is one vote.


# %%
def obedient(messages):
    """The label of the last example, which is the turn before the query."""
    return messages[-2].content if len(messages) > 2 else "praise"


def chain(examples, **promise):
    return DPICLClassifier(
        model=RunnableLambda(obedient),
        trust_opaque_model=True,  # this function keeps nothing of its prompts
        examples=examples,
        labels=LABELS,
        prompt=PROMPT,
        shots=1,
        sampling=SamplingOptions("fixed", partitions=len(examples), probability=1.0),
        model_calls=ModelCallOptions(max_concurrency=1, on_model_failure="ignore"),
        **promise,
    )


# %% [markdown]
# ## Audit
#
# The chain answers many times over two sets of examples that differ in one record, the canary. The counts of answers
# give a lower bound on epsilon. A claim below the bound is wrong. Here one answer is claimed to cost what the ledger
# charges for it, at a delta that some thousand runs can resolve.

# %%
MANY = PrivacyBudget(epsilon=400.0, delta=0.05)  # for 300 answers of each chain
sigma = calibrate_noisy_max(MANY, queries=300)
claim = epsilon([(NoisyMaxEvent(sigma), 1)], delta=MANY.delta)


def audit(ask, pair, runs):
    """Audit of answers to ever new queries: a repeated one would be answered from the cache."""

    def answers(examples):
        while True:
            built = chain(examples, budget=MANY, max_queries=300)
            yield from (ask(built, f"query {number}") for number in range(300))

    streams = {id(data): answers(data) for data in (pair.one, pair.other)}
    return audit_mechanism(
        lambda data: next(streams[id(data)]),
        pair.one,
        pair.other,
        epsilon=claim,
        delta=MANY.delta,
        neighbors=pair.neighbors,
        runs=runs,
    )


margin = worst_margin(sigma, delta=MANY.delta, runs=2_500, error=1e-3)
sound = audit(lambda built, query: built.invoke(query), canary_pair(LABELS, votes=[0, margin]), 2_500)
print(sound)
print(f"shown: {sound.share:.0%} of the claim")

# %% [markdown]
# The claim stands. Now a fault: the baseline without noise is left in after a comparison. Nobody would see it from the
# labels, and the audit does.

# %%
tie = canary_pair(LABELS, votes=[0, 0])
print(audit(lambda built, query: built.baseline("vote", private=False).invoke(query), tie, 1_000))

# %% [markdown]
# ## Attack: sanitized words
#
# This sanitizer replaces every second word. The attacker knows table, mechanism and eta, and how often each word occurs
# in other messages. The second attacker gets the noisy vectors, which the sanitizer never releases.

# %%
table = load_table("minilm")
eta = RAPTSanitizer(table, target_replacement=0.5, mechanism="laplace").calibration().eta
prior = unigram_prior(table, texts[60:])
print(invert_words(texts[:60], vocabulary=table, eta=eta, prior=prior, draws=1_000))
print(invert_vectors(texts[:60], vocabulary=table, eta=eta, prior=prior))

# %% [markdown]
# Words that came out as themselves are there to be read. Noisy vectors give away more, so never store or send them.
#
# ## Attack: rows in a prompt
#
# A colleague wrote a prompt "with made-up examples". The search compares it with the private rows, and with rows that
# the colleague never saw. This also works for prompts that DSPy or GEPA wrote.

# %%
borrowed = " ".join(texts[2].split()[:10])
prompt = f"{PROMPT.instruction} For example, '{borrowed}' is a complaint, and 'Lovely staff!' is praise."
found = find_leaks(prompt, texts, public=[PROMPT.instruction, *LABELS], held_out=[row["text"] for row in test])
print(f"{len(found.spans)} runs of words of private rows, {found.rate:.0%} of the prompt's own words")

# %% [markdown]
# ## The report
#
# An auditor gets one page from the ledger: each release, its mechanism, what is left, and what is not protected. On a
# terminal: `langchain-dp audit --ledger mailbox.ledger --out report.html`.

# %%
with PrivacyLedger(PrivacyBudget(epsilon=3.0, delta=1e-5), "mailbox.ledger") as ledger:
    mailbox = chain(private[:40], ledger=ledger, max_queries=100, name="mailbox")
    for row in test[:8]:
        mailbox.invoke(row["text"])
shown = report("mailbox.ledger")
html = page(shown)
for plan in shown.plans:
    print(f"{plan.name}: epsilon {plan.epsilon:g}, {sum(line.used for line in plan.releases)} releases")
print(len(html), "characters; private messages in them:", sum(text in html for text in texts))

# %% [markdown]
# ## What was not protected
#
# - Whatever no canary was made for. An audit tries one pair of data sets, and passing it proves nothing.
# - Whatever a better attack would get. All figures are lower bounds.
# - Your own code beside the library: caches, logs, statistics. Nobody counts it unless an audit runs it, too.
# - These results. Figures of attacks on private texts are counted without noise, so publishing them is a release.
