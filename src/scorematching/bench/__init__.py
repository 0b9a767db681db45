"""A benchmark of score-matching losses: this library, its peers, and double backward by hand.

A program, not a part: it sets threads, precision and seeds of the process it runs in.
"""
