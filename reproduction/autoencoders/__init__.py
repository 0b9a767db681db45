"""Variational and Wasserstein auto-encoders on MNIST and CelebA (Section 6.2, Tables 2 and 3)."""
