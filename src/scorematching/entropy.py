"""The entropy of an implicit distribution, by its gradient.

An implicit distribution can be sampled, but its density is unknown: ``z = g(eps)`` with eps of a
known distribution. Its entropy H has no formula, but the gradient of H in the parameters of g has
one, if the score ``s(z) = grad_z log q(z)`` is known or estimated:

    grad H = -E[ s(z) . dz/dtheta ].

(The other term of the chain rule, ``E[grad_theta log q(z)]`` at fixed z, is zero.) For a
conditional distribution ``q(z | x)``, such as the encoder of an auto-encoder, the score is the
gradient in z, which is drawn, never in the condition x.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from scorematching._checks import check_batch, check_count, check_shape, check_type
from scorematching._shapes import inner

Score = Tensor | Callable[[Tensor], Tensor]
"""Scores at given points, of their shape, or a function that returns scores of points."""


def entropy_surrogate(z: Tensor, score: Score, event_axes: int = 1) -> Tensor:
    """A number whose gradient is that of minus the entropy of the distribution of z.

    ``mean( stop_grad(score(z)) . z )``. Added to a loss it is the term ``E[log q(z)]`` as far as
    gradients go; its value has no meaning. Minimising it spreads z out.

    Args:
        z: points with their graph, ``(*leading, *event)``: drawn by a map of noise whose
            parameters are to be trained. Often ``(N, D)``, or ``(N, M, D)`` for M draws from
            each of N distributions.
        score: the score of q in z: a function, called with z without gradients, or its values at
            z, of the shape of z. Where q is conditional, ``q(z | x)``, the derivative is still the
            one in z, and x comes in by closure: ``lambda z: network(z, x)``.
        event_axes: number of trailing axes that make one point.

    Reference: Song et al. (2019), Section 2.2; Li and Turner (2018).

    Example:
        The entropy of a normal distribution grows with the logarithm of its scale.

        >>> log_scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
        >>> eps = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)  # of variance one
        >>> z = log_scale.exp() * eps
        >>> entropy_surrogate(z, lambda z: -z).backward()
        >>> log_scale.grad.item()  # of minus the entropy
        -1.0
    """
    return entropy_terms(z, score, event_axes).mean()


def entropy_terms(z: Tensor, score: Score, event_axes: int = 1) -> Tensor:
    """The surrogate of every point, ``stop_grad(score(z)) . z: (*leading, *event) -> (*leading)``.

    Its mean is `entropy_surrogate`, which documents the arguments.

    Example:
        >>> entropy_terms(torch.ones(2, 5, 3), lambda z: -z).shape
        torch.Size([2, 5])
    """
    check_batch(z, "z")
    check_count(event_axes, "event_axes", "points that are vectors have one axis")
    if event_axes >= z.ndim:
        raise ValueError(
            f"event_axes must be less than the number of axes of z, got {event_axes} for shape "
            f"{tuple(z.shape)}; it counts the axes of one point, without that of the batch"
        )
    if not isinstance(score, Tensor):
        advice = "give the scores at z, or lambda z: network(z, x)"
        check_type(score, Callable, "score must be a tensor or a function of z", advice)
        with torch.no_grad():
            score = score(z.detach().clone())  # a score may change its points in place
    wanted = "score must give one number per coordinate of z, shape {}"
    check_shape(score, z.shape, wanted, "it is the gradient in z, not in what z depends on")
    return inner(score.detach(), z, event_axes)
