"""Real workloads: sixteen continuous-batching steps drawn from public production traces.

Azure LLM inference trace 2023 (CC-BY 4.0): Patel et al., "Splitwise: Efficient generative LLM
inference using phase splitting", ISCA 2024. Mooncake conversation trace (Apache-2.0): Qin et al.,
"Mooncake: Trading more storage for less computation", FAST 2025. README.md says how they were
drawn.
"""

from cute_attn.workloads.steps import Step, load_steps

__all__ = ["Step", "load_steps"]
