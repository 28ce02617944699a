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
# # 6. Choosing among the three
#
# **Who is kept from what.** That is the choice: DP-ICL keeps examples from those who read answers, DP-OPT keeps
# examples from those who read a prompt, RAPT keeps a text from the model that it is sent to. Nothing does all three.
#
# | | DP-ICL | DP-OPT | RAPT |
# |---|---|---|---|
# | what is protected | labelled examples | labelled examples | the text that leaves, word by word |
# | the model that reads them raw | on every question | once, while it writes | none |
# | who reads the released thing | whoever asks | anybody, for ever | the model it is sent to, and its operator |
# | the questions are read by | the same model | the cloud model | nobody outside, in clear |
# | what is paid, and when | for each answer, until the plan ends | once; questions are free | for each text |
# | unit | epsilon and delta | epsilon and delta | eta, nats per unit of distance: no epsilon |
#
# The model that reads them raw must be yours, or its operator must be trusted. If there is none, RAPT is what is left.

# %%
import math
import os

from langchain_core.prompts import ChatPromptTemplate
from langchain_dp.integrations.llama_cpp import ChatLlamaCpp, LlamaCppEnsemble
from matplotlib import pyplot

from langchain_dp import DPICLClassifier, DPPromptOptimizer, PrivacyBudget, RAPTSanitizer
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt import Decoding, OptPrompts, evaluate_prompt
from langchain_dp.rapt import load as load_table
from langchain_dp.sample import LABELS, PROMPT, load

FULL = os.environ.get("COOKBOOK") == "full"
train, test = load()
private = train[: 600 if FULL else 160]
asked = test if FULL else [*test[:3], *test[-3:]]
print(len(private), "private messages,", len(asked), "test messages")


def standard_error(accuracy: float, rows: int) -> float:
    """Of an accuracy on so many rows, with one right and one wrong answer added: 16 of 16 is not certainty."""
    rate = (accuracy * rows + 1) / (rows + 2)
    return math.sqrt(rate * (1 - rate) / (rows + 2))


print(f"resolution: one standard error of an accuracy of 0.7 is {standard_error(0.7, len(asked)):.2f} on these rows")

# %% [markdown]
# Differences below two standard errors mean nothing. The outputs that come with the project are those of
# `COOKBOOK=full`: all test messages of the sample, and a prompt that is written anew. The fast settings ask so few
# questions that they show how to measure, and no more. The README has more questions, on public data.
#
# ## What each costs, before anything is spent
#
# DP-ICL: how many answers, and how much noise for each. Fewer answers, less noise. The last column is exact, and
# needs no model: how often a majority of 70% of the subsets wins through the noise.

# %%
EPSILONS = (1.0, 3.0, 8.0)
model = LlamaCppEnsemble(max_tokens=384, slots=32)
icl = DPICLClassifier(
    model=model,
    examples=private,
    labels=LABELS,
    prompt=PROMPT,
    budget=PrivacyBudget(EPSILONS[0]),
    max_queries=len(asked),
)
chains = {EPSILONS[0]: icl} | {each: icl.with_budget(PrivacyBudget(each)) for each in EPSILONS[1:]}
for each, chain in chains.items():
    plan = chain.plan()
    print(f"epsilon {each:g}: {plan.queries} answers, noise {plan.event.sigma:.2f} votes of ", end="")
    print(f"{plan.scheme.expected_subsets:.0f}, a 70% majority wins {plan.survival[0.7]:.0%}")
for queries in (1_000, 10_000):
    plan = icl.with_budget(PrivacyBudget(3.0), max_queries=queries).plan()
    print(f"epsilon 3 for {queries:6,} answers: a 70% majority wins {plan.survival[0.7]:.0%}")

# %% [markdown]
# DP-OPT: how many word pieces, and how many votes each needs. A plan that could release nothing is refused, and says
# what would help.

# %%
START = "Is the message praise or complaint?"
request = 'Write the instruction as a full sentence. Begin with "Read the message, then choose whether it is".'
first_words = {"Is", "I", "Rewrite", "Re", "Improve"}  # a small model repeats what it was told: see notebook 2
banned = {token for token in range(model.vocabulary_size) if model.detokenize([token]).strip() in first_words}


def writer(epsilon: float) -> DPPromptOptimizer:
    """A run of DP-OPT under a budget of its own."""
    return DPPromptOptimizer(
        model=model,
        labels=LABELS,
        instruction=START,
        budget=PrivacyBudget(epsilon),
        prompts=OptPrompts(messages=(request,)),
        shots=1,
        subsets=32,
        num_prompts=1,
        max_new_tokens=16,
        decoding=Decoding(banned=banned),
    )


for each in EPSILONS:
    try:
        plan = writer(each).plan(len(private))
        print(
            f"epsilon {each:g}: {plan.max_calls} pieces at most, each needs about {plan.votes_needed:.0f} votes of",
            end="",
        )
        print(f" {plan.scheme.expected_subsets:.0f}; one that 70% vote for is released {plan.chance(0.7):.0%}")
    except InvalidParameter as refusal:
        print(f"epsilon {each:g}: {refusal}")

# %% [markdown]
# RAPT: each text costs eta, and the calibration, which `langchain-dp plan rapt` prints too, says what that means.

# %%
table = load_table("glove")
sanitizers = {target: RAPTSanitizer(table, target_replacement=target) for target in (0.1, 0.3, 0.5)}
for target, sanitizer in sanitizers.items():
    found = sanitizer.calibration()
    print(f"replaced {target:.0%}: eta {found.eta:.2f}; a word on its own is guessed back in {found.inversion:.0%}")

