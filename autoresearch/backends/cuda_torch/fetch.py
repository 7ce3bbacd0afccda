"""Fetch the attention kernel of this backend from its hub: run by `autoresearch prepare`, with the network.

Measurements load it from the disk, offline.
"""

from __future__ import annotations

from autoresearch.backends.cuda_torch.attention import FLASH3


def main() -> None:
    """Download the build that fits this PyTorch, and load it once."""
    from kernels import get_kernel

    repository, version = FLASH3
    get_kernel(repository, version=version)
    print(f"{repository}, version {version}, is on the disk")


if __name__ == "__main__":
    main()
