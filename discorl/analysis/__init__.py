"""What a rule does: the analyses of the paper, for any rule and any run."""
