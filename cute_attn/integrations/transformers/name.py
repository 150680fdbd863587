"""The name in `attn_implementation=`."""

NAME = "cute_attn"
