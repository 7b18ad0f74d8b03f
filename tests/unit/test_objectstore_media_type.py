"""Which requests tell a media type, and that they tell only one."""

from __future__ import annotations

import pytest
from botocore.awsrequest import AWSRequest

from durastore.objectstore.media_type import name_media_type


@pytest.mark.parametrize(
    "operation, path, told",
    [
        ("PutObject", "/b/packs/w/1-a.tar", "application/x-tar"),
        ("UploadPart", "/b/packs/w/1-a.tar?partNumber=2&uploadId=x.parquet", "application/x-tar"),
        ("CreateMultipartUpload", "/b/packs/w/1-a.safetensors?uploads", "application/x-safetensors"),
        ("PutObject", "/b/manifest/w/1-a.parquet", "application/vnd.apache.parquet"),
        ("PutObject", "/b/files/a.tar/notes", "binary/octet-stream"),
        ("CompleteMultipartUpload", "/b/packs/w/1-a.tar?uploadId=x", "binary/octet-stream"),
    ],
)
def test_the_type_follows_the_key(operation: str, path: str, told: str) -> None:
    request = AWSRequest("PUT", f"http://host{path}", headers={"Content-Type": "binary/octet-stream"})
    name_media_type(request, operation, signing_name="s3")
    assert request.headers.get_all("Content-Type") == [told]
