"""Normalising constants: importance sampling, annealed importance sampling, decoders."""
