"""Distances between sets of images: the Frechet distance, the kernel distance, Inception."""
