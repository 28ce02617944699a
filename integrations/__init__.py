"""Adapters between langchain_dp's ports and the model libraries. One third party a file, imported inside.

Nothing is imported here: ``from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble`` loads what it needs.
"""
