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
# # 3. Retrieval over sanitized documents
#
# **Who is kept from what.** A vector store and a chat model outside the building must not be certain of any word that
# patients wrote, or that the staff search for. Every word of both is drawn anew before it leaves; at the setting below
# seven in ten come out unchanged, so that the texts stay of use, and readable.
#
# Runs on this machine alone: invented messages to a clinic, GloVe word vectors, and a small embedded chat model that
# stands for the one in the cloud.

# %%
import os

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_dp.integrations.llama_cpp import ChatLlamaCpp

from langchain_dp import RAPTSanitizer, SanitizingRetriever, private_run
from langchain_dp.accounting import MetricLedger
from langchain_dp.rapt import DocumentRules, load
from langchain_dp.sample import load as load_sample

FULL = os.environ.get("COOKBOOK") == "full"
messages = [row["text"] for row in load_sample()[0]][: 640 if FULL else 120]
documents = [Document(text, id=str(number)) for number, text in enumerate(messages)]
len(documents), messages[0]

# %% [markdown]
# ## What leaves
#
# `target_replacement` says how often a word comes out as another one. The sanitizer finds the eta for it, and charges
# each document's account in the ledger; a document that is released again is given out as it was.

# %%
ledger = MetricLedger()
vocabulary = load("glove")
by_id = DocumentRules(document_key="id", metadata_keep=["id"])
sanitizer = RAPTSanitizer(vocabulary, target_replacement=0.3, documents=by_id, ledger=ledger)
released = sanitizer.transform_documents(documents)
for before, after in list(zip(documents, released, strict=True))[:3]:
    print(f"inside   {before.page_content}\noutside  {after.page_content}\n")

# %%
print(sanitizer.calibration())

# %% [markdown]
# ## A vector store outside
#
# Any embedding model will do; here a text's vector is the mean of its words' vectors. The store gets the released
# documents and nothing else.


# %%
class MeanOfWords(Embeddings):
    """The mean of the word vectors of a text, less that of the whole table, at unit length."""

    def __init__(self, words: list[str], vectors: np.ndarray) -> None:
        self._rows = {word: row for row, word in enumerate(words)}
        self._vectors = vectors
        self._mean = np.asarray(vectors[:20_000], dtype=np.float64).mean(axis=0)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        words = text.lower().replace(".", " ").replace(",", " ").split()
        rows = [self._rows[word] for word in words if word in self._rows]
        mean = (self._vectors[rows].mean(axis=0) if rows else self._mean) - self._mean
        return list(map(float, mean / (np.linalg.norm(mean) or 1.0)))


embeddings = MeanOfWords(list(vocabulary.words), np.asarray(vocabulary.vectors))
store = InMemoryVectorStore(embeddings)
store.add_documents(released)
retriever = SanitizingRetriever(retriever=store.as_retriever(search_kwargs={"k": 4}), sanitizer=sanitizer)

question = "Who complains that nobody washed their hands?"
for document in retriever.invoke(question):
    print(document.id, document.page_content)

# %% [markdown]
# The store saw a sanitized query. The one above is kept, so that asking again costs nothing and shows nothing new:

# %%
print(sanitizer.invoke(question))

# %% [markdown]
# ## In front of a chat model
#
# Retriever, prompt and model compose as always. `private_run` keeps the question itself from tracers, which see the
# raw input of a chain whatever its parts do. The question goes to the model as the sanitizer released it.

# %%
prompt = ChatPromptTemplate.from_template(
    "Messages to a clinic:\n{context}\n\nIn one sentence, what do they say about this: {question}"
)


def join(found: list[Document]) -> str:
    """One line a document."""
    return "\n".join(f"- {document.page_content}" for document in found)


model = ChatLlamaCpp(max_tokens=60, temperature=0.0)
chain = {"context": retriever | join, "question": sanitizer} | prompt | model | StrOutputParser()
with private_run():
    print(chain.invoke(question))

# %% [markdown]
# ## What it costs in search
#
# Of the four messages that the clear question finds among the clear texts, how many does the sanitized question find
# among the sanitized ones? Chance is 4 in the number of messages.

# %%
clear = InMemoryVectorStore(embeddings)
clear.add_documents(documents)
questions = [
    "Who thanks a nurse?",
    "Was the food cold?",
    "Is there a complaint about parking?",
    "Did someone wait too long in the emergency room?",
    "What do patients say about operations?",
    "Was a letter sent to the wrong address?",
    "Who praises the physiotherapist?",
    "Are there problems with medicines?",
]
wanted = [{found.id for found in clear.similarity_search(each, k=4)} for each in questions]
for target in (0.1, 0.3, 0.5):
    other = RAPTSanitizer(vocabulary, target_replacement=target, documents=by_id)
    noisy = InMemoryVectorStore(embeddings)
    noisy.add_documents(other.transform_documents(documents))
    search = SanitizingRetriever(retriever=noisy.as_retriever(search_kwargs={"k": 4}), sanitizer=other)
    found = [{document.id for document in search.invoke(each)} for each in questions]
    kept = [len(want & got) for want, got in zip(wanted, found, strict=True)]
    print(f"replaced {target:.0%}: {sum(kept)} of {4 * len(kept)} found again")

# %% [markdown]
# ## Which promise
#
# Metric privacy counts in eta times distance, and is no epsilon.

# %%
print(sanitizer.certificate())

# %% [markdown]
# ## What was not protected
#
# - Every word that came out as itself, names among them: at 30% that is seven in ten. Nobody outside can be certain
#   which, but the context often shows it.
# - How many words a text has, and how many documents there are.
# - What an attacker who knows the language can guess back: the calibration above gives the rate for one word on its
#   own; words in context give away more.
# - That two identical questions were the same: the kept release is given out again.
# - Which documents the answer rests on, from whoever runs the store.

# %%
model.close()
