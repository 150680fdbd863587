"""Benchmarks of cute_attn, through its public calls only. Run them as `python -m perf.<name>`."""
