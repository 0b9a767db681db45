"""Tables from files: reading them, and what has to be known before a density is fitted."""

from scorematching.tables.prepare import Prepared, prepare
from scorematching.tables.read import Loaded, read
from scorematching.tables.summary import Column, Finding, TableSummary

__all__ = ["Column", "Finding", "Loaded", "Prepared", "TableSummary", "prepare", "read"]
