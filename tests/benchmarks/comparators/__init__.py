"""Other ways to the same ends, small and for comparison only: no part of the package."""
