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
# # 7. Auditing and attacking your own chain
#
# **Who is kept from what.** Whoever reads the labels that a chain releases must not tell whether one message was among
# its examples. This notebook takes that reader's side: it tries to disprove the epsilon, and to get at the messages.
#
# Runs on this machine alone, without a language model: a stub does the worst that a model could do.

# %%
import dataclasses
import functools
import html.parser
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

from IPython.display import Image
from langchain_core.runnables import RunnableLambda

from langchain_dp import DPICLClassifier, PrivacyBudget, PrivacyLedger, RAPTSanitizer
from langchain_dp.accounting import NoisyMaxEvent, calibrate_noisy_max, epsilon
from langchain_dp.attacks import (
    attack_answers,
    find_leaks,
    invert_vectors,
    invert_words,
    leak_prompt,
    plot_attacks,
    unigram_prior,
)
from langchain_dp.audit import audit_mechanism, audit_pipeline, canaries_needed, canary_pair, worst_margin
from langchain_dp.icl import ModelCallOptions, SamplingOptions
from langchain_dp.rapt import load as load_table
from langchain_dp.sample import LABELS, PROMPT, load

FULL = os.environ.get("COOKBOOK") == "full"
private, test = load()

# %% [markdown]
# ## The chain, and the worst model for it
#
# Noise must hold whatever the model does. So the auditor's model lets a single example decide: it gives the label of
# the last example it was shown. With one example a subset, and every subset asked, each record is one vote.


# %%
def obedient(messages):
    """The label of the last example, which is the turn before the question."""
    return messages[-2].content if len(messages) > 2 else "praise"


def chain(examples, *, model=obedient, **promise):
    return DPICLClassifier(
        model=RunnableLambda(model),
        trust_opaque_model=True,  # this function keeps nothing of its prompts
        examples=examples,
        labels=LABELS,
        prompt=PROMPT,
        shots=1,
        sampling=SamplingOptions("fixed", partitions=len(examples), probability=1.0),
        model_calls=ModelCallOptions(
            max_concurrency=1, on_model_failure="ignore"
        ),  # a worst-case model need not answer what is public
        **promise,
    )


# %% [markdown]
# ## How much of the epsilon can be shown?
#
# The auditor asks the chain many times over two sets of examples that differ in one record, the canary, and counts
# answers. From the counts follows a lower bound on epsilon: whatever anybody claims below it is wrong.
#
# To ask often without building a chain for every answer, each chain gets a large budget for 300 answers. The claim
# under test is what *one* of them is charged, at a delta that a few thousand runs can resolve.

# %%
MANY = PrivacyBudget(epsilon=400.0, delta=0.05)
sigma = calibrate_noisy_max(MANY, queries=300)
claim = epsilon([(NoisyMaxEvent(sigma), 1)], delta=MANY.delta)
runs = 12_000 if FULL else 2_500
margin = worst_margin(sigma, delta=MANY.delta, runs=runs, error=1e-3)
pair = canary_pair(LABELS, votes=[0, margin])
print(f"noise {sigma} votes, one answer is charged epsilon = {claim:.3f}; the canary's label trails by {margin}")


def answers(examples, build):
    """Answers without end, each to a new question: a kept answer would say nothing new."""
    while True:
        ask = build(examples)
        yield from (ask(f"question {number}") for number in range(300))


def audit(build, pair, runs):
    streams = {id(data): answers(data, build) for data in (pair.one, pair.other)}
    return audit_mechanism(
        lambda data: next(streams[id(data)]),
        pair.one,
        pair.other,
        epsilon=claim,
        delta=MANY.delta,
        neighbors=pair.neighbors,
        runs=runs,
    )


sound = audit(lambda examples: chain(examples, budget=MANY, max_queries=300).invoke, pair, runs)
print(sound)
print(f"shown: {sound.share:.0%} of the claim")

# %% [markdown]
# The claim stands, and the bound is more than half of it: the noise is not many times what it has to be. More runs
# bring the two closer; they can never show that a claim is true.
#
# ## A fault of your own
#
# The library charges what it releases. It cannot see what the code around it does. Here a colleague saves money: the
# model's answers are kept, and when a question comes again, their majority is given out.


# %%
class Thrifty:
    """NOT PRIVATE. Keeps what the model said, and answers from it: released without noise, charged to nobody."""

    def __init__(self, examples, *, model=obedient, **promise):
        self._kept = defaultdict(Counter)
        self._model = model
        self._chain = chain(examples, model=self._listen, **promise)

    def _listen(self, messages):
        said = self._model(messages)
        if said in LABELS:
            self._kept[messages[-1].content][said] += 1
        return said

    def invoke(self, text):
        kept = self._kept.get(PROMPT.ask({"text": text}))
        return kept.most_common(1)[0][0] if kept else self._chain.invoke(text)


def asked_twice(examples):
    thrifty = Thrifty(examples, budget=MANY, max_queries=300)
    return lambda text: (thrifty.invoke(text), thrifty.invoke(text))


