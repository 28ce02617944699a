"""Adapters between langchain_dp's ports and the model libraries. Third parties are imported on use."""
