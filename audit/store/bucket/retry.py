"""When a request is repeated, and how the last failure is reported.

Reading may be repeated freely. A write that may have happened is repeated only by who can tell whether it did: see
`object_store`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from audit.errors import StoreError, StoreNotFound, StoreReadOnly
from audit.store.bucket.client import (
    Forbidden,
    NoBucket,
    NotSupported,
    OutcomeUnknown,
    RequestError,
    ServiceUnreachable,
    TryAgain,
)

ATTEMPTS = 8
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0

T = TypeVar("T")


def attempts() -> Iterator[int]:
    """Yield the numbers of attempts, with a growing pause between them; randomly shortened, so that many clients spread out."""
    for number in range(ATTEMPTS):
        if number:
            time.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (number - 1)) * random.uniform(0.5, 1.0))
        yield number


def retry_request(request: Callable[[], T], what: str) -> T:
    """Return the answer to a request that may safely be made twice; StoreError when none comes."""
    failure: RequestError = OutcomeUnknown("")
    for _ in attempts():
        try:
            return request()
        except (TryAgain, OutcomeUnknown) as error:
            failure = error
        except RequestError as error:
            raise to_store_error(error, what) from None
    raise to_store_error(failure, what)


def to_store_error(failure: RequestError, what: str) -> StoreError:
    """Return a failure as a sentence; `what` says what could not be done, such as `s3://b/x could not be read`."""
    reason = f"{what}: the service answers {failure.code}."
    if isinstance(failure, NoBucket):
        return StoreNotFound(f"{what}: there is no such bucket.", hint="Create the bucket, or name another.")
    if isinstance(failure, Forbidden):
        return StoreReadOnly(
            reason, hint="Check the credentials in the environment or the profile, and what they are allowed to do."
        )
    if isinstance(failure, NotSupported):
        return StoreError(reason, hint="The service must support conditional writes (If-None-Match: *).")
    if isinstance(failure, ServiceUnreachable):
        return StoreError(
            f"{what}: nothing answers at the service's address.", hint="Check the network, the region and the endpoint."
        )
    if isinstance(failure, (OutcomeUnknown, TryAgain)):
        return StoreError(
            f"{what}, tried {ATTEMPTS} times: the service answers {failure.code}.",
            hint="What was committed is safe. Try again later; an interrupted run: audit run --resume RUN",
        )
    return StoreError(f"{what} ({failure.code}).", hint="Check the location, the region, the endpoint and the profile.")
