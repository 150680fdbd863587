"""FlashInfer's own tests, run against `cute_attn.flashinfer`: see `perf.peer_suite`."""