# %% [markdown]
# ## Accuracy against epsilon
#
# DP-ICL answers the test messages under each budget: real releases, with fresh coins and noise. The vote without
# noise and the model without examples stand beside it. Somebody who sees all three budgets' answers has seen their sum.


# %%
def accuracy(chain, texts: list[str]) -> float:
    """Share of right labels."""
    return sum(chain.invoke(text) == row["label"] for text, row in zip(texts, asked, strict=True)) / len(asked)


texts = [row["text"] for row in asked]
scores = {name: accuracy(icl.baseline(name, private=False), texts) for name in ("zero-shot", "vote")}
scores |= {each: accuracy(chain, texts) for each, chain in chains.items()}
for name, score in scores.items():
    title = name if isinstance(name, str) else f"DP-ICL, epsilon {name:g}"
    print(f"{title:20} {score:.2f} +- {standard_error(score, len(asked)):.2f}")

# %% [markdown]
# DP-OPT writes one prompt, here at epsilon 8. In the fast settings it is one that notebook 2 released: what was
# released once may be used by anybody, for ever, at no further cost. The embedded model as a chat model stands for
# the cloud. It answers in free words, so compare its two lines with each other only, and not with DP-ICL, which reads
# label probabilities.

# %%
WRITTEN = "Read the message, then choose whether it is praise or complaint."
instruction = writer(8.0).optimize(private).instruction if FULL else WRITTEN
print(repr(instruction))
cloud = ChatLlamaCpp(max_tokens=6, temperature=0.0)
prompts = {
    "initial instruction": ChatPromptTemplate.from_messages([("human", OptPrompts().forward(START))]),
    "DP-OPT, epsilon 8": ChatPromptTemplate.from_messages([("human", OptPrompts().forward(instruction))]),
}
written = {name: evaluate_prompt(prompt, cloud, asked, LABELS) for name, prompt in prompts.items()}
for name, score in written.items():
    print(f"{name:20} {score}")

# %% [markdown]
# ## Accuracy against eta: another axis
#
# RAPT's question goes to a model outside, with examples that would have to be public: suppose that these were. The vote
# without noise stands for that model. The more words change, the less there is to read.

# %%
outside = icl.baseline("vote", private=False)
sanitized = {0.0: scores["vote"]}
sanitized |= {target: accuracy(outside, sanitizer.batch(texts)) for target, sanitizer in sanitizers.items()}
for target, score in sanitized.items():
    eta = f"eta {sanitizers[target].calibration().eta:.2f}" if target else "as written"
    print(f"replaced {target:.0%}, {eta:10} {score:.2f} +- {standard_error(score, len(asked)):.2f}")

# %%
figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")


def bars(axes, points: dict[float, float], label: str) -> None:
    """Accuracies with one standard error."""
    errors = [standard_error(score, len(asked)) for score in points.values()]
    axes.errorbar(list(points), list(points.values()), yerr=errors, marker="o", capsize=3, label=label)


bars(left, {each: scores[each] for each in EPSILONS}, "DP-ICL")
left.axhline(scores["vote"], color="grey", linestyle=":", label="vote, no noise")
left.axhline(scores["zero-shot"], color="grey", linestyle="--", label="no examples")
left.set(xlabel="epsilon (delta = 1e-5), for all answers", ylabel=f"accuracy, {len(asked)} messages", ylim=(0, 1.05))
left.set_xscale("log", base=2)
left.set_xticks(EPSILONS, [f"{each:g}" for each in EPSILONS])
left.legend(frameon=False, loc="lower right")
bars(right, sanitized, "RAPT, then the vote")
ticks = [f"{target:.0%}\neta {sanitizers[target].calibration().eta:.1f}" if target else "0%" for target in sanitized]
right.set_xticks(list(sanitized), ticks)
right.set(xlabel="words replaced (and eta: no epsilon)")
right.axhline(0.5, color="grey", linewidth=0.5, label="chance")
right.legend(frameon=False, loc="lower left")
pyplot.show()

# %% [markdown]
# One standard error each way. The two axes have nothing to do with each other: no eta is as private as some epsilon.
#
# ## Which one
#
# | if | then |
# |---|---|
# | examples are private, answers are labels, there is a model that you trust | **DP-ICL** |
# | examples are private, questions may go to a cloud model, and will be many | **DP-OPT** |
# | the question is private, and the model is not yours | **RAPT** |
# | documents are private, and somebody else searches them | **RAPT** on both sides: notebook 3 |
# | examples and questions are private | **DP-ICL** on your own model; or a **DP-OPT** prompt behind **RAPT** |
# | answers are long texts from private examples | none of the three |
# | there are a few dozen examples | none at a small epsilon: `plan()` says so before you pay |
#
# What each asks of you:
#
# - DP-ICL: the number of answers is fixed beforehand, and each takes about ten calls of the model.
# - DP-OPT: hundreds of examples, one run that decides, and a local model that can write.
# - RAPT: a task that survives changed words. A name may come out as itself.
# - A DP-OPT prompt behind RAPT has two promises in two units. They are never added.
#
# Several of them on the same examples share one ledger: notebook 5.

# %%
print(chains[3.0].certificate())
print(sanitizers[0.3].certificate())

# %% [markdown]
# ## What was not protected
#
# - With DP-ICL and DP-OPT: the questions, the number of examples, and the examples from the model that reads them.
# - With RAPT: words that came out as themselves, the number of words, and what context tells about a word. The examples
#   are not protected at all.
# - The comparison itself: it answered the test messages under three budgets, which add up. Choose on public data, or
#   pay for the choice.
# - Times: DP-ICL's answers show how many subsets were asked.

# %%
model.close()
