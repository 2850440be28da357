"""The run file of ``edge-train train``: its options, their checks, and the Trainer made of them."""
