"""Discovery: differentiating through agents' updates with respect to the rule that made them."""
