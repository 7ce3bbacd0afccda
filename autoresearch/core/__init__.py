"""The experiment: what it is, how it is measured, decided and remembered."""
