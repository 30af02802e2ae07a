"""Chunks of events to structs, and to the text of each event, whatever slips the file has."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from steptrace.errors import TraceError
from steptrace.trace.events import FLOAT_LIMIT_US, Ints, exact_to_ns, us_to_ns
from steptrace.trace.json_text import prune, repair

_TEXTS = msgspec.json.Decoder(list[msgspec.Raw])


class EventDecoder:
    """Decodes a file's chunks as lists of `fast` structs, and as `exact` ones from where floats lose nanoseconds on."""

    def __init__(self, path: Path, fast: type, exact: type) -> None:
        self.path = path
        self._fast = msgspec.json.Decoder(list[fast])  # type: ignore[valid-type]
        self._exact = msgspec.json.Decoder(list[exact])  # type: ignore[valid-type]
        self._lenient = {
            self._fast: msgspec.json.Decoder(list[fast], strict=False),  # type: ignore[valid-type]
            self._exact: msgspec.json.Decoder(list[exact], strict=False),  # type: ignore[valid-type]
        }
        #: Whether floats would lose nanoseconds, from here on.
        self.needs_exact = False
        #: How many values were nested too deep to be read.
        self.left_out = 0

    def decode(self, chunk: bytes) -> list[Any]:
        """The structs of a chunk, the JSON text of an array.

        Raises:
            TraceError: it is no JSON, or holds other things than events.
        """
        if self.needs_exact:
            return self._decoded(self._exact, chunk)
        before = self.left_out
        events = self._decoded(self._fast, chunk)
        times = np.array([event.ts for event in events])
        if (np.isfinite(times) & (times > FLOAT_LIMIT_US) & (np.trunc(times) < times)).any():
            self.needs_exact, self.left_out = True, before
            return self._decoded(self._exact, chunk)
        return events

    def to_ns(self, times: Sequence[Any]) -> Ints:
        """Times of the structs that `decode` returned last, as integer ns."""
        return exact_to_ns(times) if self.needs_exact else us_to_ns(times)

    def _decoded(self, decoder: Any, chunk: bytes) -> list[Any]:
        try:
            return decoder.decode(chunk)  # type: ignore[no-any-return]
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        except RecursionError:
            chunk, left_out = prune(chunk)
            self.left_out += left_out
        try:
            return self._lenient[decoder].decode(repair(chunk))
        except RecursionError:
            chunk, left_out = prune(repair(chunk))
            self.left_out += left_out
            return self._decoded(decoder, chunk)
        except msgspec.ValidationError as error:
            raise TraceError(
                f"JSON, but no trace: {error}", where=self.path, expected="events as torch.profiler writes them"
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(f"invalid JSON among the events ({error})", where=self.path) from error


def event_texts(chunk: bytes) -> list[msgspec.Raw]:
    """The text of each event of a chunk that `EventDecoder.decode` has read: as written, where that is valid JSON."""
    try:
        chunk.decode()  # what is only passed over is not checked for it
        return _TEXTS.decode(chunk)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _TEXTS.decode(repair(chunk))
    except RecursionError:
        return event_texts(prune(chunk)[0])
