"""Shared by the systems: sampling of records into subsets, and separate calls of members."""
