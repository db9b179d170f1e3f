"""Estimators of the gradient of the rule from a window of updates, one in each file.

``plain`` keeps the graph of all updates. ``recompute`` and ``mixed`` run them without one, keep the
state before each, and go back one update at a time: the memory of one update, for the time of about
one more pass. ``recompute`` rebuilds the graph of the update, ``mixed`` only that of its parts. All
three give the same gradient, that of the meta-loss. ``imitation`` is the gradient of a warm start
instead.
"""
