"""What the fields of each kind are: types, required fields, list keys and patch strategies.

`types.py` is the model, `builtin.py` derives it from lightkube's Structs with `extensions.py` for what the Structs do
not say, `structural.py` from a custom resource definition. `decode.py` checks documents against it.
"""
