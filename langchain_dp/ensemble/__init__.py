"""Sampling of records into subsets, and isolated calls of members."""
