"""The self-check with planted faults: what is deliberately broken, so that the audits can be seen to find it."""
