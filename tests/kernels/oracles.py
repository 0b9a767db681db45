"""Slow kernel estimates: loops over the definitions, without code of the package."""

from __future__ import annotations

import numpy as np
import torch


def rbf(x, y, h):
    return np.exp(-np.sum((x - y) ** 2) / (2 * h**2))


def rbf_grad_y(x, y, h):
    return rbf(x, y, h) * (x - y) / h**2


def imq(x, y, h):
    return 1 / np.sqrt(1 + np.sum((x - y) ** 2) / h**2)


def imq_grad_y(x, y, h):
    return imq(x, y, h) ** 3 * (x - y) / h**2


KERNELS = {"rbf": (rbf, rbf_grad_y), "imq": (imq, imq_grad_y)}


def median_distance(x, include_diagonal=False):
    """The smaller middle distance between two samples; or the (M^2 / 2)-th largest of all."""
    num = len(x)
    if include_diagonal:
        distances = [np.sqrt(np.sum((a - b) ** 2)) for a in x for b in x]
        return sorted(distances, reverse=True)[num**2 // 2 - 1]
    distances = [np.sqrt(np.sum((x[i] - x[j]) ** 2)) for i in range(num) for j in range(i)]
    return sorted(distances)[(len(distances) - 1) // 2]


def stein(x, kernel, h, eta):
    """Scores at samples ``(M, D)``: minus the regularised solution of Stein's identity."""
    k, grad_y = KERNELS[kernel]
    num, dim = x.shape
    K, G = np.zeros((num, num)), np.zeros((num, dim))
    for i in range(num):
        for j in range(num):
            K[i, j] = k(x[i], x[j], h) + eta * (i == j)
            G[i] += grad_y(x[i], x[j], h)
    return -np.linalg.solve(K, G)


def stein_at(x, queries, kernel, h, eta):
    """The same at other points: each is appended to the samples, and the system solved again."""
    return np.stack([stein(np.vstack([x, q]), kernel, h, eta)[-1] for q in queries])


def num_eigen(eigenvalues, mass):
    """Leading eigenvalues whose running share is below ``mass``, at least one."""
    ordered, running, count = sorted(eigenvalues, reverse=True), 0.0, 0
    for value in ordered:
        running += value / sum(ordered)
        count += running < mass
    return max(1, count)


def spectral(x, queries, kernel, h, count):
    """Sum of coefficients times eigenfunctions, each of them written out."""
    k, grad_y = KERNELS[kernel]
    num, dim = x.shape
    K = np.array([[k(a, b, h) for b in x] for a in x])
    eigenvalues, vectors = np.linalg.eigh(K)
    scores = np.zeros((len(queries), dim))
    for j in np.argsort(eigenvalues)[::-1][:count]:
        factor = np.sqrt(num) / eigenvalues[j]
        beta = np.zeros(dim)
        for i in range(num):
            for m in range(
                num
            ):  # k is even in the difference: its gradient in x is minus that in y
                beta += factor * vectors[m, j] * grad_y(x[i], x[m], h) / num
        for n, q in enumerate(queries):
            psi = factor * sum(vectors[m, j] * k(q, x[m], h) for m in range(num))
            scores[n] += beta * psi
    return scores


# Kernel exponential families, from the definition of the loss.


def torch_kernel(kernel, h):
    """``k(x, y)`` of two vectors, as something autograd can differentiate four times."""
    if kernel == "rbf":
        return lambda x, y: torch.exp(-(x - y).square().sum() / (2 * h**2))
    return lambda x, y: (1 + (x - y).square().sum() / h**2) ** -0.5


def derivative(function, position, orders):
    """A partial derivative of ``function(x, y)``: ``orders`` are coordinates of one argument."""
    for i in orders:
        function = _partial(function, position, i)
    return function


def _partial(function, position, i):
    gradient = torch.func.grad(function, argnums=position)
    return lambda x, y: gradient(x, y)[i]


def kernel_exp_family(x, queries, kernel, h, lam, base_score):
    """Scores at the minimum of the regularised loss.

    By the representer theorem the minimum is a combination of ``d_i k(x_a, .)`` and
    ``d_i^2 k(x_a, .)``. The loss is a quadratic form in the coefficients, written out term by term
    and minimised by least squares.
    """
    k, (num, dim) = torch_kernel(kernel, h), x.shape
    orders = [(i,) * n for i in range(dim) for n in (1, 2)]
    elements = [(a, order) for a in range(num) for order in orders]
    places = torch.cat([x, queries])
    table = {
        (p, q): _at_all_pairs(derivative(derivative(k, 0, p), 1, q), x, places)
        for p in orders
        for q in orders
    }

    def value(element, place, order):  # a derivative of an element, at a place
        a, own = element
        return table[own, order][a, place].item()

    # The inner product with an element that is a derivative is that derivative.
    gram = np.array([[value(e, b, order) for b, order in elements] for e in elements])
    quadratic, linear = lam * gram, np.zeros(len(elements))
    for a in range(num):
        for i in range(dim):
            first = np.array([value(e, a, (i,)) for e in elements])
            second = np.array([value(e, a, (i, i)) for e in elements])
            quadratic += np.outer(first, first) / num
            linear += (second + base_score(x[a])[i].item() * first) / num
    weights = -np.linalg.lstsq(quadratic, linear, rcond=1e-14)[0]
    scores = np.stack([base_score(q).numpy() for q in queries])
    for n in range(len(queries)):
        for i in range(dim):
            scores[n, i] += sum(w * value(e, num + n, (i,)) for w, e in zip(weights, elements))
    return scores


def _at_all_pairs(function, x, y):
    over_y = torch.func.vmap(function, (None, 0))
    return torch.func.vmap(over_y, (0, None))(x, y)
