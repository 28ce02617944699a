"""What the systems share: how records are sampled into subsets, and how members are asked apart."""
