"""Pure tensor maths: no state, no configuration."""
