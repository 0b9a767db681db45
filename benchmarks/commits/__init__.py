"""Two commits of the library, timed alternately."""
