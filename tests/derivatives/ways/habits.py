"""What models do beside calling operations: branches, custom functions, distributions, wrappers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributions as D
from torch.nn import functional as F

from tests.derivatives.ways.base import EVEN, Way, constants


def without_gradient(z: Any, p: Any) -> Any:
    with torch.no_grad():
        scale = z.square().sum(-1, keepdim=True)
    return z * p(3) / (1 + scale)


class Cube(torch.autograd.Function):
    """A custom autograd function."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return z**3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return 3 * z**2 * grads[0]


def branch(z: Any, p: Any) -> Any:
    return torch.sin(z * p(3)) if float(z.detach().square().sum()) > -1 else z


def only_tensors(z: Any, p: Any) -> Any:
    if not isinstance(z, Tensor) or not torch.is_tensor(z):
        raise TypeError("tensors only")
    return z * p(3)


def recomputed(z: Any, p: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(
        lambda h: torch.sin(h * p(3)).square(), z, use_reentrant=False
    )


def parallel_heads(z: Any, p: Any) -> Any:
    parts = [torch.sin(part) @ p(1, 2, k=i) for i, part in enumerate(z.split(1, dim=1))]
    return sum(parts) / len(parts)


def rearranged(z: Any, p: Any) -> Any:
    """What einops does for "b (h w) c -> b c h w"."""
    n, length, channels = tuple(z.size())
    h = torch.as_tensor(z).view(n, 2, length // 2, channels) if z.is_contiguous() else z
    return h.permute((0, 3, 1, 2)).reshape((n, channels, length)) * p(3, 1)


def mixture(z: Any, p: Any) -> Any:
    parts = D.Independent(D.Normal(p(4, 3), p(4, 3, k=1).exp()), 1)
    return D.MixtureSameFamily(D.Categorical(logits=p(4)), parts).log_prob(z)


def multivariate(z: Any, p: Any) -> Any:
    scale = torch.eye(3, dtype=torch.float64) + 0.3 * p(3, 3).tril()
    return D.MultivariateNormal(p(3), scale_tril=scale).log_prob(z)


def transformed(z: Any, p: Any) -> Any:
    base = D.Normal(torch.zeros(3, dtype=torch.float64), 1.0)
    flow = [D.AffineTransform(p(3), p(3, k=1).exp()), D.TanhTransform(), D.SigmoidTransform()]
    y = 0.6 + 0.05 * torch.sin(z)  # inside the support, which is an interval
    return D.TransformedDistribution(base, flow[::2]).log_prob(y)


def functional(z: Any, p: Any) -> Any:
    net = p.net("functional", lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh()))
    parameters = {name: 2 * value for name, value in net.named_parameters()}
    return torch.func.functional_call(net, parameters, (z,))


def vmapped(z: Any, p: Any) -> Any:
    weight = p(3)
    return torch.func.vmap(lambda row: torch.sin(row * weight))(z)


def precision_inside(z: Any, p: Any) -> Any:
    h = z.float()
    return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)).to(z.dtype) * p(3)


HABITS = [
    Way("custom function", lambda z, p: Cube.apply(z * p(3)), traced=False),
    Way("no_grad inside", without_gradient, kinked=True),
    Way("detach inside", lambda z, p: z * torch.sin(z.detach() * p(3)), kinked=True),
    Way("data inside", lambda z, p: z * torch.sin(z.data * p(3)), kinked=True),
    Way("branch on a value", branch),
    Way("tensors only", only_tensors),
    Way(
        "another branch for other types",
        lambda z, p: z * p(3) if isinstance(z, Tensor) else torch.sin(z),
    ),
    Way("checkpoint", recomputed),
    Way("iteration over columns", lambda z, p: sum(torch.sin(c) * p(3)[0] for c in z.T)),
    Way("iteration over rows", lambda z, p: torch.stack([torch.sin(r) * p(3) for r in z])),
    Way("shape of x", lambda z, p: z * p(3) / z.shape[1] + z.size(-1) + z.ndim + z.dim()),
    Way("ndimension", lambda z, p: z * p(3) * z.ndimension() + z.numel() / len(z)),
    Way("zeros_like", lambda z, p: torch.zeros_like(z) + z * torch.ones_like(z) * p(3)),
    Way("new_zeros", lambda z, p: torch.cat([z.new_zeros(len(z), 1), z * p(3)], 1)),
    Way("new_tensor", lambda z, p: z * p(3) + z.new_tensor([1.0, 2.0, 3.0])),
    Way("comparison as a number", lambda z, p: z * (z > 5).double() + torch.sin(z) * p(3)),
    Way("parallel heads", parallel_heads),
    Way("as_tensor", lambda z, p: torch.as_tensor(z) * p(3)),
    Way("constant.to(x)", lambda z, p: z * torch.ones(3).to(z) * p(3)),
    Way("constant.type_as(x)", lambda z, p: z * EVEN.type_as(z) * p(3)),
    Way("requires_grad_", lambda z, p: (z * 1).requires_grad_() * p(3)),
    Way("rearranged axes", rearranged, event=(4, 3)),
    Way("Normal of x", lambda z, p: D.Normal(p(3), p(3, k=1).exp()).log_prob(z)),
    Way("Normal around x", lambda z, p: D.Normal(z, torch.exp(z)).log_prob(p(3))),
    Way("MultivariateNormal", multivariate),
    Way("MixtureSameFamily", mixture),
    Way("TransformedDistribution", transformed),
    Way("StudentT", lambda z, p: D.StudentT(3.0, p(3), 1.0).log_prob(z)),
    Way("Gamma", lambda z, p: D.Gamma(p(3).exp(), 1.0).log_prob(z.exp())),
    Way("Gamma of rates", lambda z, p: D.Gamma(z.exp(), 1.0).log_prob(p(3).exp())),
    Way("Beta", lambda z, p: D.Beta(2.0, 3.0).log_prob(torch.sigmoid(z * p(3)))),
    Way("Dirichlet", lambda z, p: D.Dirichlet(p(3).exp()).log_prob(torch.softmax(z, 1))),
    Way("LogNormal", lambda z, p: D.LogNormal(p(3), 1.0).log_prob(z.exp())),
    Way("Categorical", lambda z, p: D.Categorical(logits=z * p(3)).log_prob(torch.tensor(1))),
    Way("Bernoulli", lambda z, p: D.Bernoulli(logits=z * p(3)).log_prob(torch.ones(3).double())),
    Way("VonMises", lambda z, p: D.VonMises(p(3), 2.0).log_prob(z)),
    Way(
        "kl_divergence",
        lambda z, p: D.kl_divergence(D.Normal(z, torch.exp(0.3 * z)), D.Normal(p(3), 1.0)),
    ),
    Way("functional_call", functional),
    Way("vmap", vmapped, traced=False),
    Way("precision inside", precision_inside, tolerance=1e-5),
    Way(
        "linear combination of losses",
        lambda z, p: (
            F.mse_loss(z, constants(3).expand_as(z), reduction="none")
            + F.mse_loss(z * p(3), torch.sin(z), reduction="none")
        ),
    ),
]
