"""Makes the helpers of this folder importable: `reference_numpy`, `torch_harness`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
