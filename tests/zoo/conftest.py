"""The modules of third-party models are no tests, and need packages that tests do not."""

collect_ignore = ["libraries"]
