"""Random requests signed by botocore, one in JSON a line: botocore_signer.py SEED COUNT"""

import json
import random
import sys
from urllib.parse import quote, urlsplit

from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

HOST = "evenkeel.test:8650"
TEXT = "abcXYZ019-._~ /+=&?%:,;@!$'()*[]\u00e9\u4e2d\U0001f6a2"
PATHS = ["/", "/snapshots", "/snapshots/snap-0123456789abcdef0/blocks/7", "//a///b/", "/./a/../b",
         "/service/GraniteServiceVersion20100801/operation/ListMetrics", "/a%20b/%E4%B8%AD"]


def text(choose, longest):
    return "".join(choose.choice(TEXT) for _ in range(choose.randrange(longest + 1)))


def request(choose):
    method = choose.choice(["GET", "POST", "PUT"])
    path = choose.choice(PATHS)
    if choose.random() < 0.3:
        path += quote(text(choose, 12), safe="/~")
    pairs = [(text(choose, 8) or "p", text(choose, 20)) for _ in range(choose.randrange(5))]
    query = "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in pairs)
    headers = {}
    for _ in range(choose.randrange(4)):
        name = choose.choice(["X-Amz-Meta-", "Content-", "x-other-"]) + str(choose.randrange(9))
        words = [quote(text(choose, 6)) or "w" for _ in range(choose.randrange(1, 4))]
        headers[name] = choose.choice([" ", "  ", ", "]).join(words)
    body = b"" if method == "GET" else choose.randbytes(choose.randrange(200))
    url = f"http://{HOST}{path}" + ("?" + query if query else "")
    return AWSRequest(method=method, url=url, headers=headers, data=body)


def signed(choose):
    secret = "".join(choose.choice("abcdefXYZ/+0123") for _ in range(40))
    token = "t" * choose.randrange(1, 50) if choose.random() < 0.2 else None
    keys = Credentials(f"AKID{choose.randrange(1000)}", secret, token)
    region = choose.choice(["local-1", "us-east-1"])
    service = choose.choice(["ec2", "ebs", "monitoring"])
    new = request(choose)
    in_url = new.method == "GET" and choose.random() < 0.4
    signer = SigV4QueryAuth if in_url else SigV4Auth
    signer(keys, service, region, **({"expires": 60} if in_url else {})).add_auth(new)
    prepared = new.prepare()
    parts = urlsplit(prepared.url)
    headers = [(name, value if isinstance(value, str) else value.decode())
               for name, value in prepared.headers.items() if name.lower() != "content-length"]
    body = prepared.body or b""
    return {
        "method": prepared.method, "path": parts.path, "query": parts.query, "in_url": in_url,
        "headers": [("host", HOST)] + headers, "region": region, "service": service,
        "body": list(body.encode() if isinstance(body, str) else body),
        "access_key_id": keys.access_key, "secret_access_key": secret,
    }


def main():
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    choose = random.Random(seed)
    for _ in range(count):
        print(json.dumps(signed(choose)))


main()
