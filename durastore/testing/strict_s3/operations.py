"""What the operations of S3 are called here. Must never look at a request."""

from __future__ import annotations

__all__ = ["OPERATIONS", "UNSUPPORTED"]

UNSUPPORTED = "unsupported"
OPERATIONS = (
    "put",
    "get",
    "head",
    "delete",
    "copy",
    "list",
    "list_v1",
    "list_versions",
    "create_upload",
    "upload_part",
    "copy_part",
    "complete_upload",
    "abort_upload",
    "list_parts",
    "list_uploads",
    "list_buckets",
    "create_bucket",
    "head_bucket",
    "get_location",
    "get_versioning",
    "put_versioning",
    "get_lifecycle",
    "put_lifecycle",
    UNSUPPORTED,
)
"""The names by which requests are counted and rules name them. `list` is ListObjectsV2."""
