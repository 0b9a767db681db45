"""Kernel Stein discrepancy: tests of fit, thinning and control variates from one kernel."""
