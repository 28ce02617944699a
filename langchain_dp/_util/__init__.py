"""Small parts that know nothing of privacy or models: checks of values, locks that survive a fork, files, numbers."""
