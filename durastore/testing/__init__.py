"""The test kit that ships with durastore: a conformance suite for object stores, and a store with scripted faults.

Duty: let anyone who writes an adapter, or code above one, test it as durastore's own is tested. Needs pytest (extra
`test`). Must never be imported by the library itself.
"""