print("canary trails by", margin, "-", audit(asked_twice, pair, 1_000))
tie = canary_pair(LABELS, votes=[0, 0])
print("canary decides      -", audit(asked_twice, tie, 1_000))

# %% [markdown]
# The same fault, two canaries. Where the canary's label trails anyway, the majority is the same with and without it,
# and the audit sees nothing: **an audit that finds nothing has only tried one pair.** Where the canary decides, a few
# hundred runs are enough.
#
# Noise that is off is found as well. This is the baseline of the library, whose certificate says that it promises
# nothing; left in by mistake after a comparison of methods, nobody would see it from the labels.

# %%
print(
    audit(
        lambda examples: chain(examples, budget=MANY, max_queries=300).baseline("vote", private=False).invoke,
        tie,
        1_000,
    )
)

# %% [markdown]
# ## The whole application, once
#
# Often a pipeline can be run only once. Then many canaries take part, each in or out by a coin of its own, and the
# auditor guesses the coins from everything that came out. Here each canary is an example that decides one question, and
# its coin decides its label. The claim is the budget of the whole application.

# %%
APPLICATION = PrivacyBudget(epsilon=1.0, delta=1e-5)
CANARIES, GUESSES = (300, 200) if FULL else (90, 60)
print("guesses needed at least:", canaries_needed(APPLICATION.epsilon, error=1e-3))


def canaries(coins):
    return [{"text": f"canary {number};", "label": LABELS[0 if coin else 1]} for number, coin in enumerate(coins)]


def concerned(messages):
    """Answers only if the example is the one that the question is about; else its subset abstains."""
    return messages[-2].content if len(messages) > 2 and messages[-3].content == messages[-1].content else "?"


def score(released, number):
    """The higher, the likelier the canary's label was the first one: here from the second time it was asked."""
    return float(released[number][1] == LABELS[0])


def application(coins, kind=chain):
    made = kind(canaries(coins), model=concerned, budget=APPLICATION, max_queries=len(coins))
    return [[made.invoke(f"canary {number};") for _ in range(2)] for number in range(len(coins))]


for kind in (chain, Thrifty):
    found = audit_pipeline(
        functools.partial(application, kind=kind),
        score,
        canaries=CANARIES,
        guesses=GUESSES,
        epsilon=APPLICATION.epsilon,
        delta=APPLICATION.delta,
    )
    print(f"{kind.__name__:8} {found}")

# %% [markdown]
# One run is enough for a gross fault. It is far too little to show how near a sound pipeline comes to its claim: the
# noise for all these answers drowns each single canary. That takes the many runs from above.
#
# ## Attacks: words that were privatized
#
# An audit judges the promise. An attack shows what the promise is worth. The sanitizer below replaces about every
# second word. The attacker knows table, mechanism and eta, and how often each word occurs in other messages, and
# guesses what stood there. The second attack is a warning: it gets the noisy vectors, which the sanitizer never lets
# out.

# %%
texts = [row["text"] for row in private]
attacked, others = texts[: 320 if FULL else 60], texts[320 if FULL else 60 :]
table = load_table("minilm")
eta = RAPTSanitizer(table, target_replacement=0.5, mechanism="laplace").calibration().eta
prior = unigram_prior(table, others)
words = invert_words(attacked, vocabulary=table, eta=eta, prior=prior, draws=5_000 if FULL else 1_000)
vectors = invert_vectors(attacked, vocabulary=table, eta=eta, prior=prior)
for result in (words, vectors):
    print(result)
    print(f"   words that came out as another one: {result.replaced:.3f}")
print(vectors.side_by_side(12))

# %% [markdown]
# Words that came out as themselves are guessed right because they are there to be read. Noisy vectors give away words
# that a released text would have hidden. So never store or send them.
#
# ## Attacks: rows in a prompt
#
# A colleague wrote a prompt by hand, "with made-up examples". The search compares it with the private rows, and with
# rows that the colleague never saw: what it finds there is chance.

# %%
borrowed = " ".join(texts[2].split()[:10])
prompts = {
    "by hand": f"{PROMPT.instruction} For example, '{borrowed}' is a complaint, and 'Lovely staff!' is praise.",
    "plain": f"{PROMPT.instruction} Thanks and relief are praise. Anger, dirt and delay are complaints.",
}
searched = {
    name: find_leaks(text, texts, public=[PROMPT.instruction, *LABELS], held_out=[row["text"] for row in test])
    for name, text in prompts.items()
}
for name, found in searched.items():
    print(f"{name}: {len(found.spans)} spans of rows, {found.rate:.0%} of its own words")
print(searched["by hand"].spans[0])

# %% [markdown]
# That last output is private text. Results of attacks print figures; what was found they show only when asked.
#
# ## Attacks: asking for the examples
#
# A parrot of a model repeats all it was sent. Around it stand a plain few-shot chain, and the private one. Five answers
# make a wide interval. That no example fits into a label is known without counting.


