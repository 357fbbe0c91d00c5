"""URLs of tapes, and what of them people may see.

Takes the text that somebody passed as a path; returns whether it is a URL, and the part of it that
tells nobody a password: a signed URL has its token in the query.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

__all__ = ["displayed_url", "file_url", "is_url", "local_path", "protocol_of", "without_secrets"]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s'\"<>\\]+")
_LIKE_A_QUERY = re.compile(r"\?(?=[A-Za-z_%][\w.%-]*=)", re.ASCII)
_LIKE_A_PASSWORD = re.compile(r"[^/@:\[\]]*:(?!\d{0,5}(?:/|$)).*@")
_CUT_PASSWORD = re.compile(r"[^/@:?#\[\]]*:(?!\d{1,5}[?#])[^/@]*[?#].*@")
_LOCAL = ("file", "local")
_WITH_QUERY = ("http", "https")
_HIDDEN = "…"


class _Parts(NamedTuple):
    protocol: str
    user: str
    place: str
    query: str


def is_url(path: str) -> bool:
    """Whether a path names something that is read through a file system of fsspec."""
    match = _URL.match(path)
    return match is not None and match[1].lower() not in _LOCAL


def local_path(path: str) -> str:
    """The path of a ``file://`` URL; any other path is returned unchanged."""
    match = _URL.match(path)
    return match[2] if match is not None and match[1].lower() in _LOCAL else path


def protocol_of(url: str) -> str:
    """What stands before ``://``, in lower case."""
    return url.partition("://")[0].lower()


def file_url(url: str) -> str:
    """A URL without user, query and fragment: it ends like the name of the file."""
    parts = _parts(url)
    return f"{parts.protocol}://{parts.place}"


def displayed_url(url: str) -> str:
    """A URL as messages show it: without user, password, query and fragment. An ellipsis stands
    for a query. Any other text stays as it is."""
    if not _URL.match(url):
        return url
    parts = _parts_shown(url)
    return f"{parts.protocol}://{parts.place}" + (f"?{_HIDDEN}" if parts.query else "")


def without_secrets(text: str, url: str) -> str:
    """A text of others, such as the message of an error, with each URL in it as it may be shown.

    Args:
        text: any.
        url: whose user, password and query are not in the result, wherever they stood.
    """
    shown = _IN_TEXT.sub(lambda match: displayed_url(match[0]), text)
    parts = _parts_shown(url)
    values = [part.partition("=")[2] for part in parts.query.split("&")]
    for secret in (parts.query, parts.user, *parts.user.split(":")[1:], *values):
        for spelling in {secret, unquote(secret)}:
            if len(spelling) > 3:
                shown = shown.replace(spelling, _HIDDEN)
    return shown


def _parts_shown(url: str) -> _Parts:
    """The parts of a URL as people may see them. In an object store ``?`` is part of a name, but
    somebody may have put ``s3://`` before a signed address: what looks like a query is one here.
    A password may have a slash that should have been written ``%2F``: what stands where a port
    should be, and has an ``@`` somewhere behind it, is one. Of one with a character that begins a
    query or a fragment, that is made another character first."""
    match = _URL.match(url)
    cut = None if match is None else _CUT_PASSWORD.match(match[2])
    if match is not None and cut is not None:
        begin = match.start(2)
        end = begin + cut.end()
        url = url[:begin] + re.sub("[?#]", "_", url[begin:end]) + url[end:]
    parts = _parts(url)
    password = None if parts.user else _LIKE_A_PASSWORD.match(parts.place)
    if password is not None:
        parts = parts._replace(user=password[0][:-1], place=parts.place[password.end() :])
    if parts.protocol in _WITH_QUERY:
        return parts
    match = _LIKE_A_QUERY.search(parts.place)
    if match is None:
        return parts
    place, query = parts.place[: match.start()], parts.place[match.end() :]
    return parts._replace(place=place, query=query)


def _parts(url: str) -> _Parts:
    match = _URL.match(url)
    if match is None:
        return _Parts("", "", url, "")
    protocol, behind_protocol = match[1].lower(), match[2]
    query = ""
    if protocol in _WITH_QUERY:  # elsewhere these characters are part of a name
        behind_protocol = behind_protocol.partition("#")[0]
        behind_protocol, _, query = behind_protocol.partition("?")
    host, slash, place = behind_protocol.partition("/")
    user, _, host = host.rpartition("@")
    return _Parts(protocol, user, host + slash + place, query)
