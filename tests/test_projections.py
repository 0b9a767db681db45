"""Distributions of directions: by enumeration where there are finitely many, else by algebra.

For signs v, ``v'Av = tr A + 2 sum_{a<b} A_ab v_a v_b``. A balanced batch is rows of a Hadamard
matrix under common signs, so ``cov(v_i'A_i v_i, v_j'A_j v_j) = -<A_i, A_j> / (K - 1)`` times what
it would be for i = j, the inner product being over off-diagonal entries. Hence, over one block,

    var(mean_i v_i'A_i v_i) = (1 + 1/(K-1)) [iid variance] - (something that is never negative),

which is zero for equal A_i on whole blocks and at worst 1 + 1/(K-1) times that of an iid batch.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import scorematching as sm
from scorematching import projections
from scorematching._directions import split
from tests.contracts import combinations, seeded
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY

LAWS = [sm.Rademacher, sm.Gaussian, sm.Sphere]
OPTIONS = list(itertools.product([False, True], repeat=2))
PROPERTY = hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)


def points(n: int, d: int) -> Tensor:
    return torch.zeros(n, d, dtype=torch.float64)


def draws(law: sm.Projection, trials: int, n: int, d: int, num: int, seed: int) -> Tensor:
    """Independent draws ``(trials, M, N, D)``; in one call where points are independent."""
    generator = seeded(seed)
    if law.balanced or isinstance(law, sm.SplitRademacher):
        return torch.stack([law.sample(points(n, d), num, generator) for _ in range(trials)])
    v = law.sample(points(trials * n, d), num, generator)
    return v.reshape(num, trials, n, d).transpose(0, 1)


def order(d: int) -> int:
    """K: D rounded up to a power of two."""
    return next(
        k for k in itertools.accumulate(itertools.repeat(2), int.__mul__, initial=1) if k >= d
    )


def all_signs(d: int) -> list[tuple[float, ...]]:
    return list(itertools.product([-1.0, 1.0], repeat=d))


def every_draw(
    monkeypatch: pytest.MonkeyPatch, law: sm.Projection, n: int, d: int, num: int = 1
) -> Iterator[Tensor]:
    """``law.sample`` at every outcome of its random numbers, all equally likely: ``(M, N, D)``.

    The outcomes are all sign vectors of one block, with all orders of the K columns; D columns are
    used, so each choice of them comes up equally often.
    """
    signs: Tensor = torch.empty(0)
    keys: Tensor = torch.empty(0)
    monkeypatch.setattr(
        projections, "random_signs", lambda like, shape, g: signs.expand(shape).to(like)
    )
    monkeypatch.setattr(torch, "rand", lambda size, **_: keys[:size])
    for permutation in itertools.permutations(range(order(d))):
        keys = torch.tensor(permutation, dtype=torch.float64)
        for row in all_signs(d):
            signs = torch.tensor(row, dtype=torch.float64)
            yield law.sample(points(n, d), num)


# Rademacher.


@pytest.mark.parametrize(("n", "d"), [(4, 4), (3, 3), (2, 3), (4, 2), (3, 1)])
def test_balanced_rows_are_exactly_uniform(monkeypatch: pytest.MonkeyPatch, n: int, d: int) -> None:
    """Over all outcomes every row is every sign vector equally often."""
    counts = [Counter() for _ in range(n)]
    draws = 0
    for v in every_draw(monkeypatch, sm.Rademacher(), n, d):
        draws += 1
        for i in range(n):
            counts[i][tuple(v[0, i].tolist())] += 1
    assert draws == len(all_signs(d)) * torch.tensor(range(1, order(d) + 1)).prod()
    for row in counts:
        assert row == {signs: draws // 2**d for signs in all_signs(d)}


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 8])
def test_signs_alone_make_rows_uniform(d: int) -> None:
    """For any fixed pattern of the Hadamard matrix, the signs run over everything once."""
    pattern = projections._hadamard(order(d), order(d), torch.arange(d), points(1, 1))
    assert set(pattern.unique().tolist()) <= {-1.0, 1.0}
    for row in pattern:
        runs = {tuple((row * torch.tensor(s, dtype=row.dtype)).tolist()) for s in all_signs(d)}
        assert runs == set(all_signs(d))


@pytest.mark.parametrize("k", [1, 2, 4, 8, 64])
def test_hadamard_matrix_is_orthogonal(k: int) -> None:
    h = projections._hadamard(k, k, torch.arange(k), points(1, 1))
    assert torch.equal(h @ h.T, k * torch.eye(k, dtype=h.dtype))


@pytest.mark.parametrize("d", [3, 4])
def test_least_favourable_products_over_columns(monkeypatch: pytest.MonkeyPatch, d: int) -> None:
    """For rows i != j and coordinates a != b, ``E[v_ia v_ib v_ja v_jb] = -1 / (K - 1)`` exactly."""
    k = order(d)
    v = torch.cat(list(every_draw(monkeypatch, sm.Rademacher(), k, d)))
    for i, j in itertools.combinations(range(k), 2):
        for a, b in itertools.combinations(range(d), 2):
            mean = (v[:, i, a] * v[:, i, b] * v[:, j, a] * v[:, j, b]).mean()
            assert abs(mean + 1 / (k - 1)) < IDENTITY


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 8, 13, 16, 100])
@pytest.mark.parametrize("blocks", [1, 3])
def test_whole_blocks_have_an_exact_second_moment(d: int, blocks: int) -> None:
    """``V'V = N I`` to the last digit wherever N is a multiple of K, whether or not D = K."""
    n = blocks * order(d)
    (v,) = sm.Rademacher().sample(points(n, d), generator=seeded())
    assert torch.equal(v.T @ v, n * torch.eye(d, dtype=v.dtype))
    (iid,) = sm.Rademacher(balanced=False).sample(points(n, d), generator=seeded())
    assert d < 5 or not torch.equal(iid.T @ iid, n * torch.eye(d, dtype=v.dtype))


