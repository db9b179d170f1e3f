"""Network modules: structure only. Parameters are passed in through ``functional_call``."""
