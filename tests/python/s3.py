"""The smallest S3-compatible endpoint: objects in memory, path-style requests, no multipart.

Usage: s3.py BUCKET ACCESS_KEY. Prints its port. Requests must be signed with the access key; the
signature itself is not checked. It is what the tests of exports need, and no more.
"""

import hashlib
import re
import sys
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

BUCKET, KEY = sys.argv[1:]
objects = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command == "HEAD":
            body = b""
        elif not any(name == "Content-Length" for name, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def error(self, status, code):
        text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
        self.answer(status, text.encode())

    def handle_one(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        bucket, _, key = urllib.parse.unquote(url.path).lstrip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if f"Credential={KEY}/" not in (self.headers.get("Authorization") or ""):
            return self.error(403, "AccessDenied")
        if bucket != BUCKET:
            return self.error(404, "NoSuchBucket")
        if "delete" in query and self.command == "POST":
            keys = re.findall(rb"<Key>(.*?)</Key>", body)
            for found in keys:
                objects.pop(found.decode(), None)
            deleted = "".join(f"<Deleted><Key>{found.decode()}</Key></Deleted>" for found in keys)
            return self.answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
        if not key:
            return self.list(query)
        if self.command == "PUT":
            stated = self.headers.get("x-amz-content-sha256")
            if stated not in (None, "UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()):
                return self.error(400, "XAmzContentSHA256Mismatch")
            objects[key] = body
            return self.answer(200, headers=[("ETag", '"e"')])
        if self.command == "DELETE":
            objects.pop(key, None)
            return self.answer(204)
        if key not in objects:
            return self.error(404, "NoSuchKey")
        data, status, headers = objects[key], 200, [("ETag", '"e"')]
        headers.append(("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"))
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if wanted:
            first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
            headers.append(("Content-Range", f"bytes {first}-{last}/{len(data)}"))
            data, status = data[first : last + 1], 206
        headers.append(("Content-Length", str(len(data))))
        self.answer(status, data, headers)

    def list(self, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        found, folders = [], set()
        for key in sorted(objects):
            if not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
            else:
                found.append(key)
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(objects[key])}</Size>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>e</ETag></Contents>"
            for key in found
        )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>"
            for key in sorted(folders)
        )
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{common}"
        self.answer(200, f"{text}</ListBucketResult>".encode())

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_one


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"port {server.server_port}", flush=True)
server.serve_forever()
