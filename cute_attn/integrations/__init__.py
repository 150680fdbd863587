"""cute_attn inside other projects; nothing here is loaded unless it is imported by name."""
