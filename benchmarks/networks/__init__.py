"""Steps on networks of diffusers and transformers: `python -m benchmarks.networks --help`."""
