"""What every object store adapter has to do, as a test class to inherit.

Duty: hold an adapter to the port's promises: exact bytes, exact keys, whole listings, honest refusals. Inherit
`ObjectStoreTests` in a test module and give it a fixture `store`; a shared bucket is fine, each test has a prefix of
its own. Must never need more than the port.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from durastore.errors import IntegrityError, InvalidInput, ObjectAbsent, ObjectExists, RequestRefused
from durastore.model import ObjectKey
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.port import WRITE_ID, ObjectStat, ObjectStore, PartReply
from durastore.objectstore.ranges import fetch_ranges
from durastore.objectstore.whole import WHOLE_BYTES, fetch_whole

__all__ = ["ODD_KEYS", "ObjectStoreTests"]

ODD_KEYS = (
    "a+b c%2B",
    "a/b",
    "a%2Fb",
    "p",
    "p*?[]#&;",
    "p[a-z]",
    "q!'()*",
    "tilde~=@:,$",
    "ümlaut/€",
    'quote"<>&amp;',
)
_NUMBERS = itertools.count(1)
_PART_BYTES = 5 << 20  # the least S3 takes for any part but the last


def _keys(store: ObjectStore, prefix: str, *, start_after: str | None = None) -> list[str]:
    return [row.key.text for page in store.list(prefix, start_after=start_after) for row in page]


def _put(store: ObjectStore, key: ObjectKey, *, body: bytes) -> ObjectStat:
    store.put(key, body, crc64nvme=crc64nvme_b64(body), metadata={WRITE_ID: "w1"})
    return store.head(key)


class ObjectStoreTests:
    """Inherit this, name the class `Test...`, and provide the fixture `store`."""

    is_checksum_checked = True
    """False for an endpoint that stores a body with a wrong checksum; those tests are then skipped, not passed."""
    is_create_only_honoured = True
    listing_size = 2_500

    @pytest.fixture
    def prefix(self) -> str:
        return f"conformance/{secrets.token_hex(4)}-{next(_NUMBERS)}"

    def fill(self, store: ObjectStore, keys: Iterable[str]) -> None:
        """Create one small object a key; override where there is a faster way."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(ObjectKey(key), b"x", crc64nvme=None, metadata={}), keys))

    # --- single objects ---------------------------------------------------------------------------------------------

    def test_what_was_put_is_what_is_fetched(self, store: ObjectStore, prefix: str) -> None:
        key, body = ObjectKey(f"{prefix}/one"), secrets.token_bytes(70_000)
        reply = store.put(key, body, crc64nvme=crc64nvme_b64(body), metadata={WRITE_ID: "w1"})
        stat = store.head(key)
        assert store.fetch(key) == body
        assert (stat.key, stat.size_bytes, stat.etag) == (key, len(body), reply.etag)
        assert dict(stat.metadata)[WRITE_ID] == "w1"
        assert stat.crc64nvme in (None, crc64nvme_b64(body))
        assert stat.is_readable
        assert stat.server_time_s is not None
        assert reply.etag

    def test_any_buffer_can_be_put(self, store: ObjectStore, prefix: str) -> None:
        body = secrets.token_bytes(1000)
        for name, form in (("bytes", body), ("bytearray", bytearray(body)), ("view", memoryview(b"-" + body)[1:])):
            key = ObjectKey(f"{prefix}/{name}")
            store.put(key, form, crc64nvme=crc64nvme_b64(form), metadata={})
            assert store.fetch(key) == body

    def test_an_empty_object_is_an_object(self, store: ObjectStore, prefix: str) -> None:
        key = ObjectKey(f"{prefix}/empty")
        assert _put(store, key, body=b"").size_bytes == 0
        assert store.fetch(key) == b""
        assert b"".join(store.fetch_chunks(key)) == b""

    def test_an_absent_key_is_absent(self, store: ObjectStore, prefix: str) -> None:
        _put(store, ObjectKey(f"{prefix}/there/x"), body=b"x")
        for name in ("nothing", "there", "there/x/y"):
            key = ObjectKey(f"{prefix}/{name}")
            with pytest.raises(ObjectAbsent):
                store.head(key)
            with pytest.raises(ObjectAbsent):
                store.fetch(key)
            with pytest.raises(ObjectAbsent):
                list(store.fetch_chunks(key))

    def test_ranges_are_exact(self, store: ObjectStore, prefix: str) -> None:
        key, body = ObjectKey(f"{prefix}/ranged"), secrets.token_bytes(10_000)
        _put(store, key, body=body)
        for offset, length in ((0, 1), (0, 10_000), (9_999, 1), (4_095, 4_098), (1, None), (9_999, None), (500, 0)):
            stop = None if length is None else offset + length
            assert store.fetch(key, offset=offset, length=length) == body[offset:stop]
        spans = [(0, 1), (5_000, 10_000), (4_095, 5_000), (1, 4)]
        assert list(map(bytes, fetch_ranges(store, key, spans=spans))) == [body[start:stop] for start, stop in spans]

    def test_a_range_the_object_does_not_hold_is_refused(self, store: ObjectStore, prefix: str) -> None:
        key = ObjectKey(f"{prefix}/short")
        _put(store, key, body=b"0123456789")
        for offset, length in ((0, 11), (9, 2), (10, 1), (1_000_000, 5), (10, None)):
            with pytest.raises(IntegrityError):
                store.fetch(key, offset=offset, length=length)
            if length is not None:
                with pytest.raises(IntegrityError):
                    fetch_ranges(store, key, spans=[(0, 1), (offset, offset + length)])
        with pytest.raises(ObjectAbsent):
            fetch_ranges(store, ObjectKey(f"{prefix}/absent"), spans=[(0, 1), (4, 5)])

    def test_chunks_make_up_the_object(self, store: ObjectStore, prefix: str) -> None:
        key, body = ObjectKey(f"{prefix}/chunked"), secrets.token_bytes(300_001)
        _put(store, key, body=body)
        for chunk_bytes in (65_536, 300_001, 8 << 20):
            assert b"".join(store.fetch_chunks(key, chunk_bytes=chunk_bytes)) == body

    def test_a_small_object_tells_which_one_it_is(self, store: ObjectStore, prefix: str) -> None:
        reader = store.fresh_reader()
        try:
            for name in ("plain", *ODD_KEYS):
                key, body = ObjectKey(f"{prefix}/small/{name}"), b"-" + name.encode()
                _put(store, key, body=body)
                stat, whole = reader.head(key), fetch_whole(reader, key, size_bytes=len(body))
                if whole is None:
                    return  # an adapter without such a way
                assert (bytes(whole.data), whole.etag, whole.version_id) == (body, stat.etag, stat.version_id)
                for other in (len(body) - 1, len(body) + 1):
                    with pytest.raises(IntegrityError):
                        fetch_whole(reader, key, size_bytes=other)
            absent = ObjectKey(f"{prefix}/absent")
            with pytest.raises(ObjectAbsent):
                fetch_whole(reader, absent, size_bytes=5)
            assert fetch_whole(reader, absent, size_bytes=WHOLE_BYTES + 1) is None  # never asked for in one piece
        finally:
            reader.close()

    def test_a_read_can_be_bound_to_an_etag(self, store: ObjectStore, prefix: str) -> None:
        key = ObjectKey(f"{prefix}/bound")
        etag = _put(store, key, body=b"0123456789").etag
        assert store.fetch(key, offset=3, length=4, if_match=etag) == b"3456"
        with pytest.raises(RequestRefused) as caught:
            store.fetch(key, offset=3, length=4, if_match='"another"')
        assert caught.value.facts["status"] == 412

    def test_a_fresh_reader_sees_the_same(self, store: ObjectStore, prefix: str) -> None:
        key, body = ObjectKey(f"{prefix}/fresh"), secrets.token_bytes(5_000)
        stat = _put(store, key, body=body)
        reader = store.fresh_reader()
        try:
            assert reader.head(key).etag == stat.etag
            assert reader.fetch(key, offset=7, length=9) == body[7:16]
            assert b"".join(reader.fetch_chunks(key)) == body
        finally:
            reader.close()
            reader.close()
        assert store.fetch(key) == body

    # --- refusals ---------------------------------------------------------------------------------------------------

    def test_a_put_can_be_repeated(self, store: ObjectStore, prefix: str) -> None:
        key, body = ObjectKey(f"{prefix}/again"), secrets.token_bytes(3_000)
        assert _put(store, key, body=body).etag == _put(store, key, body=body).etag
        assert store.fetch(key) == body

    def test_create_only_meets_the_existing_object(self, store: ObjectStore, prefix: str) -> None:
        if not self.is_create_only_honoured:
            pytest.skip("this endpoint does not honour create-only")
        key = ObjectKey(f"{prefix}/taken")
        store.put(key, b"first", crc64nvme=crc64nvme_b64(b"first"), metadata={}, if_absent=True)
        with pytest.raises(ObjectExists):
            store.put(key, b"other", crc64nvme=crc64nvme_b64(b"other"), metadata={}, if_absent=True)
        assert store.fetch(key) == b"first"

    def test_a_wrong_checksum_is_refused(self, store: ObjectStore, prefix: str) -> None:
        if not self.is_checksum_checked:
            pytest.skip("this endpoint does not check CRC64NVME")
        key = ObjectKey(f"{prefix}/lie")
        with pytest.raises(RequestRefused):
            store.put(key, b"body", crc64nvme=crc64nvme_b64(b"another body"), metadata={})
        with pytest.raises(ObjectAbsent):
            store.head(key)

    def test_nothing_here_takes_an_object_away(self, store: ObjectStore) -> None:
        # case B52
        forbidden = ("delete", "remove", "purge", "clean", "unlink", "copy", "rename")
        assert [name for name in dir(store) if name.lower().lstrip("_").startswith(forbidden)] == []
        reader = store.fresh_reader()
        assert [name for name in dir(reader) if name.lower().lstrip("_").startswith(forbidden)] == []
        reader.close()

    # --- keys and listings ------------------------------------------------------------------------------------------

    def test_odd_keys_are_kept_apart(self, store: ObjectStore, prefix: str) -> None:
        # case B128, case B130, case B133, case B135
        for name in ODD_KEYS:
            _put(store, ObjectKey(f"{prefix}/{name}"), body=b"-" + name.encode())
        for name in ODD_KEYS:
            key, body = ObjectKey(f"{prefix}/{name}"), b"-" + name.encode()
            assert store.head(key).size_bytes == len(body)
            assert store.fetch(key) == body
            assert store.fetch(key, offset=1) == body[1:]
        listed = {key.removeprefix(f"{prefix}/") for key in _keys(store, f"{prefix}/")}
        assert listed == set(ODD_KEYS), listed ^ set(ODD_KEYS)

    @pytest.mark.parametrize("text", ["", ".", "..", "/x", "a//b", "a/../b", "a/", "./a"])
    def test_unusable_keys_never_reach_a_store(self, text: str) -> None:
        # case B136
        with pytest.raises(InvalidInput):
            ObjectKey(text)

    def test_a_prefix_is_text_not_a_folder(self, store: ObjectStore, prefix: str) -> None:
        for name in ("aa", "ab", "ab-c", "abd/e", "b"):
            _put(store, ObjectKey(f"{prefix}/{name}"), body=b"x")
        assert _keys(store, f"{prefix}/ab") == [f"{prefix}/{name}" for name in ("ab", "ab-c", "abd/e")]
        assert _keys(store, f"{prefix}/abd/") == [f"{prefix}/abd/e"]
        assert _keys(store, f"{prefix}/z") == []

    def test_a_listing_says_size_and_no_more_than_it_knows(self, store: ObjectStore, prefix: str) -> None:
        key = ObjectKey(f"{prefix}/packs/w/000000000001-0123456789abcdef.tar")
        stat = _put(store, key, body=b"x" * 123)
        (row,) = [row for page in store.list(f"{prefix}/packs/") for row in page]
        assert (row.key, row.size_bytes, row.etag) == (key, 123, stat.etag)
        assert row.crc64nvme is None
        assert row.metadata == ()
        assert row.last_modified_s is not None  # case B143: told as it is, and nothing is left out because of it

    def test_every_page_is_listed(self, store: ObjectStore, prefix: str) -> None:
        # case B138
        keys = [f"{prefix}/{number:06d}" for number in range(self.listing_size)]
        self.fill(store, keys)
        assert _keys(store, f"{prefix}/") == keys
        assert _keys(store, f"{prefix}/", start_after=keys[1_999]) == keys[2_000:]
        assert _keys(store, f"{prefix}/", start_after=keys[-1]) == []

    # --- uploads in parts -------------------------------------------------------------------------------------------

    def _send(self, store: ObjectStore, key: ObjectKey, *, bodies: list[bytes]) -> tuple[str, list[PartReply]]:
        upload_id = store.create_upload(key, metadata={WRITE_ID: "w2"})
        parts = [
            store.upload_part(key, upload_id, number=number, body=body, crc64nvme=crc64nvme_b64(body))
            for number, body in enumerate(bodies, start=1)
        ]
        return upload_id, parts

    def test_parts_become_one_object(self, store: ObjectStore, prefix: str) -> None:
        key = ObjectKey(f"{prefix}/joined")
        bodies = [secrets.token_bytes(_PART_BYTES), secrets.token_bytes(_PART_BYTES), b"end"]
        whole = b"".join(bodies)
        upload_id, parts = self._send(store, key, bodies=bodies)
        with pytest.raises(ObjectAbsent):
            store.head(key)
        assert [(part.number, part.size_bytes) for part in store.list_parts(key, upload_id)] == [
            (number, len(body)) for number, body in enumerate(bodies, start=1)
        ]
        reply = store.complete_upload(
            key, upload_id, parts=parts, size_bytes=len(whole), crc64nvme=crc64nvme_b64(whole)
        )
        stat = store.head(key)
        assert (stat.size_bytes, stat.etag) == (len(whole), reply.etag)
        assert stat.crc64nvme in (None, crc64nvme_b64(whole))
        assert dict(stat.metadata)[WRITE_ID] == "w2"
        assert b"".join(store.fetch_chunks(key)) == whole
        assert store.fetch(key, offset=_PART_BYTES - 2, length=4) == whole[_PART_BYTES - 2 : _PART_BYTES + 2]

    def test_a_part_sent_again_takes_the_place_of_the_first(self, store: ObjectStore, prefix: str) -> None:
        key = ObjectKey(f"{prefix}/resent")
        upload_id, _ = self._send(store, key, bodies=[b"first try"])
        body = b"second try"
        part = store.upload_part(key, upload_id, number=1, body=body, crc64nvme=crc64nvme_b64(body))
        assert (1, part.etag) in [(found.number, found.etag) for found in store.list_parts(key, upload_id)]
        store.complete_upload(key, upload_id, parts=[part], size_bytes=len(body), crc64nvme=crc64nvme_b64(body))
        assert store.fetch(key) == body

    def test_a_wrong_whole_checksum_completes_nothing(self, store: ObjectStore, prefix: str) -> None:
        if not self.is_checksum_checked:
            pytest.skip("this endpoint does not check CRC64NVME")
        key = ObjectKey(f"{prefix}/lie")
        upload_id, parts = self._send(store, key, bodies=[b"only part"])
        with pytest.raises(RequestRefused):
            store.complete_upload(key, upload_id, parts=parts, size_bytes=9, crc64nvme=crc64nvme_b64(b"another"))
        with pytest.raises(ObjectAbsent):
            store.head(key)

    def test_an_aborted_upload_leaves_nothing(self, store: ObjectStore, prefix: str) -> None:
        key = ObjectKey(f"{prefix}/aborted")
        upload_id, parts = self._send(store, key, bodies=[b"only part"])
        store.abort_upload(key, upload_id)
        store.abort_upload(key, upload_id)
        with pytest.raises(RequestRefused) as caught:
            store.complete_upload(key, upload_id, parts=parts, size_bytes=9, crc64nvme=crc64nvme_b64(b"only part"))
        assert caught.value.facts["server_code"] == "NoSuchUpload"
        with pytest.raises(ObjectAbsent):
            store.head(key)
        assert _keys(store, f"{prefix}/") == []

    def test_unfinished_uploads_are_listed_with_their_age(self, store: ObjectStore, prefix: str) -> None:
        key, other = ObjectKey(f"{prefix}/begun/a"), ObjectKey(f"{prefix}/other")
        ids = {store.create_upload(key, metadata={}) for _ in range(2)}
        store.create_upload(other, metadata={})
        found = store.list_uploads(f"{prefix}/begun/")
        assert {(upload.key, upload.upload_id) for upload in found} == {(key, upload_id) for upload_id in ids}
        for upload in found:
            assert upload.initiated_s is not None
            assert upload.server_time_s is not None
            assert -2 <= upload.server_time_s - upload.initiated_s < 600
        store.abort_upload(key, ids.pop())
        assert {upload.upload_id for upload in store.list_uploads(f"{prefix}/begun/")} == ids
        assert store.list_uploads(f"{prefix}/nothing/") == ()

    # --- threads ----------------------------------------------------------------------------------------------------

    def test_threads_do_not_mix_answers(self, store: ObjectStore, prefix: str) -> None:
        def round_trip(number: int) -> bool:
            key, body = ObjectKey(f"{prefix}/t{number:03d}"), f"body {number} ".encode() * (number + 1)
            store.put(key, body, crc64nvme=crc64nvme_b64(body), metadata={WRITE_ID: str(number)})
            stat = store.head(key)
            return store.fetch(key) == body and dict(stat.metadata)[WRITE_ID] == str(number)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(round_trip, range(48)))
