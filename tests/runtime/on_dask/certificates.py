"""What servers of tests need: an authority, certificates that it signed, and a port."""

from __future__ import annotations

import datetime
import ipaddress
import socket
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hierfl.runtime.on_dask.site_process import TLSFiles

DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates, and writes them to a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.key = folder, _named(name), ec.generate_private_key(ec.SECP256R1())
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        own = self._builder(self.name, self.key, 2 * DAY).add_extension(constraints, critical=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(own.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def files(
        self, name: str, role: str | None = None, valid: datetime.timedelta = DAY, host: str | None = None
    ) -> TLSFiles:
        """A certificate that is valid from two days ago until then; of a role and of an address, if they are given."""
        key = ec.generate_private_key(ec.SECP256R1())
        own = self._builder(_named(name), key, valid)
        names: list[x509.GeneralName] = []
        if role is not None:
            names.append(x509.UniformResourceIdentifier(f"hierfl:{role}"))
        if host is not None:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        if names:
            own = own.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = own.sign(self.key, hashes.SHA256())
        cert, secret = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        formats = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        secret.write_bytes(key.private_bytes(*formats))
        return TLSFiles(str(self.file), str(cert), str(secret))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, valid: datetime.timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * DAY)
            .not_valid_after(now + valid)
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
