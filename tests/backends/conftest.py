"""Makes the helpers of this folder importable: `reference_numpy`, `train_harness` and its dialects."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
