"""The command line, `cute-attn`: one file a command, all of them thin over the public calls."""

from cute_attn.cli.main import app

__all__ = ["app"]
