"""Tasks on tensors: pure, batched, every parameter drawable."""