# %%
def parrot(messages):
    return "\n".join(message.content for message in messages)


def few_shot(text):
    shots = [(PROMPT.ask(row), row["label"]) for row in private[:4]]
    return RunnableLambda(parrot).invoke(PROMPT.messages(shots, PROMPT.ask({"text": text}), LABELS))


in_private = chain(private[:40], model=parrot, budget=PrivacyBudget(3.0), max_queries=10)
leaks = {}
for name, answer, shown in (("plain few-shot", few_shot, texts[:4]), ("DP-ICL", in_private.invoke, texts[:40])):
    leaks[name] = leak_prompt(answer, shown, public=[PROMPT.instruction, *LABELS])
    print(f"{name}: {leaks[name]}")
    print(f"   examples that leaked: {leaks[name].examples_leaked} of {len(shown)}")

# %% [markdown]
# ## Attacks: was this record there?
#
# The strongest reader has seen the same chain on both data sets many times. One question is asked twice. The promise
# bounds what such a reader can reach.

# %%
ONE = PrivacyBudget(epsilon=1.0, delta=1e-5)
one_answer = NoisyMaxEvent(calibrate_noisy_max(ONE, queries=1))


def fresh(kind, examples):
    """A chain with a budget of its own, for one answer. The noise is calibrated once, above, and not for each."""
    ledger = PrivacyLedger(ONE)
    ledger.reserve([(one_answer, 1)], name="dp-icl", epsilon=ONE.epsilon, delta=ONE.delta)
    ask = kind(examples, ledger=ledger, max_queries=1).invoke
    return lambda text: f"{ask(text)}, then {ask(text)}"


membership = {
    kind.__name__: attack_answers(
        functools.partial(fresh, kind),
        tie.one,
        tie.other,
        questions=["Is the canary there?"],
        runs=400 if FULL else 100,
        epsilon=ONE.epsilon,
        delta=ONE.delta,
        name=f"membership, {kind.__name__}",
    )
    for kind in (chain, Thrifty)
}
for result in membership.values():
    print(result)
    print(f"   the promise allows {result.settings['bound']:.3f}")

# %% [markdown]
# ## All of them in one picture

# %%
results = [
    words,
    vectors,
    *(dataclasses.replace(result, name=f"leaking, {name}") for name, result in leaks.items()),
    *membership.values(),
]
plot_attacks(results, "attacks.png")
Image("attacks.png")

# %% [markdown]
# ## The report for the auditor
#
# Whoever has to judge the chain gets one page: what was released, when, under which mechanism, what is left, what the
# attacks reached, and what is not protected. It is written from the ledger's file, which it does not change. On a
# terminal the command is `langchain-dp audit --ledger mailbox.ledger --attacks attacks.json --out report.html`.
#
# It shows the results of attacks that it is given, here all of the above, the broken chain's among them. Which chain
# was attacked, the page cannot know: names of results should say it.

# %%
with PrivacyLedger(PrivacyBudget(epsilon=3.0, delta=1e-5), "mailbox.ledger") as ledger:
    mailbox = chain(private[:40], ledger=ledger, max_queries=100, name="mailbox")
    for row in test[:8]:
        mailbox.invoke(row["text"])

Path("attacks.json").write_text(json.dumps([result.to_dict() for result in results]))
command = [sys.executable, "-m", "langchain_dp", "audit", "--ledger", "mailbox.ledger"]
command += ["--attacks", "attacks.json", "--out", "report.html"]
print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


# %%
class Lines(html.parser.HTMLParser):
    """The words of a page, without its style and its drawings."""

    def __init__(self, page):
        super().__init__()
        self.lines, self._hidden = [], 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self._hidden += tag in ("style", "svg")

    def handle_endtag(self, tag):
        self._hidden -= tag in ("style", "svg")

    def handle_data(self, data):
        if data.strip() and not self._hidden:
            self.lines.append(data.strip())


page = Path("report.html").read_text(encoding="utf-8")
print("\n".join(Lines(page).lines))

# %% [markdown]
# No record's text is in it. The same search that found the borrowed words, over the whole file: what it may find is a
# phrase of the page's own that a message happens to use.

# %%
in_page = find_leaks(page, [*texts, *(row["text"] for row in test)])
print(len(page), "characters; messages:", sum(text in page for text in texts))
print("runs of words that a message has, too:", [span.text for span in in_page.spans])

# %% [markdown]
# ## What was not protected
#
# - What no canary was made for. An audit tries one pair of data sets and one way to look; passing it proves nothing.
# - What a better attack would get. All figures above are from below.
# - Whatever your own code does beside the library: caches, logs, statistics. It is not charged, and nobody counts it,
#   unless an audit runs the whole of it.
# - Words that the sanitizer lets through. More than half of them, here.
# - These results: figures of attacks on private texts are counted without noise. Who publishes them releases something.
