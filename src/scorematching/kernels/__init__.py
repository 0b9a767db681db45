"""Kernels of the distance, and estimates of scores with them: functions on batches of tensors.

============================  ========================================================
``fit_stein``                 ridge regression on Stein's identity
``fit_spectral``              an expansion in eigenfunctions of the kernel
``fit_kernel_exp_family``     score matching in the space of the kernel, linear equations
``fit_nu_method``             the same by iteration
============================  ========================================================

Samples are ``(*B, M, D)``: B sets of M points, estimated independently in one call. What a fit
returns has ``score(x)`` for any points and ``at_samples()``.
"""

from scorematching.kernels.bandwidth import KERNELS, kernel_for, median_bandwidth
from scorematching.kernels.base import KernelScore
from scorematching.kernels.distances import in_chunks, squared_distances
from scorematching.kernels.exp_family import KernelExpFamily
from scorematching.kernels.nu_method import fit_nu_method
from scorematching.kernels.radial import IMQ, RBF, Kernel, Radial
from scorematching.kernels.spectral import SpectralScore, fit_spectral
from scorematching.kernels.stein import SteinScore, fit_stein
from scorematching.kernels.tikhonov import fit_kernel_exp_family

__all__ = [
    "IMQ",
    "KERNELS",
    "RBF",
    "Kernel",
    "KernelExpFamily",
    "KernelScore",
    "Radial",
    "SpectralScore",
    "SteinScore",
    "fit_kernel_exp_family",
    "fit_nu_method",
    "fit_spectral",
    "fit_stein",
    "in_chunks",
    "kernel_for",
    "median_bandwidth",
    "squared_distances",
]
