"""Which tile a kernel takes on this GPU: candidates from the emitters' equations, a search that
measures them, and the database of what it found.

Knows no devices and no tensors: `search` asks a `Bench` to measure, and `api/tuner.py` has one for
CUDA. The page is docs/tuning.md.
"""

from cute_attn.tuning.candidate import Candidate
from cute_attn.tuning.database import Database, DatabaseError, Entry, Measured
from cute_attn.tuning.files import default_path, read_for_gpu, store
from cute_attn.tuning.lookup import TunedTable
from cute_attn.tuning.search import Bench, Session, search_step
from cute_attn.tuning.space import tiles_of
from cute_attn.tuning.step import StepKey, TuneStep
from cute_attn.tuning.steps import default_steps

__all__ = [
    "Bench",
    "Candidate",
    "Database",
    "DatabaseError",
    "Entry",
    "Measured",
    "Session",
    "StepKey",
    "TuneStep",
    "TunedTable",
    "default_path",
    "default_steps",
    "read_for_gpu",
    "search_step",
    "store",
    "tiles_of",
]
