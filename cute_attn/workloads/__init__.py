"""Real workloads, drawn from public production traces: sixteen continuous-batching steps, and
prompts with the blocks that they share.

Azure LLM inference trace 2023 (CC-BY 4.0): Patel et al., "Splitwise: Efficient generative LLM
inference using phase splitting", ISCA 2024. Mooncake conversation trace (Apache-2.0): Qin et al.,
"Mooncake: Trading more storage for less computation", FAST 2025. README.md says how they were
drawn.
"""

from cute_attn.workloads.prefixes import BLOCK_TOKENS, SharedPrompts, load_prefixes
from cute_attn.workloads.steps import Step, load_steps

__all__ = ["BLOCK_TOKENS", "SharedPrompts", "Step", "load_prefixes", "load_steps"]
