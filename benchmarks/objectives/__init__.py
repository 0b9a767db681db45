"""Time, memory and noise of score-matching losses: this library, others, and double backward."""
