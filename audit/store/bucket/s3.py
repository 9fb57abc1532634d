"""S3 through boto3: one request each, and botocore's many errors sorted into the few that matter.

Credentials, region and endpoint come from where AWS tools take them (the environment, a profile, the machine's role), and
are never read here. Retrying is left to `object_store`: a client that repeats a conditional write on its own cannot
tell its own first attempt from another's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

from audit.store.bucket.client import (
    Blob,
    ConditionFailed,
    Forbidden,
    NoBucket,
    NotSupported,
    ObjectClient,
    OutcomeUnknown,
    RequestError,
    ServiceUnreachable,
    TryAgain,
)

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0

_NOT_FOUND_CODES = {"NoSuchKey", "404", "NotFound"}
_FORBIDDEN = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


@lru_cache(maxsize=8)
def _service(process: int, connect: float, read: float, surroundings: tuple[tuple[str, str], ...]) -> Any:
    """Return one client for each process and its surroundings: a connection must not be shared across a fork, and a notebook
    may name another endpoint or profile while it runs."""
    import boto3
    from botocore.config import Config

    own_endpoint = any(os.environ.get(name) for name in _ENDPOINTS)
    return boto3.session.Session().client(
        "s3",
        config=Config(
            connect_timeout=connect,
            read_timeout=read,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=32,
            # Services other than AWS rarely have a name in the DNS for each bucket, nor the newer checksums.
            s3={"addressing_style": "path" if own_endpoint else "auto"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


class S3Client(ObjectClient):
    """A bucket of S3, or of a service that speaks its language."""

    can_match = True

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket

    @property
    def _s3(self) -> Any:
        surroundings = tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith("AWS_")))
        return _service(os.getpid(), CONNECT_SECONDS, READ_SECONDS, surroundings)

    def get(self, key: str) -> Blob:
        with _translate_errors():
            answer = self._s3.get_object(Bucket=self._bucket, Key=key)
            return _blob(answer, answer["Body"].read())

    def get_range(self, key: str, start: int, count: int) -> Blob:
        span = f"bytes={start}" if start < 0 else f"bytes={start}-{start + count - 1}"
        with _translate_errors():
            try:
                answer = self._s3.get_object(Bucket=self._bucket, Key=key, Range=span)
            except self._s3.exceptions.ClientError as error:
                if _code(error) != "InvalidRange":  # an empty object has no range at all
                    raise
                answer = self._s3.get_object(Bucket=self._bucket, Key=key)
                answer["Body"].read()
                return _blob(answer, b"")
            return _blob(answer, answer["Body"].read())

    def size(self, key: str) -> int:
        with _translate_errors():
            return int(self._s3.head_object(Bucket=self._bucket, Key=key)["ContentLength"])

    def put(self, key: str, data: bytes, *, absent: bool = False, match: str | None = None) -> str | None:
        condition = {"IfNoneMatch": "*"} if absent else {"IfMatch": match} if match else {}
        with _translate_errors():
            answer = self._s3.put_object(Bucket=self._bucket, Key=key, Body=data, **condition)
            return str(answer["ETag"])

    def names(self, prefix: str) -> list[str]:
        found: set[str] = set()
        for page in self._pages(prefix, Delimiter="/"):
            found.update(entry["Prefix"][len(prefix) :].rstrip("/") for entry in page.get("CommonPrefixes", ()))
            found.update(entry["Key"][len(prefix) :] for entry in page.get("Contents", ()))
        return sorted(found - {""})

    def entries(self, prefix: str) -> Iterator[tuple[str, int]]:
        for page in self._pages(prefix):
            yield from ((entry["Key"], entry["Size"]) for entry in page.get("Contents", ()))

    def delete(self, key: str) -> None:
        with _translate_errors():
            self._s3.delete_object(Bucket=self._bucket, Key=key)

    def _pages(self, prefix: str, **options: str) -> Iterator[dict[str, Any]]:
        token: dict[str, str] = {}
        while True:
            with _translate_errors():
                page = self._s3.list_objects_v2(Bucket=self._bucket, Prefix=prefix, **options, **token)
            yield page
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}


def _blob(answer: dict[str, Any], data: bytes) -> Blob:
    whole = re.fullmatch(r"bytes .*/(\d+)", answer.get("ContentRange", ""))
    written = answer["LastModified"]
    # Both times are the service's own, so that a client's clock does not matter.
    stamp = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    now = parsedate_to_datetime(stamp) if stamp else datetime.now(UTC)
    size = int(whole[1]) if whole else int(answer["ContentLength"])
    return Blob(data, size, answer.get("ETag"), (now - written).total_seconds())


def _code(error: Any) -> str:
    code = str(error.response.get("Error", {}).get("Code", ""))
    return code if re.fullmatch(r"[A-Za-z0-9]{1,60}", code) else "an error without a name"


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Yield every error of botocore as one of ours; `from None`, as its own text may hold keys and addresses."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        raise _to_request_error(
            _code(error), int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        ) from None
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError):
        raise Forbidden("NoCredentials") from None
    except (exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError):
        raise ServiceUnreachable("NoConnection") from None
    except (exceptions.HTTPClientError, exceptions.ResponseStreamingError, exceptions.IncompleteReadError):
        raise OutcomeUnknown("NoAnswer") from None
    except exceptions.BotoCoreError as error:
        raise RequestError(type(error).__name__) from None
    except ValueError:  # what the environment names as the endpoint is not an address; its text may hold a password
        raise RequestError("InvalidEndpoint") from None


def _to_request_error(code: str, status: int) -> Exception:
    if code == "NoSuchBucket":
        return NoBucket(code)
    if code in _NOT_FOUND_CODES:
        return FileNotFoundError(code)
    if status == 412:
        return ConditionFailed(code)
    if status in (409, 429) or code == "SlowDown":
        return TryAgain(code)
    if status == 501:
        return NotSupported(code)
    if status >= 500 or code == "RequestTimeout":
        return OutcomeUnknown(code)
    if status == 403 or code in _FORBIDDEN:
        return Forbidden(code)
    return RequestError(code)
