"""Multi-head latent attention: names that can be imported and raise when they are called."""

from cute_attn.flashinfer.unsupported import stand_ins

__getattr__ = stand_ins(__name__)
