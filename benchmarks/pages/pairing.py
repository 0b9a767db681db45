"""The part of the benchmark page that derives why pairing is cheaper, and counts products."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from benchmarks.harness.tables import markdown_table

NUMS = (1, 4, 16)
METHODS = {
    "DSM": ("bare", "DSM", "1 + 1", lambda num: 2),
    "SSM-VR, double backward, x tiled": ("bare", "SSM-VR", "4 M", lambda num: 4 * num),
    "SSM-VR, double backward, first gradient shared": (
        "ebmkit",
        "SSM-VR",
        "1 + 1 + 2 M",
        lambda num: 2 + 2 * num,
    ),
    "SSM-VR, pairing": ("ours", "SSM-VR", "1 + M + 1", lambda num: 2 + num),
}
"""Library, objective, and passes in the graph of the loss as a formula and as a function of M."""

WHY = """\
# Benchmarks

`benchmarks/` times this library against torchebm 0.8.9,
ebmkit 0.16.0 and nested `torch.autograd.grad` written by
hand. First why it is faster, then by how much.

## Why pairing is cheaper

![A chain of operations, tangents above it and adjoints below](img/pairing.png)

Sliced score matching needs `v'Hv`, the second derivative of a log-density f along a direction v.
The usual way is to differentiate twice in reverse, on a batch repeated M times. Pairing is another.

**The identity.** Let f be a chain of operations, `z_0 = x`, `z_i = phi_i(z_{i-1})`, `f = z_n`.
Move x along v, `x + e v`, and differentiate every `z_i` in e, once and twice:

    u_i = phi_i' u_{i-1}                                 u_0 = v      (the tangents)
    a_i = phi_i' a_{i-1} + phi_i''[u_{i-1}, u_{i-1}]     a_0 = 0      and a_n = v'Hv

The second line is linear in a, with a term added at every operation. The term added to `a_i`
reaches the end multiplied by all later derivatives. That product is the adjoint
`lambda_i = df/dz_i`, which the reverse pass for the score `s = df/dx` computes anyway. Summing
the terms:

    v'Hv = sum_i <lambda_i, phi_i''[u_{i-1}, u_{i-1}]>

A linear operation has `phi'' = 0` and adds nothing. A softplus adds `lambda sigma''(z) u^2`, a
product of two values `2 lambda u_a u_b`. No derivative is differentiated again. Only the tangents
depend on the direction, so for M directions the *same* adjoint is paired with `mean_j u_j^2`. With
the D basis vectors for directions the sum is the exact trace.

**Counting matrix products.** Nearly all the time goes into products with the weights of the
layers. Take as a unit one pass, N points through every layer once, whether forward or backward.

- *DSM* builds a forward pass and a reverse pass (the score): 2.
- *Double backward* builds those two, then differentiates `v.s` in x. That leads back through the
  reverse pass (one more) and through the forward pass (one more): 4 for each direction, on x
  tiled M times. If the first two are shared between directions, 2 + 2 M.
- *Pairing* builds a forward pass, M tangents and a reverse pass: 2 + M.

In training, every product `Y = X W'` in the graph costs two more, one for the gradient in X and one
for that in W. So the ratios of passes built are the ratios of whole steps:
"""

LIMITS = """\
The column by size leaves out products that are not needed: those for a gradient in v, one of the
three products of every tangent with the first layer, and for pairing those for a gradient in x.
Writing P for the size of all weights and F for that of the first layer's, a step costs 6 P
multiplications per point by hand-written DSM, 6 P - F + M (3 P - F) by pairing, 6 P + M (6 P - F)
by shared and M (12 P - F) by tiled double backward; a test counts them.

Of the M (3 P - F) of pairing, 2 M F are the first layer's, and directions can be drawn so that 2 F
are left. The loss reads the directions of a point only through the mean of `v_j v_j'`. Let them
share out one vector of signs, each with its own M-th part of the coordinates, times sqrt(M), and
zeros elsewhere: that mean has expectation I as before, its variance is never above that of
independent signs (`(D - M) / (D - 1)` times it where M divides D), and every direction meets its
own columns of the first layer alone. `SplitRademacher`, the default, draws such directions.

