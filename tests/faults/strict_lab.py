"""What the tests of the strict server share: a refusal that was expected, an upload in parts."""

from __future__ import annotations

from typing import Any

import botocore.exceptions
import pytest

from durastore.testing.strict_s3 import StrictS3

__all__ = ["Upload", "refused"]


def refused(code: str, call: Any, **arguments: Any) -> dict[str, Any]:
    """The answer of a call that is refused with `code`."""
    with pytest.raises(botocore.exceptions.ClientError) as caught:
        call(**arguments)
    response: Any = caught.value.response
    assert response["Error"]["Code"] == code
    return dict(response)


class Upload:
    """One upload with its acknowledged parts."""

    def __init__(self, server: StrictS3, **arguments: Any) -> None:
        self.server, self.s3, self.bucket = server, server.client(), server.make_bucket()
        self.where: dict[str, Any] = {"Bucket": self.bucket, "Key": "k"}
        self.where["UploadId"] = self.s3.create_multipart_upload(**self.where, **arguments)["UploadId"]
        self.parts: list[dict[str, Any]] = []

    def send(self, bodies: list[bytes], **arguments: Any) -> Upload:
        for number, body in enumerate(bodies, start=1):
            answer = self.s3.upload_part(**self.where, PartNumber=number, Body=body, **arguments)
            checksums = {name: value for name, value in answer.items() if name.startswith("Checksum")}
            self.parts.append({"PartNumber": number, "ETag": answer["ETag"], **checksums})
        return self

    def complete(self, parts: list[dict[str, Any]] | None = None, **arguments: Any) -> Any:
        listed = {"Parts": self.parts if parts is None else parts}
        return self.s3.complete_multipart_upload(**self.where, MultipartUpload=listed, **arguments)

    def refuse(self, code: str, parts: list[dict[str, Any]] | None = None, **arguments: Any) -> None:
        refused(code, self.complete, parts=parts, **arguments)
        assert self.server.keys(self.bucket) == []
