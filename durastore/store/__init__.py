"""The composition root: what `put` promises is put together here from the parts below.

Duty: group commit, membership, the pipeline of one spool, opening and closing. Must never unlink, hash or talk S3.
"""
