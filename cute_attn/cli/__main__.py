"""`python -m cute_attn.cli`, for where the `cute-attn` script is not on PATH."""

from cute_attn.cli import app

app(prog_name="cute-attn")
