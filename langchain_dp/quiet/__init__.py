"""Model calls that leave no trace, and ``private_run`` for a whole chain.

``model`` asks, ``calls`` asks many at once, ``context`` seals a call, ``filters`` and ``tasks`` keep what goes wrong
inside quiet, ``copy`` and ``reach`` look at the model itself, ``run`` is the seal around a whole chain.
"""