def symmetric(n: int, d: int, seed: int) -> Tensor:
    a = torch.randn(n, d, d, generator=seeded(seed), dtype=torch.float64)
    return a + a.mT


def variance_iid(a: Tensor) -> float:
    """``var(mean_i v_i'A_i v_i) = 2 sum_i |A_i off diagonal|^2 / N^2`` for independent signs."""
    off = a - torch.diag_embed(a.diagonal(dim1=-2, dim2=-1))
    return float(2 * off.square().sum() / len(a) ** 2)


def variance_balanced(a: Tensor) -> float:
    """The same for one block of a balanced batch, by the formula at the top."""
    off, k = a - torch.diag_embed(a.diagonal(dim1=-2, dim2=-1)), order(a.shape[-1])
    squares, square_of_sum = off.square().sum(), off.sum(0).square().sum()
    return float(2 * ((1 + 1 / (k - 1)) * squares - square_of_sum / (k - 1)) / len(a) ** 2)


def exact_variance(monkeypatch: pytest.MonkeyPatch, law: sm.Projection, a: Tensor) -> float:
    """Variance of ``mean_i v_i'A_i v_i`` over every outcome."""
    n, d, _ = a.shape
    v = torch.cat(list(every_draw(monkeypatch, law, n, d)))
    return float(torch.einsum("tna,nab,tnb->tn", v, a, v).mean(1).var(correction=0))


@pytest.mark.parametrize(("n", "d"), [(4, 4), (4, 3), (3, 3), (2, 4), (2, 2)])
@pytest.mark.parametrize("kind", ["equal", "random", "opposed"])
def test_variance_of_a_balanced_batch(
    monkeypatch: pytest.MonkeyPatch, n: int, d: int, kind: str
) -> None:
    """Enumerated, formula, bound: zero where matrices agree, 1 + 1/(K-1) at the very worst."""
    k, a = order(d), symmetric(n, d, seed=1)
    if kind == "equal":
        a = a[:1].expand(n, d, d)
    if kind == "opposed":
        a = a - a.mean(0)
    variance, iid = exact_variance(monkeypatch, sm.Rademacher(), a), variance_iid(a)
    assert variance == pytest.approx(variance_balanced(a), rel=1e-10, abs=1e-12 * iid)
    assert iid > 0.1 and variance <= (1 + 1 / (k - 1)) * iid * (1 + IDENTITY)
    if kind == "equal" and n == k:
        assert variance < IDENTITY * iid
    if kind == "opposed":
        assert variance == pytest.approx((1 + 1 / (k - 1)) * iid, rel=1e-10)


