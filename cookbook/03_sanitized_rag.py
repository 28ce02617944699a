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
# patients wrote, or that the staff search for. Every word of both is drawn again before it leaves. At the setting below
# seven in ten stay as they are, so the texts remain useful and readable.
#
# It runs on this machine: invented messages to a clinic, GloVe word vectors, and a small embedded chat model in place
# of the one in the cloud.

# %%
import os

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_dp.integrations.llama_cpp import ChatLlamaCpp

from langchain_dp import RAPTSanitizer, SanitizingRetriever, private_run
from langchain_dp.accounting import MetricLedger
from langchain_dp.aggregate import StaticEncoder
from langchain_dp.rapt import DocumentRules, load
from langchain_dp.sample import load as load_sample

FULL = os.environ.get("COOKBOOK") == "full"
messages = [row["text"] for row in load_sample()[0]][: 640 if FULL else 120]
documents = [Document(text, id=str(number)) for number, text in enumerate(messages)]
len(documents), messages[0]

# %% [markdown]
# ## Sanitize the documents
#
# `target_replacement` sets how often a word is replaced. The sanitizer finds the eta for it, and charges each
# document's account in the ledger. A document that is released again stays the same.

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
# Any embedding model works. This one is the package's own, 19 MB of word vectors. The store gets released documents
# only.

# %%
embeddings = StaticEncoder()
store = InMemoryVectorStore(embeddings)
store.add_documents(released)
retriever = SanitizingRetriever(retriever=store.as_retriever(search_kwargs={"k": 4}), sanitizer=sanitizer)

question = "Who complains that nobody washed their hands?"
for document in retriever.invoke(question):
    print(document.id, document.page_content)

# %% [markdown]
# The store saw a sanitized query. It is kept, so the same question costs nothing and shows nothing new:

# %%
print(sanitizer.invoke(question))

# %% [markdown]
# ## In front of a chat model
#
# Retriever, prompt and model compose as always. The model reads the sanitized question. `private_run` keeps the raw
# question from tracers, which see the input of every chain.

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
# ## The cost in search
#
# The clear question finds four messages among the clear texts. Count those that the sanitized question finds among the
# sanitized texts. Chance is 4 in the number of messages.

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
# ## The promise
#
# Metric privacy counts in eta times distance, and is no epsilon.

# %%
print(sanitizer.certificate())

# %% [markdown]
# ## What was not protected
#
# - Every word that stayed, names among them: seven in ten. Nobody outside can be certain of one, but the context often
#   shows it.
# - The number of documents, and of words in each.
# - Guesses by an attacker who knows the language. The calibration above gives the rate for one word alone. Words in
#   context reveal more.
# - Equal questions, since the kept release is sent again.
# - The documents behind an answer, which the operator of the store sees.

# %%
model.close()
