"""A masked autoregressive flow, trained privately, and latent noise injection."""
