"""Golden vectors of the JAX reference, and their replay through discorl (README.md)."""
