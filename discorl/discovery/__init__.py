"""Discovery: from a configuration to a rule found by meta-gradients."""
