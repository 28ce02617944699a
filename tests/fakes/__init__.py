"""Test doubles that run on this machine only: servers on loopback, models, caches, and the canary."""