@pytest.mark.parametrize("balanced", [False, True])
def test_variance_gain_of_the_drawn_batch(balanced: bool) -> None:
    """The enumerated variances, met by the generator: 18 = 8 + 8 + 2 rows, K = 8, D = 6."""
    n, d, trials = 18, 6, 3000
    a = symmetric(1, d, seed=2).expand(n, d, d)
    whole, rest = a[:8], a[:2]
    truth = variance_iid(a)
    if balanced:
        truth = (2 * 8**2 * variance_balanced(whole) + 2**2 * variance_balanced(rest)) / n**2
    v = draws(sm.Rademacher(balanced=balanced), trials, n, d, 1, seed=3)[:, 0]
    means = torch.einsum("tna,nab,tnb->tn", v, a, v).mean(1)
    trace = float(a[0].trace())
    assert_mean(means, trace, detect=truth**0.5)
    assert_mean((means - trace).square(), truth, detect=0.4 * truth)


def test_blocks_are_independent_of_each_other() -> None:
    """Two rows of different blocks agree no more often than chance, whatever the row."""
    v = draws(sm.Rademacher(), 2000, 4, 2, 1, seed=4)[:, 0]
    agreement = (v[:, :2, None] == v[:, None, 2:]).all(-1).double()
    assert_mean(agreement, 0.25, detect=0.1)


@pytest.mark.parametrize("d", [1, 3, 4, 6, 8])
@pytest.mark.parametrize(("orthogonal", "balanced"), OPTIONS)
def test_rademacher_has_signs_only(d: int, orthogonal: bool, balanced: bool) -> None:
    """For every M, below and above D; and orthogonal where D is a power of two."""
    law = sm.Rademacher(orthogonal=orthogonal, balanced=balanced)
    for num in (1, 2, 3, 4, 8, 9):
        v = law.sample(points(5, d), num, seeded())
        assert torch.equal(v.abs(), torch.ones_like(v))
        if orthogonal and d == order(d) and num <= d:
            for i in range(5):
                assert_orthogonal(v[:, i])


