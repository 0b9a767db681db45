"""Rules of torch's operations; `catalogue` imports them all."""
