"""How noisy a sliced objective is on your model and data, and how many projections pay.

The gradient of a batch varies for two reasons: other points could have been drawn, and other
directions. More directions per point (M) lower the second part only, and cost time. At a fixed
budget of time the error of training follows ``time(M) * (data variance + projection variance(M))``,
and the M with the least product is the one to use. `variance_report` measures all three.

Variance due to directions: for every distribution and M the directions are drawn ``repeats`` times
at the same points. The sample variances of the mean loss and of its parameter gradient are
unbiased, the former with a relative standard error of about ``sqrt(2 / (repeats - 1))``, the latter
with less.

Variance due to data, by analysis of variance: the points are cut at random into 32 chunks (fewer if
there are fewer points), each is evaluated with 4 independent draws of independent directions, and
the variance between the chunks' means, less the part that the variance within chunks explains, is
scaled to N points. That of the loss is uncertain by about a quarter, that of the gradient by less.
"""

from scorematching.diagnostics.variance.measure import PROJECTIONS, variance_report
from scorematching.diagnostics.variance.report import VarianceReport, VarianceRow

__all__ = ["PROJECTIONS", "VarianceReport", "VarianceRow", "variance_report"]
