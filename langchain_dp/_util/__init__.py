"""Small parts that know nothing of privacy or models."""
