"""Reads one column of strings from a Parquet file, as word lists come: no dependency for one list.

Covers what writers use for a column of strings: plain or dictionary pages of version 1, uncompressed or Snappy.
Anything else is refused by name. The file is public, but it is still somebody else's: every length is checked.

References: the Apache Parquet format (file metadata, data pages, hybrid of runs and bit packing), the Thrift compact
protocol, and the Snappy raw format.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from langchain_dp.errors import InvalidParameter

_BYTE_ARRAY = 6
_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_UNCOMPRESSED, _SNAPPY = 0, 1


def read_strings(path: str | PathLike[str]) -> list[str]:
    """First column of ``path``, in order.

    Raises:
        InvalidParameter: The file is no Parquet file, is damaged, or stores the column in another way.
    """
    raw = Path(path).read_bytes()
    try:
        return _read(raw)
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise _refused(path, f"is damaged ({type(error).__name__})") from None
    except _Unsupported as error:
        raise _refused(path, str(error)) from None


class _Unsupported(Exception):
    """The file uses a part of the format that is not read here."""


def _refused(path: str | PathLike[str], reason: str) -> InvalidParameter:
    return InvalidParameter(
        f"Expected path={str(path)!r} to hold a Parquet column of strings, but it {reason}. "
        "Give the words as a text file, one a line."
    )


def _read(raw: bytes) -> list[str]:
    if len(raw) < 12 or raw[:4] != b"PAR1" or raw[-4:] != b"PAR1":
        raise _Unsupported("is no Parquet file")
    footer = int.from_bytes(raw[-8:-4], "little")
    metadata, _ = _struct(raw, len(raw) - 8 - footer)
    optional = metadata[2][1].get(3, 0)
    if optional > 1:
        raise _Unsupported("holds lists")
    words: list[bytes] = []
    for group in metadata[4]:
        column = group[1][0][3]
        if column[1] != _BYTE_ARRAY:
            raise _Unsupported("holds another type of column")
        words += _column(raw, column, bool(optional))
    if len(words) != metadata[3]:
        raise _Unsupported("leaves values out")
    return [word.decode("utf-8") for word in words]


def _column(raw: bytes, column: dict[int, Any], optional: bool) -> list[bytes]:
    codec, expected = column[4], column[5]
    position = min(column[9], column.get(11, column[9]))
    dictionary: list[bytes] = []
    values: list[bytes] = []
    while len(values) < expected:
        header, position = _struct(raw, position)
        page = _inflate(raw[position : position + header[3]], codec, header[2])
        position += header[3]
        if header[1] == _DICTIONARY_PAGE:
            dictionary = _plain(page, header[7][1])
        elif header[1] == _DATA_PAGE:
            count, encoding = header[5][1], header[5][2]
            page = _without_levels(page, count) if optional else page
            if encoding == _PLAIN:
                values += _plain(page, count)
            elif encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
                values += [dictionary[index] for index in _hybrid(page[1:], page[0], count)]
            else:
                raise _Unsupported(f"uses encoding {encoding}")
        else:
            raise _Unsupported(f"uses pages of kind {header[1]}")
    return values


def _inflate(page: bytes, codec: int, size: int) -> bytes:
    if codec == _SNAPPY:
        page = unsnap(page)
    elif codec != _UNCOMPRESSED:
        raise _Unsupported(f"uses compression {codec}")
    if len(page) != size:
        raise _Unsupported("is cut short")
    return page


def _without_levels(page: bytes, count: int) -> bytes:
    """A column that may hold nulls starts with one definition level a value; a list of words has no nulls."""
    length = int.from_bytes(page[:4], "little")
    if any(level != 1 for level in _hybrid(page[4 : 4 + length], 1, count)):
        raise _Unsupported("holds nulls")
    return page[4 + length :]


def _plain(page: bytes, count: int) -> list[bytes]:
    values, position = [], 0
    for _ in range(count):
        length = int.from_bytes(page[position : position + 4], "little")
        position += 4 + length
        if position > len(page):
            raise _Unsupported("is cut short")
        values.append(page[position - length : position])
    return values


def _hybrid(data: bytes, width: int, count: int) -> list[int]:
    """Values in runs of one value, or packed bit by bit."""
    values: list[int] = []
    position, size = 0, (width + 7) // 8
    while len(values) < count:
        header, position = _varint(data, position)
        if header & 1:
            groups = min(header >> 1, (len(data) - position) // max(width, 1) + 1)
            packed = int.from_bytes(data[position : position + groups * width], "little")
            position += groups * width
            values += _unpack(packed, groups * 8, width)
        else:
            run = min(header >> 1, count - len(values))
            values += [int.from_bytes(data[position : position + size], "little")] * run
            position += size
    return values[:count]


def _unpack(packed: int, count: int, width: int) -> list[int]:
    """Bit fields of one large number, split in halves so that long runs stay cheap."""
    if count <= 32:
        mask = (1 << width) - 1
        return [(packed >> (i * width)) & mask for i in range(count)]
    half = count // 2
    low = packed & ((1 << (half * width)) - 1)
    return _unpack(low, half, width) + _unpack(packed >> (half * width), count - half, width)


def unsnap(data: bytes) -> bytes:
    """Decompress Snappy's raw format."""
    size, position = _varint(data, 0)
    out = bytearray()
    while position < len(data):
        tag = data[position]
        position += 1
        kind = tag & 3
        if kind == 0:
            length = (tag >> 2) + 1
            if length > 60:
                extra = length - 60
                length = int.from_bytes(data[position : position + extra], "little") + 1
                position += extra
            out += data[position : position + length]
            position += length
            continue
        if kind == 1:
            length, offset = ((tag >> 2) & 7) + 4, ((tag >> 5) << 8) | data[position]
            position += 1
        else:
            wide = 2 if kind == 2 else 4
            length, offset = (tag >> 2) + 1, int.from_bytes(data[position : position + wide], "little")
            position += wide
        start = len(out) - offset
        if offset == 0 or start < 0 or len(out) > size:
            raise _Unsupported("is damaged")
        if offset >= length:
            out += out[start : start + length]
        else:
            out += (out[start:] * (length // offset + 1))[:length]  # a copy that overlaps itself repeats a pattern
    if len(out) != size:
        raise _Unsupported("is cut short")
    return bytes(out)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _struct(data: bytes, position: int) -> tuple[dict[int, Any], int]:
    """A Thrift struct as {field number: value}."""
    fields: dict[int, Any] = {}
    number = 0
    while data[position]:
        head = data[position]
        position += 1
        if head >> 4:
            number += head >> 4
        else:
            raw, position = _varint(data, position)
            number = _zigzag(raw)
        fields[number], position = _value(data, position, head & 15)
    return fields, position + 1


def _value(data: bytes, position: int, kind: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, position
    if kind == 3:
        return data[position], position + 1
    if kind in (4, 5, 6):
        raw, position = _varint(data, position)
        return _zigzag(raw), position
    if kind == 7:
        return data[position : position + 8], position + 8
    if kind == 8:
        length, position = _varint(data, position)
        return data[position : position + length], position + length
    if kind in (9, 10):
        head = data[position]
        position += 1
        length = head >> 4
        if length == 15:
            length, position = _varint(data, position)
        items = []
        for _ in range(length):
            item, position = _value(data, position, head & 15)
            items.append(item)
        return items, position
    if kind == 12:
        return _struct(data, position)
    raise _Unsupported(f"uses Thrift type {kind}")


def _zigzag(raw: int) -> int:
    return (raw >> 1) ^ -(raw & 1)