Two costs are in no column: elementwise work (softplus and its derivatives), and tracing a model in
Python, which does not depend on the size of its layers: for networks of a few units, on a CPU,
double backward is faster.

For score networks there is no reverse pass in x: pairing builds 1 + M passes and tiled double
backward 2 M, against 1 for DSM.
"""


FLOORS = """\
What the matrix products alone allow, by the formulas above, for D = 100 and D = 784: M = 1 at
{one[0]:.2f} and {one[1]:.2f} of torchebm's time, M = 5 at {five[0]:.2f} and {five[1]:.2f} times
its speed. Elementwise work and Python come on top; compiled steps avoid most of that.
"""


def explanation(cpu: dict[str, Any]) -> list[str]:
    """The derivation, the table of counted and measured ratios, and what they leave out."""
    return [WHY, counting(cpu), LIMITS]


def floors() -> str:
    """What the matrix products alone allow."""
    tiled, pairing = "x tiled", "pairing"
    networks = ("mlp100", "mlp784")
    return FLOORS.format(
        one=[multiplications(n, pairing, 1) / multiplications(n, tiled, 1) for n in networks],
        five=[multiplications(n, tiled, 5) / multiplications(n, pairing, 5) for n in networks],
    )


def counting(cpu: dict[str, Any]) -> str:
    """Counted and measured ratios to DSM, side by side."""
    model = "mlp784"
    unit = multiplications(model, "DSM", 1)
    rows = []
    for method, (library, objective, formula, built) in METHODS.items():
        found = [
            _find(cpu, model, library, objective, 0 if objective == "DSM" else num) for num in NUMS
        ]
        passes = [f"{built(num) / 2:g}" for num in NUMS]
        sizes = [f"{multiplications(model, method, num) / unit:.2g}" for num in NUMS]
        cells = [passes, sizes, map(_ratio_of, found)]
        rows.append([method, formula, *[" / ".join(cell) for cell in cells]])
    return (
        markdown_table(
            [
                "step, M = 1 / 4 / 16",
                "passes built",
                "passes, x DSM",
                "by size of the layers, x DSM",
                "measured, x DSM",
            ],
            rows,
        )
        + f"\nMeasured on {_about(cpu, model)}; by size, too, for 784 inputs and 3 layers of 256.\n"
    )


def multiplications(model: str, method: str, num: int) -> int:
    """Multiplications per point in the matrix products of one step of a network."""
    widths = [100 if model == "mlp100" else 784, 256, 256, 256, 1]
    sizes = [a * b for a, b in pairwise(widths)]
    total, first = sum(sizes), sizes[0]
    direction = {"tiled": 12, "shared": 6, "pairing": 3}
    if method == "DSM":
        return 6 * total
    kind = next(kind for kind in direction if kind in method)
    shared = {"tiled": 0, "shared": 6 * total, "pairing": 6 * total - first}[kind]
    each = direction[kind] * total - first
    if kind == "pairing" and num > 1:  # directions that share the coordinates out between them
        return shared + num * (each - 2 * first) + 2 * first
    return shared + num * each


def _find(
    document: dict[str, Any], model: str, library: str, objective: str, num: int
) -> dict[str, Any] | None:
    for row in document["rows"]:
        key = (row["suite"], row["model"], row["library"], row["objective"], row["num"])
        if key == ("objectives", model, library, objective, num):
            found: dict[str, Any] = row
            return found
    return None


def _ratio_of(row: dict[str, Any] | None) -> str:
    return "-" if row is None else f"{row['ratio_dsm']:.2g}"


def _about(document: dict[str, Any], model: str) -> str:
    return next((r["about"] for r in document["rows"] if r["model"] == model), model)
