"""How noisy a sliced objective is on your model and data, and how many projections pay.

The gradient of a batch varies for two reasons: other points could have been drawn, and other
directions. More directions per point (M) lower the second part only, and cost time. At a fixed
budget of time the error of training follows ``time(M) * (data variance + projection variance(M))``,
and the M with the least product is the one to use. `variance_report` measures all three.
"""

from scorematching.variance.measure import PROJECTIONS, variance_report
from scorematching.variance.report import VarianceReport, VarianceRow

__all__ = ["PROJECTIONS", "VarianceReport", "VarianceRow", "variance_report"]