@pytest.mark.parametrize(("d", "num"), [(2, 2), (3, 2), (4, 2), (2, 3)])
@pytest.mark.parametrize("orthogonal", [False, True])
def test_every_direction_is_uniform(
    monkeypatch: pytest.MonkeyPatch, d: int, num: int, orthogonal: bool
) -> None:
    """Over all outcomes each of the M directions of a point is every sign vector equally often."""
    law = sm.Rademacher(orthogonal=orthogonal)
    v = torch.stack(list(every_draw(monkeypatch, law, 2, d, num)))
    for i, j in itertools.product(range(2), range(num)):
        counts = Counter(tuple(row) for row in v[:, j, i].tolist())
        assert counts == {signs: len(v) // 2**d for signs in all_signs(d)}


# Signs that are split.


def every_split(monkeypatch: pytest.MonkeyPatch, d: int, num: int, w: Tensor) -> Tensor:
    """`split` at every outcome of its random numbers, all equally likely: ``(T, M, N, D)``."""
    keys: list[Tensor] = []
    monkeypatch.setattr(torch, "rand", lambda size, **_: keys.pop())
    orders = itertools.permutations(range(num)) if d % num else [()]
    found = []
    for columns, order in itertools.product(itertools.permutations(range(d)), orders):
        keys[:] = [torch.tensor(k) for k in (order, columns) if k]
        found.append(split(w, num, None))
        assert not keys
    return torch.stack(found)


SPLITS = [(2, 2), (3, 2), (4, 2), (5, 2), (4, 3), (5, 3), (4, 4)]


@pytest.mark.parametrize(("d", "num"), SPLITS)
def test_split_has_the_right_moments(monkeypatch: pytest.MonkeyPatch, d: int, num: int) -> None:
    """``E[v_j v_j'] = I`` for every j, and the mean over j always has ones on its diagonal."""
    signs = torch.tensor(all_signs(d), dtype=torch.float64)
    v = every_split(monkeypatch, d, num, signs)
    products = torch.einsum("tjna,tjnb->tjnab", v, v)
    assert_relative(products.mean((0, 2)) - torch.eye(d, dtype=torch.float64), 0.0, 1.0)
    assert_relative(products.mean(1).diagonal(dim1=-2, dim2=-1), 1.0, 1.0)


@pytest.mark.parametrize(("d", "num"), SPLITS)
def test_variance_of_split(monkeypatch: pytest.MonkeyPatch, d: int, num: int) -> None:
    """Enumerated: that of one sign vector times the chance that one part has two coordinates.

    It is ``(D - M) / (D - 1) / M`` where M divides D, zero for M = D, and never more than 1 / M.
    """
    signs = torch.tensor(all_signs(d), dtype=torch.float64)
    (a,) = symmetric(1, d, seed=3)
    v = every_split(monkeypatch, d, num, signs)
    values = torch.einsum("tjna,ab,tjnb->tjn", v, a, v).mean(1)
    iid = variance_iid(a[None])
    assert float(values.mean()) == pytest.approx(float(a.trace()), rel=1e-10)
    variance = float(values.var(correction=0))
    sizes = [len(range(j, d, num)) for j in range(num)]
    together = sum(size * (size - 1) for size in sizes) / (d * (d - 1))
    assert variance == pytest.approx(together * iid, rel=1e-10, abs=1e-12 * iid)
    assert together <= 1 / num
    assert d % num or together == pytest.approx((d - num) / (d - 1) / num)


@pytest.mark.parametrize("balanced", [False, True])
def test_variance_of_drawn_splits(balanced: bool) -> None:
    """The same with random draws for a batch of one: D = 6, M = 3."""
    d, num, trials = 6, 3, 4000
    a = symmetric(1, d, seed=4)
    truth = (d - num) / (d - 1) / num * variance_iid(a)
    v = draws(sm.SplitRademacher(balanced=balanced), trials, 1, d, num, seed=5)[:, :, 0]
    values = torch.einsum("tja,ab,tjb->tj", v, a[0], v).mean(1)
    assert_mean(values, float(a[0].trace()), detect=truth**0.5)
    assert_mean((values - a[0].trace()).square(), truth, detect=0.4 * truth)


@pytest.mark.parametrize("num", [2, 4, 8])
def test_split_of_a_balanced_batch(num: int) -> None:
    """``sum_ij v_ij v_ij'`` is a multiple of I to rounding for N a multiple of K, as for M = 1."""
    n = d = 8
    v = sm.SplitRademacher().sample(points(n, d), num, seeded())
    total = torch.einsum("jna,jnb->ab", v, v)
    assert_relative(total - n * num * torch.eye(d, dtype=v.dtype), 0.0, n * num)


@pytest.mark.parametrize("balanced", [False, True])
def test_split_in_one_part_is_rademacher(balanced: bool) -> None:
    """The same numbers for M = 1; for M > D, where there is nothing to split, signs as well."""
    x, law = points(5, 6), sm.SplitRademacher(balanced=balanced)
    signs = sm.Rademacher(balanced=balanced).sample(x, 1, seeded())
    assert torch.equal(law.sample(x, 1, seeded()), signs)
    many = law.sample(x, 7, seeded())
    assert torch.equal(many.abs(), torch.ones_like(many))


def test_draws_of_one_seed() -> None:
    """The order of random draws is part of what users can repeat."""
    x = points(3, 5)
    signs = sm.Rademacher().sample(x, 1, seeded())[0]
    parts = sm.SplitRademacher().sample(x, 2, seeded()) / 2**0.5
    assert signs.int().tolist() == SIGNS
    assert parts.round().int().tolist() == PARTS


SIGNS = [[1, -1, -1, 1, -1], [-1, 1, -1, -1, 1], [-1, -1, 1, -1, -1]]
PARTS = [
    [[1, 0, -1, 0, -1], [-1, 0, -1, 0, 1], [-1, 0, 1, 0, -1]],
    [[0, -1, 0, 1, 0], [0, 1, 0, -1, 0], [0, -1, 0, -1, 0]],
]


# Sphere and Gaussian.


@PROPERTY
@hypothesis.given(
    n=st.integers(1, 6),
    d=st.integers(1, 9),
    num=st.integers(1, 12),
    law=st.sampled_from([law for member in LAWS for law in combinations(member)]),
    seed=st.integers(0, 2**31),
)
def test_form_of_every_draw(n: int, d: int, num: int, law: Any, seed: int) -> None:
    """Shape; support; orthogonality within every block that was promised."""
    v = law.sample(points(n, d), num, generator=seeded(seed))
    assert v.shape == (num, n, d)
    if isinstance(law, sm.Rademacher):
        assert torch.equal(v.abs(), torch.ones_like(v))
    if isinstance(law, sm.Sphere):
        assert_relative(v.square().sum(-1), float(d), d)
    if isinstance(law, sm.Rademacher) and d != order(d):
        return  # orthogonal on average only; the second moment is exact all the same (above)
    if law.orthogonal:
        for i in range(n):
            for block in v[:, i].split(d):
                assert_orthogonal(block)
    assert orthogonal_pairs(v.transpose(0, 1).reshape(-1, d)) >= promised_pairs(law, n, d, num)


@PROPERTY
@hypothesis.given(
    n=st.integers(1, 6),
    d=st.integers(2, 9),
    num=st.integers(2, 9),
    balanced=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_form_of_every_split(n: int, d: int, num: int, balanced: bool, seed: int) -> None:
    """Every coordinate in one direction, for all points the same; sizes differ by one at most."""
    num = min(num, d)
    v = sm.SplitRademacher(balanced=balanced).sample(points(n, d), num, seeded(seed))
    assert_relative(v.square().sum(0), float(num), num)
    mine = v != 0
    assert torch.equal(mine.sum(0), torch.ones(n, d, dtype=torch.long))
    assert bool((mine == mine[:, :1]).all())
    counts = mine[:, 0].sum(-1)
    assert int(counts.max() - counts.min()) <= 1


def promised_pairs(law: sm.Projection, n: int, d: int, num: int) -> int:
    """Orthogonal pairs in a batch, by who shares a block: C(size, 2) for every block."""
    if law.balanced and law.orthogonal:
        together = max(1, d // num)  # points in one block
        groups = [together * num] * (n // together) + [n % together * num]
    elif law.balanced:
        groups = [n * num]
    else:
        groups = [num if law.orthogonal else 1] * n
    sizes = [size for g in groups for size in [*[d] * (g // d), g % d]]
    return sum(size * (size - 1) // 2 for size in sizes)


def orthogonal_pairs(rows: Tensor) -> int:
    unit = rows / rows.norm(dim=-1, keepdim=True)
    return int(((unit @ unit.T).abs() < IDENTITY).triu(1).sum())


def assert_orthogonal(rows: Tensor) -> None:
    gram = rows @ rows.T
    lengths = rows.norm(dim=-1)
    off = (gram - gram.diagonal().diag()) / (lengths[:, None] * lengths)
    assert float(off.abs().max()) < IDENTITY


def assert_relative(value: Tensor, truth: float, scale: float) -> None:
    assert float((value - truth).abs().max()) < IDENTITY * scale


@pytest.mark.parametrize("d", [1, 2, 5, 32])
@pytest.mark.parametrize("blocks", [1, 2])
def test_balanced_sphere_has_an_exact_second_moment(d: int, blocks: int) -> None:
    """A whole orthonormal basis of length sqrt(D): ``V'V = N I`` for N a multiple of D."""
    n = blocks * d
    (v,) = sm.Sphere(balanced=True).sample(points(n, d), generator=seeded())
    assert_relative(v.T @ v - n * torch.eye(d, dtype=v.dtype), 0.0, n)


@pytest.mark.parametrize(
    "law", [law for c in (*LAWS, sm.SplitRademacher) for law in combinations(c)], ids=repr
)
def test_options_leave_the_distribution_of_one_direction(law: sm.Projection) -> None:
    """Fourth moments of the first and the last direction of a batch, which differ by class.

    ``E[v_a^4]`` is 1 for signs, 3 for normals, ``3 D / (D + 2)`` on the sphere; ``E[v_a^2 v_b^2]``
    is 1, 1 and ``D / (D + 2)``. Signs split among M directions have M, and M^2 times the chance of
    1/6 that a direction has both of two coordinates out of three.
    """
    d, num = 3, 2
    fourth, mixed = {
        sm.Rademacher: (1.0, 1.0),
        sm.SplitRademacher: (2.0, 4 / 6),
        sm.Gaussian: (3.0, 1.0),
        sm.Sphere: (3 * d / (d + 2), d / (d + 2)),
    }[type(law)]
    v = draws(law, 5000, 2, d, num, seed=7)
    v = torch.stack([v[:, 0, 0], v[:, -1, -1]], 1)
    moments = torch.stack([v[..., 0] ** 4, v[..., 0] ** 2 * v[..., 1] ** 2], -1)
    odd = torch.cat([v, v**3], -1)
    assert_mean(moments, torch.tensor([fourth, mixed]).expand(2, 2), detect=[[1.4, 0.4]] * 2)
    assert_mean(odd, 0.0, detect=0.6)


@pytest.mark.parametrize("options", [(True, False), (False, True), (True, True)])
def test_orthogonal_gaussian_keeps_its_length(options: tuple[bool, bool]) -> None:
    """``|v|^2`` is chi-squared: mean D, variance 2 D; on the sphere it would not vary at all."""
    d = 4
    squared = draws(sm.Gaussian(*options), 3000, 2, d, 2, seed=8).square().sum(-1)
    assert_mean(squared, d, detect=0.5)
    assert_mean((squared - d).square(), 2 * d, detect=4.0)
    lengths = squared.flatten(1)
    products = (lengths[:, :1] - d) * (lengths[:, 1:] - d)
    assert_mean(products, 0.0, detect=2.0)  # independent of each other


def test_haar_directions_have_no_preferred_sign() -> None:
    """QR without its sign correction prefers a half-space; odd moments of one entry show it."""
    d = 3
    v = draws(sm.Sphere(orthogonal=True), 2400, 1, d, d, seed=9)
    assert_mean(v.reshape(-1, d * d), 0.0, detect=0.2)
    z = torch.randn(2400, d, d, generator=seeded(9), dtype=torch.float64)
    planted = torch.linalg.qr(z).Q.mT.reshape(-1, d * d) * d**0.5
    with pytest.raises(AssertionError, match="differs from 0"):
        assert_mean(planted, 0.0, detect=0.2)


# Mistakes that these tests reject.


def test_unit_sphere_is_rejected() -> None:
    """Radius one instead of sqrt(D) gives ``E[v v'] = I / D``."""
    d, n = 4, 3000
    (v,) = sm.Sphere().sample(points(n, d), generator=seeded(10))
    products = v[:, :, None] * v[:, None, :]
    assert_mean(products, torch.eye(d), detect=0.25)
    with pytest.raises(AssertionError, match="differs from 1"):
        assert_mean(products / d, torch.eye(d), detect=0.25)


def test_fixed_columns_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """With columns 0 to D - 1 rows 0 and 1 agree on the pair (0, 2): twice the variance."""
    a = torch.zeros(2, 3, 3, dtype=torch.float64)
    a[:, 0, 2] = a[:, 2, 0] = 1.0
    signs = torch.tensor(all_signs(3), dtype=torch.float64)
    pattern = projections._hadamard(2, 4, torch.arange(3), points(1, 1))
    v = signs[:, None] * pattern
    fixed = float(torch.einsum("tna,nab,tnb->tn", v, a, v).mean(1).var(correction=0))
    assert fixed == pytest.approx(2 * variance_iid(a))
    assert exact_variance(monkeypatch, sm.Rademacher(), a) <= (1 + 1 / 3) * variance_iid(a)
