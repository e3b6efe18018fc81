"""TLS handshakes of NBD that fail, at a rate: a client without a certificate.

Arguments: address, port, handshakes a second, their number. Prints how many the server refused.
"""

import socket
import ssl
import struct
import sys
import time

STARTTLS = struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 5, 0)
PATIENCE = 20


def receive(stream, length):
    data = b""
    while len(data) < length:
        part = stream.recv(length - len(data))
        if not part:
            raise ConnectionError("the server closed the connection")
        data += part
    return data


def is_refused(context, address):
    """Starts TLS without a certificate; returns whether the server ends that."""
    with socket.create_connection(address, timeout=PATIENCE) as plain:
        receive(plain, 18)
        plain.sendall(STARTTLS)
        receive(plain, 20)
        try:
            with context.wrap_socket(plain) as stream:
                return stream.recv(1) == b""
        except (ssl.SSLError, ConnectionError):
            return True


def main():
    address = (sys.argv[1], int(sys.argv[2]))
    rate, count = float(sys.argv[3]), int(sys.argv[4])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    begin = time.monotonic()
    refused = 0
    for number in range(count):
        time.sleep(max(0, begin + number / rate - time.monotonic()))
        refused += is_refused(context, address)
    seconds = time.monotonic() - begin
    print(f"{refused} of {count} refused in {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
