"""One folder for each accelerator framework; found by entry point, never imported by the loop."""
