"""Converters of checkpoints: one module a format or a task, each streams tensor by tensor.

None of them imports onnxruntime. All read through ``intake`` and write whole files or nothing.
"""
