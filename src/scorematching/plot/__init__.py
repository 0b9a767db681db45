"""Pictures of data, densities, scores and training, on axes of matplotlib.

Every function draws on the axes that it is given, or on new ones, and returns them. matplotlib is
imported when something is drawn; the extra ``plot`` installs it.

==================  ==============================================================================
`density`           a log-density on a line or on a plane, with the data
`score_field`       the score as arrows on a plane, with the data
`training`          training and validation losses over steps
`pairs`             all pairs of columns: data against samples
`calibration`       ranks of held-out points among samples, with a band
`style`             colour, marker and line of a method, the same in every picture
==================  ==============================================================================
"""

from scorematching.plot.calibration import calibration
from scorematching.plot.density import density
from scorematching.plot.pairs import pairs
from scorematching.plot.palette import Style, style
from scorematching.plot.score_field import score_field
from scorematching.plot.training import training

__all__ = ["Style", "calibration", "density", "pairs", "score_field", "style", "training"]
