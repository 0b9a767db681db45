"""Auto-encoders: variational with explicit and implicit encoders, and Wasserstein."""

from scorematching.distributions.observations import BernoulliPixels, NormalPixels
from scorematching.models.autoencoders.vae import VAE, ImplicitVAE
from scorematching.models.autoencoders.wae import WAE

__all__ = ["VAE", "WAE", "BernoulliPixels", "ImplicitVAE", "NormalPixels"]
