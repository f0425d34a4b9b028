"""A door before a broker: speaks TLS where the broker cannot, and remembers what passed."""

import contextlib
import datetime
import ipaddress
import itertools
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "127.0.0.1"
_numbers = itertools.count()


def self_signed(folder: Path, host: str = HOST) -> tuple[Path, Path]:
    """A certificate that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test {next(_numbers)}")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    address = x509.IPAddress(ipaddress.ip_address(host))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / f"{next(_numbers)}.pem", folder / f"{next(_numbers)}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


class Door:
    """Listens until it is closed; `broker` is told of as if it stood here."""

    def __init__(self, broker: str, tls: ssl.SSLContext | None) -> None:
        self._tls, self._broker = tls, int(broker.rpartition(":")[2])
        self._listening = socket.create_server((HOST, 0))
        self._port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self.sent: list[bytearray] = []
        """What each client said, in the clear."""
        self.refusals: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def server(self) -> str:
        return f"{HOST}:{self._port}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        if self._tls is not None:
            try:
                client = self._tls.wrap_socket(client, server_side=True)
            except OSError as refused:
                self.refusals.append(str(refused))
                client.close()
                return
        broker = socket.create_connection((HOST, self._broker))
        self._open += [client, broker]
        self.sent.append(bytearray())
        answers = threading.Thread(target=self._answer, args=(broker, client), daemon=True)
        answers.start()
        with contextlib.suppress(OSError):
            while said := client.recv(65_536):
                self.sent[-1].extend(said)
                broker.sendall(said)
        broker.close()
        answers.join(5)
        client.close()

    def _answer(self, broker: socket.socket, client: socket.socket) -> None:
        """Whole answers, with this door's port in the place of the broker's."""
        there, here = (HOST.encode() + struct.pack(">i", p) for p in (self._broker, self._port))
        with contextlib.suppress(OSError), broker.makefile("rb") as answers:
            while len(size := answers.read(4)) == 4:
                body = answers.read(struct.unpack(">i", size)[0])
                client.sendall(size + body.replace(there, here))
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for open_socket in [self._listening, *self._open]:
            open_socket.close()


@contextlib.contextmanager
def door(broker: str, tls: ssl.SSLContext | None = None) -> Iterator[Door]:
    made = Door(broker, tls)
    try:
        yield made
    finally:
        made.close()


def tls_of(certificate: Path, key: Path, *, clients: Path | None = None) -> ssl.SSLContext:
    """Of a server; `clients`: whom to let in alone, as a file of their certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    return context
