"""Deep kernel exponential families: UCI tables and scaling with the dimension (Section 5.1)."""
